"""Calls that depend on other calls of the row: each gets a row as soon as those calls have answered it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from spark_client.executor.engine.groups import Group
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.planned_calls import PlannedCall
from spark_client.executor.stream.chunks import Answer, Rows, as_array

__all__ = ["Nested", "ReadyRows"]


class ReadyRows(NamedTuple):
    """Rows of a group that a call can receive now: their arguments, and rows that have an error instead, by index.

    `answered` has the indexes of the rows that need no call, and their answers.
    """

    call: int
    rows: Rows
    columns: Sequence[pa.ChunkedArray | pa.Array]
    blocked: Mapping[int, RowError]
    answered: tuple[Integers, pa.Array] | None = None

    def sent(self) -> tuple[Rows, Sequence[pa.ChunkedArray | pa.Array]]:
        """The rows that the call is made for, and their arguments."""
        known = [] if self.answered is None else [self.answered[0]]
        if self.blocked:
            known.append(np.fromiter(self.blocked, np.int64, len(self.blocked)))
        if not sum(map(len, known)):
            return self.rows, self.columns
        rest = np.setdiff1d(np.arange(len(self.rows)), np.concatenate(known))
        return as_array(self.rows)[rest], [column.take(pa.array(rest)) for column in self.columns]

    def settled(self, group: Group, type_: pa.DataType) -> Iterator[Answer]:
        """The outcomes of the rows that need no call, and of those that have an error."""
        if self.answered is not None and len(self.answered[0]):
            places, values = self.answered
            yield Answer(group, as_array(self.rows)[places], values, {})
        if self.blocked:
            places = np.fromiter(self.blocked, np.int64, len(self.blocked))
            errors = dict(enumerate(self.blocked.values()))
            yield Answer(group, as_array(self.rows)[places], pa.nulls(len(places), type_), errors)


class Nested:
    """The nested calls of one group. `sources` has, per call, the call whose outcomes it uses: itself or an equal one.

    A call of one call gets the rows of each answer. A call of several calls gets all rows of the group at once.
    """

    def __init__(self, calls: Sequence[PlannedCall], sources: Sequence[int], width: int) -> None:
        """`width` is the number of columns of the input."""
        self._calls = calls
        self._sources = sources
        self._width = width
        self._inner = {
            call: list(dict.fromkeys(sources[value] for value in calls[call].inner(width)))
            for call in dict.fromkeys(sources)
        }
        self._errors: dict[int, dict[int, RowError]] = {}
        """Per call that is one of several inner calls of another one: its errors, by row of the group."""
        self._missing: dict[int, int] = {}
        """Number of outcomes for which a call of several calls waits; only calls that got one are here."""

    def independent(self) -> list[int]:
        """The calls that depend on columns of the input only."""
        return [call for call, inner in self._inner.items() if not inner]

    def ready(self, answered: int, answer: Answer, group: Group) -> Iterator[ReadyRows]:
        """The rows that other calls can receive because of an answer of the call `answered`."""
        for call, inner in self._inner.items():
            if inner == [answered]:
                values = {answered: answer.values}
                yield self._rows(call, group, answer.rows, values, self._blocking(call, answered, answer.errors))
            elif answered in inner:
                yield from self._together(call, inner, answered, answer, group)

    def _together(
        self, call: int, inner: Sequence[int], answered: int, answer: Answer, group: Group
    ) -> Iterator[ReadyRows]:
        missing = self._missing.get(call, group.rows * len(inner)) - len(answer.rows)
        self._missing[call] = missing
        for index, error in self._blocking(call, answered, answer.errors).items():
            # If several inner calls failed, the error of the first that answered is used.
            self._errors.setdefault(call, {}).setdefault(int(answer.rows[index]), error)
        if not missing:
            values = {each: group.values(each) for each in inner}
            yield self._rows(call, group, range(group.rows), values, dict(sorted(self._errors.pop(call, {}).items())))

    def _blocking(self, call: int, answered: int, errors: Mapping[int, RowError]) -> dict[int, RowError]:
        """The errors with which a row is not sent on to `call`. With on-error `null` the row is sent with a null.

        Equal calls share their outcomes, but each has its own policy.
        """
        inner = (value for value in self._calls[call].values(self._width) if self._sources[value] == answered)
        return {} if all(self._calls[value].sends_nulls for value in inner) else dict(sorted(errors.items()))

    def _rows(
        self, call: int, group: Group, rows: Rows, values: dict[int, pa.Array], blocked: dict[int, RowError]
    ) -> ReadyRows:
        columns = [
            values[self._sources[column - self._width]] if column >= self._width else group.input(column, rows)
            for column in self._calls[call].columns
        ]
        earlier = self._calls[call].earlier
        answered = None if earlier is None else earlier.rule.answered(values[self._sources[earlier.call]])
        return ReadyRows(call, rows, columns, blocked, answered)
