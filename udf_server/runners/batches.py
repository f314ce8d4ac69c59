"""RowBatch holds the rows of one batch while a row-wise function processes them."""

import collections
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.failures import describe
from udf_server.declaring.functions import Function
from udf_server.runners.outputs import Mask, Output, OutputWriter, Taken, error_bytes
from udf_server.runners.room import Room
from udf_server.runners.selection import Selection, rows_without_null
from udf_server.values.codecs import Codec
from udf_server.values.values import decode_rows, encode_rows

__all__ = ["REPORT_BYTES", "REPORT_ROWS", "UNSET", "RowBatch"]

REPORT_BYTES, REPORT_ROWS = 64 << 10, 8
"""A worker measures its outcomes after REPORT_ROWS rows and reports them from REPORT_BYTES on: each of the two
costs as much as several rows that only compute."""
SAMPLED_ROWS = 8
"""If values of the result type differ in size, the size of at most this many values of a chunk is measured."""
UNSET: Final = object()
"""The placeholder in `values` for a row without an outcome."""


class RowBatch:
    """Arguments, values and errors of the rows of one batch, by index.

    `pending` yields (index, arguments) of the rows to call, in order. A worker that takes one must add
    an outcome: an entry in `values` or in `errors`. The iterator is implemented in C, so several
    threads may share it. If a row has both entries, the error applies: a row that was given up
    stays given up when its call returns late.
    """

    def __init__(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array], first_row: int, rows: int,
        timeout: float, room: Room | None, selection: Selection | None,
    ) -> None:  # fmt: skip
        """`room` counts the bytes of the unsent outcomes; `timeout` is the time in seconds that a row may take.

        With a `selection`, only its rows are called and have outcomes here, and output must be unordered.
        """
        self.first_row = first_row
        self.rows = rows
        self.timeout = timeout
        self.values: list[Any] = [UNSET] * rows
        self.columns: Sequence[pa.Array] = columns if function.context_parameter is not None else ()
        """The arguments as received, if the function has a context from which it can read them."""
        self.errors: dict[int, RowError] = {}
        """Errors of rows that were not sent."""
        self.failed = 0
        """Number of rows whose call has failed so far."""
        self.attempts: dict[int, int] = {}
        """Row index to number of calls, for rows called more than once."""
        self.fresh: collections.deque[int] = collections.deque()
        """Rows with an outcome that was not sent yet. Used with unordered output only."""
        self._skipped: Mask | None = None
        """True for rows that are not called; None if all are called."""
        self._sent = 0
        """Number of rows at the front that were sent, with ordered output."""
        self.results = (room or Room()).claim()
        """The bytes of the unsent outcomes."""
        self.unsized = 0
        """Number of rows with an outcome that were not passed to `report` yet.

        This attribute and those below are used by one thread only.
        """
        self._unreported = self._unreported_bytes = 0
        """Number and bytes of the outcomes that the room does not count yet."""
        self.to_call = rows
        """Number of rows in `pending` at the beginning."""
        self.workers = 0
        """Number of workers that take rows from `pending` or process one."""
        self.sending = False
        """Whether sending of the outcomes that are ready was scheduled."""
        self.exhausted = False
        """Whether a worker has found `pending` empty."""
        self._result = function.result
        self.pending = (
            self._decode(function, codecs, columns)
            if selection is None
            else self._selected(function, codecs, columns, selection)
        )

    def _selected(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array], selection: Selection
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        called = [] if selection.dropped else selection.called.tolist()
        whole = len(called) == self.rows
        places = None if whole else pa.array(called, pa.int64())
        taken = columns if places is None else [column.take(places) for column in columns]
        decoded = self._decoded(function, codecs, taken, called)
        rows: Iterable[tuple[Any, ...]] = zip(*decoded, strict=True) if columns else itertools.repeat(())
        if self.errors:
            rows = [each for row, each in zip(called, rows, strict=False) if row not in self.errors]
            self.fresh.extend(self.errors)
            called, whole = [row for row in called if row not in self.errors], False
        self.to_call = len(called)
        if not whole:
            self.values = [None] * self.rows
            for row in called:
                self.values[row] = UNSET
        # The iterator of indexes is the first one, so that no arguments are taken without their index.
        return zip(selection.rows_to_call(called), rows, strict=False)

    def _decoded(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array], rows: Sequence[int]
    ) -> list[Sequence[Any]]:
        """The values of each column. Sets the errors of rows whose arguments have none; `rows` has their indexes."""
        decoded = [decode_rows(codec, column) for codec, column in zip(codecs, columns, strict=True)]
        for position, (_, failures) in enumerate(decoded):
            for place, error in failures.items():
                message = f"{function.place(position)}: {describe(error)}"
                self.errors.setdefault(rows[place], RowError(ErrorCode.ARGUMENT_VALUE, message, attempts=0))
        return [values for values, _ in decoded]

    def _decode(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array]
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        if not columns:
            return enumerate(itertools.repeat((), self.rows))
        rows = zip(*self._decoded(function, codecs, columns, range(self.rows)), strict=True)
        called = rows_without_null(function.spec, columns)
        if not self.errors and called is None:
            return enumerate(rows)
        skipped = [] if called is None else np.setdiff1d(np.arange(self.rows), called).tolist()
        for row in skipped:
            self.errors.pop(row, None)
        left_out = {*self.errors, *skipped}
        for row in left_out:
            self.values[row] = None
        kept = [(row, arguments) for row, arguments in enumerate(rows) if row not in left_out]
        self.fresh.extend(row for row in range(self.rows) if self.values[row] is not UNSET)
        if skipped:
            self._skipped = np.zeros(self.rows, np.bool_)
            self._skipped[skipped] = True
        self.to_call = len(kept)
        return iter(kept)

    def made_bytes(self, last: int, rows: int) -> int:
        """Estimate the bytes of the values of the last `rows` rows that a worker has processed, up to index `last`.

        Other workers may have taken rows in between; their values are then measured instead, if they are available.
        """
        result = self._result
        if result.width is not None:
            return rows * result.width
        step = -(-rows // SAMPLED_ROWS)
        sample = [value for value in self.values[max(last + 1 - rows, 0) : last + 1 : step] if value is not UNSET]
        return result.size(sample) * rows // len(sample) if sample else 0

    def report(self, last: int) -> None:
        """Add the new outcomes to the room once they have REPORT_BYTES. The last processed row is at `last`."""
        rows, self.unsized = self.unsized, 0
        self._unreported += rows
        self._unreported_bytes += self.made_bytes(last, rows)
        if self._unreported_bytes >= REPORT_BYTES:
            self.results.add(self._unreported_bytes, self._unreported)
            self._unreported = self._unreported_bytes = 0

    def error_bytes(self, index: int) -> int:
        """The approximate bytes of the error of a row; 0 if it has none."""
        error = self.errors.get(index)
        return 0 if error is None else error_bytes(error)

    def fail(self, index: int, error: RowError) -> None:
        """Set the error of a row."""
        self.failed += 1
        self.errors[index] = error
        self.values[index] = None
        if index in self.attempts:  # a budget may have refused the last one
            self.attempts[index] = error.attempts

    def continued(self, given_up: Mapping[int, RowError]) -> "RowBatch":
        """A batch with the same outcomes so far and the rows that no worker has taken.

        It replaces this one if a thread or loop that processes this one hangs: what that may still write goes to
        this object, which is not read any more. `given_up` has the errors of the rows that it was processing.
        """
        other = copy.copy(self)
        other.values = self.values.copy()
        other.errors = self.errors.copy()
        other.attempts = self.attempts.copy()
        other.fresh = self.fresh.copy()
        rest = list(self.pending)
        other.pending = iter(rest)
        other.to_call = len(rest)
        other.workers, other.sending = 0, False
        for index, error in given_up.items():
            other.fail(index, error)
            other.fresh.append(index)
        return other

    def outputs(self, writer: OutputWriter, *, ended: bool) -> list[Output]:
        """The Results of the unsent rows with an outcome; all have one if the batch has `ended`.

        With ordered output, only those at the front.
        """
        if not writer.ordered:
            return self._fresh_outputs(writer)
        if ended:
            self.results.release()
            return self._front_outputs(writer, self.rows)
        start = self._sent
        ready = itertools.takewhile(lambda value: value is not UNSET, itertools.islice(self.values, start, None))
        end = start + sum(1 for _ in ready)
        self.results.leave(end - start - self._uncalled(range(start, end)))
        return self._front_outputs(writer, end)

    def _fresh_outputs(self, writer: OutputWriter) -> list[Output]:
        """The Results of the rows that got their outcome since the last call."""
        indexes = [taken() for taken in itertools.repeat(self.fresh.popleft, len(self.fresh))]
        self.results.leave(len(indexes) - self._uncalled(indexes))
        if not indexes:
            return []
        values = list(map(self.values.__getitem__, indexes))
        errors = {}
        if self.errors:
            errors = {place: self.errors.pop(index) for place, index in enumerate(indexes) if index in self.errors}
        for index in indexes:
            self.values[index] = None
        skipped = None if self._skipped is None else self._skipped[indexes]
        retries = sum(self.attempts[index] - 1 for index in indexes if index in self.attempts) if self.attempts else 0
        rows = [self.first_row + index for index in indexes]
        return self._write(writer, 0, values, errors, skipped, retries, rows)

    def _uncalled(self, rows: Sequence[int]) -> int:
        """The number of these unsent rows that were not called."""
        skipped = 0 if self._skipped is None else int(np.count_nonzero(self._skipped[rows]))
        # Rows whose arguments have no Python value were not called either.
        if not self.errors:
            return skipped
        return skipped + sum(row in self.errors and not self.errors[row].attempts for row in rows)

    def _front_outputs(self, writer: OutputWriter, end: int) -> list[Output]:
        start, self._sent = self._sent, end
        if start == end:
            return []
        if end - start == self.rows:
            values, self.values = self.values, [None] * self.rows
        else:
            values, self.values[start:end] = self.values[start:end], [None] * (end - start)
        # Rows are looked up one by one: other threads may add errors, so the dict must not be iterated.
        rows = range(start, end)
        errors = {row - start: self.errors.pop(row) for row in rows if row in self.errors} if self.errors else {}
        retries = sum(self.attempts[row] - 1 for row in rows if row in self.attempts) if self.attempts else 0
        skipped = None if self._skipped is None else self._skipped[start:end]
        return self._write(writer, start, values, errors, skipped, retries)

    def _write(
        self, writer: OutputWriter, first: int, values: Sequence[Any], errors: Mapping[int, RowError],
        skipped: Mask | None, retries: int, rows: Sequence[int] | None = None,
    ) -> list[Output]:  # fmt: skip
        # Rows whose arguments have no Python value were not called either.
        uncalled = 0 if skipped is None else int(np.count_nonzero(skipped))
        uncalled += sum(not error.attempts for error in errors.values())
        calls = len(values) - uncalled + retries
        if errors:
            values = [None if index in errors else value for index, value in enumerate(values)]
        array, failures = encode_rows(self._result, values)
        if failures:
            errors = {**errors}
            for index, error in failures.items():
                attempts = self.attempts.get(first + index if rows is None else rows[index] - self.first_row, 1)
                errors[index] = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
        taken = Taken(first, array, errors, {}, calls, retries, skipped)
        return list(writer.write_pieces(self.first_row, taken, rows))
