"""Isolation: calls a vectorized function so that a bad row costs no other row.

Written without I/O: `isolate` is a generator that says what to do next, call or wait, and is told how
it went. Threads and coroutines drive the same one.
"""

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.failures import describe, row_error
from udf_server.base.values import Codec, Failures
from udf_server.runners.outputs import Taken, error_bytes
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.returned import MalformedResult, WrongResult, returned_array
from udf_server.runners.runner import TRACEBACKS_PER_BATCH

__all__ = ["Answer", "Call", "Outcomes", "Step", "Wait", "advanced", "isolate"]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the function for rows first .. first + rows."""

    first: int
    rows: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep this long."""

    seconds: float


Step = Call | Wait
Answer = tuple[Any, BaseException | None]
"""To a Call: what the function returned, and what it raised. To a Wait: an error if the deadline comes sooner."""


@dataclass
class Outcomes:
    """Values and errors of one batch, filled in as slices of it are settled."""

    rows: int
    codec: Codec
    slices: dict[int, pa.Array] = field(default_factory=dict)
    """First row of a slice to its values."""
    errors: dict[int, RowError] = field(default_factory=dict)
    calls: int = 0
    retries: int = 0
    """Calls that no taken rows account for, and those of them that repeat one that failed."""
    sent: int = 0
    """Rows at the front whose outcomes were taken."""
    parts: dict[int, int] = field(default_factory=dict)
    """Row to the number of parts of its value that were sent so far."""
    bytes: int = 0
    """What is settled and was not taken takes, about."""

    def settle(self, first: int, values: pa.Array, failures: Failures, attempts: int) -> None:
        for row, error in failures.items():
            self.errors[first + row] = wrong = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
            self.bytes += error_bytes(wrong)
        self.bytes += values.nbytes
        # A copy where more calls follow: their author may write into the memory of the array again.
        self.slices[first] = values if len(values) == self.rows else pa.concat_arrays([values])

    def fail(self, first: int, rows: int, error: RowError) -> None:
        self.errors.update(dict.fromkeys(range(first, first + rows), error))
        self.slices[first] = pa.nulls(rows, self.codec.type)
        self.bytes += rows * error_bytes(error)

    def fail_rest(self, error: RowError) -> None:
        """Every row that has no outcome yet gets this one."""
        position = self.sent
        for first, part in sorted(self.slices.items()):
            if first > position:
                self.fail(position, first - position, error)
            position = first + len(part)
        if position < self.rows:
            self.fail(position, self.rows - position, error)

    def restart(self, first: int) -> None:
        """Rows from here on are called again: parts of them count no more."""
        self.parts = {row: count for row, count in self.parts.items() if row < first}

    def take(self) -> Taken:
        """The rows that are settled and were not taken yet, all of which are at the front."""
        first, slices = self.sent, [self.slices[start] for start in sorted(self.slices)]
        values = slices[0] if len(slices) == 1 else pa.concat_arrays(slices) if slices else pa.nulls(0, self.codec.type)
        end = first + len(values)
        errors = {row - first: error for row, error in self.errors.items()}
        parts = {row - first: self.parts.pop(row) for row in [row for row in self.parts if row < end]}
        calls, retries = self.calls, self.retries
        self.slices, self.errors, self.sent, self.calls, self.retries, self.bytes = {}, {}, end, 0, 0, 0
        return Taken(first, values, errors, parts, calls, retries)

    def copied(self) -> "Outcomes":
        """A copy that does not change with the original."""
        return dataclasses.replace(self, slices=dict(self.slices), errors=dict(self.errors), parts=dict(self.parts))


def isolate(
    outcomes: Outcomes, retry: RetryPolicy, most_rows: int, timed_out: Callable[[int, str], RowError]
) -> Generator[Step, Answer, None]:
    """Settles every row: calls for at most `most_rows` of them; where that fails, retries; then halves.

    The halves are called once each, until a bad row stands alone and gets all its attempts. So what
    becomes of a row does not depend on its neighbours. Whoever drives the generator watches the
    deadline; a row that cannot wait for its next attempt gets what `timed_out` says of the number of
    attempts and the last error. A malformed result is the error of all rows of its call, at once.
    Outcomes that were taken while a call ran are final.
    """
    starts = range(0, outcomes.rows, most_rows)
    todo = [(first, min(most_rows, outcomes.rows - first), True) for first in reversed(starts)]
    while todo:
        first, rows, whole = todo.pop()
        attempt = 1
        while True:
            outcomes.calls += 1
            result, error = yield Call(first, rows, attempt)
            if (settled := outcomes.sent - first) > 0:
                # Rows whose outcomes have left during the call; the others begin again.
                first, rows, attempt = first + settled, rows - settled, 1
                if not rows:
                    break
            if error is None:
                try:
                    outcomes.settle(first, *returned_array(result, rows, outcomes.codec), attempt)
                    break
                except WrongResult as wrong:
                    # Its traceback would hold this frame, and this frame it.
                    error = wrong.with_traceback(None)
            if isinstance(error, MalformedResult):
                outcomes.fail(first, rows, RowError(error.code, str(error), attempt))
                break
            delay = retry.delay(error, attempt) if whole or rows == 1 else None
            if delay is not None:
                _, late = yield Wait(delay)
                if late is None:
                    attempt += 1
                    outcomes.retries += 1
                    continue
            if rows == 1 and delay is not None:
                outcomes.fail(first, 1, timed_out(attempt, describe(error)))
            elif rows == 1:
                outcomes.fail(first, 1, _row_error(error, attempt, retry, len(outcomes.errors)))
            else:
                half = rows // 2
                todo.append((first + half, rows - half, False))
                todo.append((first, half, False))
            break
        result = error = None


def advanced(steps: Generator[Step, Answer, None], answer: Answer | None) -> Step | None:
    """The next step; None after the last one. There is no answer before the first step."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


def _row_error(error: BaseException, attempts: int, retry: RetryPolicy, errors_before: int) -> RowError:
    if isinstance(error, WrongResult):
        return RowError(error.code, str(error), attempts)
    traced = errors_before < TRACEBACKS_PER_BATCH
    return row_error(error, attempts, retryable=retry.worthwhile(error), with_traceback=traced)
