"""Isolation calls a vectorized function in such a way that a row that fails does not make other rows fail.

It does no I/O: the generator `isolate` yields the next step, a call or a wait, and is sent its result.
Threads and coroutines drive the same generator.
"""

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.codecs import Codec
from udf_server.base.failures import describe, row_error
from udf_server.base.values import Failures
from udf_server.runners.outputs import Taken, error_bytes
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.returned import MalformedResult, WrongResult, returned_array
from udf_server.runners.runner import TRACEBACKS_PER_BATCH

__all__ = ["Answer", "Call", "Outcomes", "Step", "Wait", "advanced", "isolate"]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the function for the `rows` rows from `first` on."""

    first: int
    rows: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep for this time."""

    seconds: float


Step = Call | Wait
Answer = tuple[Any, BaseException | None]
"""For a Call: what the function returned, and what it raised. For a Wait: an error if the deadline is earlier."""


@dataclass
class Outcomes:
    """Values and errors of one batch. They are added slice by slice, as the slices are settled."""

    rows: int
    codec: Codec
    slices: dict[int, pa.Array] = field(default_factory=dict)
    """First row of a slice to its values."""
    errors: dict[int, RowError] = field(default_factory=dict)
    calls: int = 0
    retries: int = 0
    """Calls since the last `take`, and how many of them repeat a call that failed."""
    sent: int = 0
    """Number of rows at the front whose outcomes were taken."""
    parts: dict[int, int] = field(default_factory=dict)
    """Row to the number of parts of its value that were sent so far."""
    bytes: int = 0
    """The approximate bytes of the outcomes that are settled and were not taken."""

    def settle(self, first: int, values: pa.Array, failures: Failures, attempts: int) -> None:
        for row, error in failures.items():
            self.errors[first + row] = wrong = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
            self.bytes += error_bytes(wrong)
        self.bytes += values.nbytes
        # If more calls follow, the values are copied: the function may reuse the memory of the array.
        self.slices[first] = values if len(values) == self.rows else pa.concat_arrays([values])

    def fail(self, first: int, rows: int, error: RowError) -> None:
        self.errors.update(dict.fromkeys(range(first, first + rows), error))
        self.slices[first] = pa.nulls(rows, self.codec.type)
        self.bytes += rows * error_bytes(error)

    def fail_rest(self, error: RowError) -> None:
        """Set this error for every row that has no outcome yet."""
        position = self.sent
        for first, part in sorted(self.slices.items()):
            if first > position:
                self.fail(position, first - position, error)
            position = first + len(part)
        if position < self.rows:
            self.fail(position, self.rows - position, error)

    def restart(self, first: int) -> None:
        """Reset the number of parts of all rows from `first` on, because they are called again."""
        self.parts = {row: count for row, count in self.parts.items() if row < first}

    def take(self) -> Taken:
        """Remove and return the outcomes that are settled. Their rows are consecutive and follow those taken before."""
        first, slices = self.sent, [self.slices[start] for start in sorted(self.slices)]
        values = slices[0] if len(slices) == 1 else pa.concat_arrays(slices) if slices else pa.nulls(0, self.codec.type)
        end = first + len(values)
        errors = {row - first: error for row, error in self.errors.items()}
        parts = {row - first: self.parts.pop(row) for row in [row for row in self.parts if row < end]}
        calls, retries = self.calls, self.retries
        self.slices, self.errors, self.sent, self.calls, self.retries, self.bytes = {}, {}, end, 0, 0, 0
        return Taken(first, values, errors, parts, calls, retries)

    def copied(self) -> "Outcomes":
        """A copy that does not change if the original changes."""
        return dataclasses.replace(self, slices=dict(self.slices), errors=dict(self.errors), parts=dict(self.parts))


def isolate(
    outcomes: Outcomes, retry: RetryPolicy, most_rows: int, timed_out: Callable[[int, str], RowError]
) -> Generator[Step, Answer, None]:
    """Settle every row. Call for at most `most_rows` rows; if that fails, retry; then split the rows in halves.

    Each half is called once, until a failing row is alone; that row gets all its attempts. So the
    outcome of a row does not depend on its neighbours. The caller of the generator watches the
    deadline. If the deadline is before the next attempt of a row, its error is `timed_out(attempts, last_error)`.
    If a result is malformed, all rows of its call get the error immediately. Outcomes taken while a call ran are
    final.
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
                # The outcomes of these rows were taken during the call; the other rows start again.
                first, rows, attempt = first + settled, rows - settled, 1
                if not rows:
                    break
            if error is None:
                try:
                    outcomes.settle(first, *returned_array(result, rows, outcomes.codec), attempt)
                    break
                except WrongResult as wrong:
                    # Its traceback refers to this frame, and this frame to it: that would be a reference cycle.
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
    """The next step; None after the last one. Pass no answer for the first step."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


def _row_error(error: BaseException, attempts: int, retry: RetryPolicy, errors_before: int) -> RowError:
    if isinstance(error, WrongResult):
        return RowError(error.code, str(error), attempts)
    traced = errors_before < TRACEBACKS_PER_BATCH
    return row_error(error, attempts, retryable=retry.worthwhile(error), with_traceback=traced)
