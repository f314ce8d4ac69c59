"""RowBatch: the rows of one batch on their way through a row-wise function."""

import collections
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.functions import NullCall
from remote_udf.outcomes import RowError
from udf_server.base.failures import describe
from udf_server.base.functions import Function
from udf_server.base.values import Codec, decode_rows, encode_rows
from udf_server.runners.outputs import Output, OutputWriter

__all__ = ["UNSET", "RowBatch"]

UNSET: Final = object()
"""Stands in `values` for a row without an outcome."""


class RowBatch:
    """Arguments, values and errors of the rows of one batch, by index.

    `pending` yields (index, arguments) of the rows to call, in order; whoever takes one from it owes
    an outcome: an entry in `values` or in `errors`. It is an iterator of the C library, so several
    threads may share it. An entry in `errors` wins over one in `values`: a row that was given up
    stays given up when its call comes back late.
    """

    def __init__(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array], first_row: int, rows: int,
        waited: float = 0.0,
    ) -> None:  # fmt: skip
        self.first_row = first_row
        self.rows = rows
        self.waited = waited
        self.values: list[Any] = [UNSET] * rows
        self.columns: Sequence[pa.Array] = columns if function.context_parameter is not None else ()
        """The arguments as they came, if the function may ask its context for them."""
        self.errors: dict[int, RowError] = {}
        self.attempts: dict[int, int] = {}
        """Calls made for a row, where more than one."""
        self.fresh: collections.deque[int] = collections.deque()
        """Rows with an outcome that was not sent yet; kept with unordered output only."""
        self.skipped = 0
        self.to_call = rows
        """Rows in `pending` at the beginning."""
        self.workers = 0
        """Who is taking rows from `pending` or working on one."""
        self.exhausted = False
        """`pending` has been seen to be empty."""
        self._result = function.result
        self.pending = self._decode(function, codecs, columns)

    def _decode(
        self, function: Function, codecs: Sequence[Codec], columns: Sequence[pa.Array]
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        if not columns:
            return enumerate(itertools.repeat((), self.rows))
        decoded = [decode_rows(codec, column) for codec, column in zip(codecs, columns, strict=True)]
        for position, (_, failures) in enumerate(decoded):
            name = function.spec.parameter(position).name
            for row, error in failures.items():
                message = f"parameter {name!r}: {describe(error)}"
                self.errors.setdefault(row, RowError(ErrorCode.ARGUMENT_VALUE, message, attempts=0))
        rows = zip(*(values for values, _ in decoded), strict=True)
        skips = function.spec.nulls is NullCall.SKIP and any(column.null_count for column in columns)
        if not self.errors and not skips:
            return enumerate(rows)
        kept = []
        for row, arguments in enumerate(rows):
            if row in self.errors:
                self.values[row] = None
            elif skips and any(argument is None for argument in arguments):
                self.values[row] = None
                self.skipped += 1
            else:
                kept.append((row, arguments))
        self.fresh.extend(row for row in range(self.rows) if self.values[row] is not UNSET)
        self.to_call = len(kept)
        return iter(kept)

    def fail(self, index: int, error: RowError) -> None:
        """Gives a row its error."""
        self.errors[index] = error
        self.values[index] = None

    def continued(self, given_up: Mapping[int, RowError]) -> "RowBatch":
        """A batch with the same outcomes so far and the rows nobody has taken.

        For when a thread or loop that works on this one is stuck: what it may still write goes to
        this object, which nobody looks at any more. `given_up` are the errors of the rows it holds.
        """
        other = copy.copy(self)
        other.values = self.values.copy()
        other.errors = self.errors.copy()
        other.attempts = self.attempts.copy()
        other.fresh = self.fresh.copy()
        rest = list(self.pending)
        other.pending = iter(rest)
        other.to_call = len(rest)
        other.workers = 0
        for index, error in given_up.items():
            other.fail(index, error)
            other.fresh.append(index)
        return other

    def outputs(self, writer: OutputWriter) -> list[Output]:
        """The Results of the whole batch."""
        retries = sum(self.attempts.values()) - len(self.attempts)
        return self._write(writer, self.values, self.errors, self.skipped, retries, None)

    def fresh_outputs(self, writer: OutputWriter) -> list[Output]:
        """The Results of rows that got their outcome since the last call; for unordered output."""
        indexes = []
        while self.fresh:
            indexes.append(self.fresh.popleft())
        if not indexes:
            return []
        values = [self.values[index] for index in indexes]
        errors = {place: self.errors[index] for place, index in enumerate(indexes) if index in self.errors}
        skipped, self.skipped = self.skipped, 0
        retries = sum(self.attempts[index] - 1 for index in indexes if index in self.attempts) if self.attempts else 0
        return self._write(writer, values, errors, skipped, retries, [self.first_row + index for index in indexes])

    def _write(
        self,
        writer: OutputWriter,
        values: Sequence[Any],
        errors: Mapping[int, RowError],
        skipped: int,
        retries: int,
        rows: Sequence[int] | None,
    ) -> list[Output]:
        # Rows whose arguments Python cannot hold were not called either.
        uncalled = skipped + sum(not error.attempts for error in errors.values())
        calls = len(values) - uncalled + retries
        if errors:
            values = [None if index in errors else value for index, value in enumerate(values)]
        array, failures = encode_rows(self._result, values)
        if failures:
            errors = {**errors}
            for index, error in failures.items():
                attempts = self.attempts.get(index if rows is None else rows[index] - self.first_row, 1)
                errors[index] = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
        return writer.write(self.first_row, array, errors, skipped, rows, calls=calls, retries=retries)
