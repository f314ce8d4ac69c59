"""A Column that is a call of a remote function stores the call, so that whole-row execution can find it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column

from remote_udf.functions import FunctionSpec
from spark_client.executor.engine.planned_calls import AnswerRule

__all__ = ["ColumnCall", "EarlierCall", "call_of", "with_call"]

_ATTRIBUTE = "_remote_udf_call"


@dataclass(frozen=True, eq=False)
class ColumnCall:
    """A call as the user wrote it. The arguments are columns, names of columns, or columns that are calls themselves.

    `alias` is the name that was given with Column.alias, or None. `value_field` is the field of the function's struct
    that is the value of the call; None if the value is all of it. With `earlier` the call is only made for the rows
    that another call does not answer.
    """

    spec: FunctionSpec
    arguments: tuple[object, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    alias: str | None = None
    value_field: str | None = None
    earlier: "EarlierCall | None" = None


@dataclass(frozen=True, eq=False)
class EarlierCall:
    """A call that is made first, and which rows it answers."""

    call: ColumnCall
    rule: AnswerRule


def with_call(column: Column, call: ColumnCall) -> Column:
    """Store the call in the column, and in every column that its method `alias` returns. Returns the column."""
    kind = type(column)

    def alias(*names: str, **options: object) -> Column:
        renamed = kind.alias(column, *names, **options)
        return with_call(renamed, replace(call, alias=names[0] if len(names) == 1 else None))

    # The attributes are set on the instance, because the class is Spark's own, classic or Connect.
    vars(column).update({_ATTRIBUTE: call, "alias": alias, "name": alias})
    return column


def call_of(column: object) -> ColumnCall | None:
    """The call stored in a column, or None. Columns derived from a call, except its alias, store no call."""
    return vars(column).get(_ATTRIBUTE) if isinstance(column, Column) else None
