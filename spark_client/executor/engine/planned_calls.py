"""PlannedCall is a call of every row of a task. Equal calls of a row are made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.options import OnError
from spark_client.base.calls import ScalarCall
from spark_client.executor.engine.pieces import Integers

__all__ = ["AnswerRule", "EarlierAnswers", "PlannedCall", "equal_calls", "field_of_struct"]


class AnswerRule(Protocol):
    """Which rows a call answers, so that a later call is not made for them.

    Rules are compared and pickled. The text of a rule says in Spark's plan for which rows the later call is made.
    """

    def answered(self, values: pa.Array) -> tuple[Integers, pa.Array]:
        """The indexes of the rows that need no later call, given the values of the call, and their answers."""


class EarlierAnswers(NamedTuple):
    """The position of an earlier call, and which rows it answers."""

    call: int
    rule: AnswerRule


@dataclass(frozen=True)
class PlannedCall:
    """A call and the columns that are its arguments: those of the input, then the values of the calls before it.

    If the input has three columns, 3 is the value of the first call of the task for the same row.

    `errors` are error columns of the input. A row with an error there is not sent; it gets that error. `names` are the
    names of the arguments on the wire; the default is the names of their columns.

    With `earlier` the call is made only for the rows that an earlier call does not answer; its value for the others is
    that answer. If the function returns a struct, `field` may name the field that is the value.
    """

    call: ScalarCall
    columns: tuple[int, ...]
    errors: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    earlier: EarlierAnswers | None = None
    field: str | None = None

    @property
    def result_type(self) -> pa.DataType:
        """The type of the call's value."""
        return self.call.result_type if self.field is None else self.call.result_type.field(self.field).type

    def value_of(self, values: pa.Array) -> pa.Array:
        """The values of the call, given what the function has returned."""
        return values if self.field is None else field_of_struct(values, self.field)

    @property
    def sends_nulls(self) -> bool:
        """Whether a call of its value gets a null for a row that failed. Otherwise it does not get the row."""
        return self.call.policy.on_error is OnError.NULL

    def values(self, width: int) -> list[int]:
        """The calls whose values are among the arguments. `width` is the number of columns of the input."""
        return [column - width for column in self.columns if column >= width]

    def inner(self, width: int) -> list[int]:
        """The calls whose outcomes it waits for: those among the arguments, and the one that may answer rows."""
        return [*self.values(width), *([] if self.earlier is None else [self.earlier.call])]

    def arguments(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the arguments. `schema` is that of the input, then of the values of the calls before it."""
        names = self.names or [schema.field(column).name for column in self.columns]
        return pa.schema([schema.field(c).with_name(name) for c, name in zip(self.columns, names, strict=True)])


def field_of_struct(values: pa.Array, name: str) -> pa.Array:
    """A field of structs; null for those that are null."""
    return pc.struct_field(values, [values.type.get_field_index(name)])


def equal_calls(calls: Sequence[PlannedCall], table: pa.Table) -> list[int]:
    """Per call, the first call of the same function and options whose arguments are equal in this batch.

    Values are compared, not expressions, because two different columns may print alike.
    """
    sources: list[int] = []
    for index, planned in enumerate(calls):
        inputs = (*planned.columns, *planned.errors)
        for other in dict.fromkeys(sources):
            before = calls[other]
            others = (*before.columns, *before.errors)
            if (
                _same_call(before.call, planned.call)
                and before.field == planned.field
                and _same_answers(before.earlier, planned.earlier, sources)
                and len(before.columns) == len(planned.columns)
                and len(others) == len(inputs)
                and all(_equal(table, calls, sources, one, two) for one, two in zip(others, inputs, strict=True))
            ):
                sources.append(other)
                break
        else:
            sources.append(index)
    return sources


def _same_call(one: ScalarCall, other: ScalarCall) -> bool:
    same = one.spec.key == other.spec.key and one.config == other.config and one.options == other.options
    return same and one.spec.deterministic


def _same_answers(one: EarlierAnswers | None, other: EarlierAnswers | None, sources: Sequence[int]) -> bool:
    if one is None or other is None:
        return one is other
    return (sources[one.call], one.rule) == (sources[other.call], other.rule)


def _equal(table: pa.Table, calls: Sequence[PlannedCall], sources: Sequence[int], one: int, other: int) -> bool:
    """Whether two columns have the same values for any function. `sources` are those of the calls before."""
    if one == other:
        return True
    width = table.num_columns
    if one >= width or other >= width:
        # Values of calls are not known yet. They are equal if the calls are, and if failed rows become the same.
        return (
            one >= width
            and other >= width
            and sources[one - width] == sources[other - width]
            and calls[one - width].sends_nulls == calls[other - width].sends_nulls
        )
    column, another = table.column(one), table.column(other)
    # For Arrow, 0.0 equals -0.0, but a function may distinguish them.
    return column.equals(another) and (not _has_floats(column.type) or _bits(column) == _bits(another))


def _has_floats(type_: pa.DataType) -> bool:
    return pa.types.is_floating(type_) or any(_has_floats(type_.field(n).type) for n in range(type_.num_fields))


def _bits(column: pa.ChunkedArray) -> pa.Buffer:
    return pa.record_batch([column.combine_chunks()], ["bits"]).serialize()
