"""A Column that is a call of a remote function remembers which call, so that whole-row execution finds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column

from remote_udf.functions import FunctionSpec

__all__ = ["ColumnCall", "call_of", "with_call"]

_ATTRIBUTE = "_remote_udf_call"


@dataclass(frozen=True, eq=False)
class ColumnCall:
    """A call as it was written: function, arguments (columns, column names or columns that are calls) and options.

    `alias` is the name given with Column.alias, or None.
    """

    spec: FunctionSpec
    arguments: tuple[object, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    alias: str | None = None


def with_call(column: Column, call: ColumnCall) -> Column:
    """The same column, remembering the call; so does what its `alias` returns."""
    kind = type(column)

    def alias(*names: str, **options: object) -> Column:
        renamed = kind.alias(column, *names, **options)
        return with_call(renamed, replace(call, alias=names[0] if len(names) == 1 else None))

    # On the instance: the class is Spark's, classic or Connect, and stays as it is.
    vars(column).update({_ATTRIBUTE: call, "alias": alias, "name": alias})
    return column


def call_of(column: object) -> ColumnCall | None:
    """The call a column is, or None. Everything derived from a call but its alias is an ordinary column."""
    return vars(column).get(_ATTRIBUTE) if isinstance(column, Column) else None
