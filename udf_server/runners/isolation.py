"""Isolation calls a vectorized function in such a way that a row that fails does not make other rows fail.

It does no I/O: the generator `isolate` yields the next step, a call or a wait, and is sent its result.
Threads and coroutines drive the same generator.
"""

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.call_scope import AttemptTimeout, NotCalled
from udf_server.base.errors import BudgetSpent
from udf_server.base.failures import describe, row_error
from udf_server.runners.calling import MalformedResult, RefusedArgument, Returned, WrongResult
from udf_server.runners.outputs import Taken, error_bytes
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import TRACEBACKS_PER_BATCH
from udf_server.values.codecs import Codec

__all__ = ["Answer", "Call", "Outcomes", "Step", "Wait", "advanced", "isolate"]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the function for these rows, in ascending order. They are a range if they are consecutive."""

    rows: Sequence[int]
    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep for this time."""

    seconds: float


Step = Call | Wait
Answer = tuple[Returned | None, BaseException | None]
"""For a Call: what the function returned, or what it raised. For a Wait: an error if the deadline is earlier."""


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

    def settle(self, first: int, values: pa.Array, failures: Mapping[int, Exception], attempts: int) -> None:
        for row, error in failures.items():
            self.errors[first + row] = wrong = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
            self.bytes += error_bytes(wrong)
        self.bytes += values.nbytes
        # If more calls follow, the values are copied: the function may reuse the memory of the array.
        self.slices[first] = values if len(values) == self.rows else pa.concat_arrays([values])

    def settle_rows(
        self, rows: Sequence[int], values: pa.Array, failures: Mapping[int, Exception], attempts: int
    ) -> None:
        """Do the same for rows that need not be consecutive; failures have the positions of the values."""
        if isinstance(rows, range):
            self.settle(rows[0], values, failures, attempts)
            return
        start = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or rows[end] != rows[end - 1] + 1:
                wrong = {place - start: error for place, error in failures.items() if start <= place < end}
                self.settle(rows[start], values.slice(start, end - start), wrong, attempts)
                start = end

    def fail(self, first: int, rows: int, error: RowError) -> None:
        self.errors.update(dict.fromkeys(range(first, first + rows), error))
        self.slices[first] = pa.nulls(rows, self.codec.type)
        self.bytes += rows * error_bytes(error)

    def fail_rows(self, rows: Sequence[int], error: RowError) -> None:
        if isinstance(rows, range):
            self.fail(rows[0], len(rows), error)
            return
        for row in rows:
            self.fail(row, 1, error)

    def fail_rest(self, error: RowError) -> None:
        """Set this error for every row that has no outcome yet."""
        position = self.sent
        for first, part in sorted(self.slices.items()):
            if first > position:
                self.fail(position, first - position, error)
            position = first + len(part)
        if position < self.rows:
            self.fail(position, self.rows - position, error)

    def not_called(self, attempt: int) -> None:
        """Do not count a call that was not made, after all."""
        self.calls -= 1
        self.retries -= attempt > 1

    def restart(self, first: int) -> None:
        """Reset the number of parts of all rows from `first` on, because they are called again."""
        self.parts = {row: count for row, count in self.parts.items() if row < first}

    def take(self) -> Taken:
        """Remove and return the outcomes that are settled and follow those taken before, without a gap."""
        first = end = self.sent
        slices = []
        while end in self.slices:
            slices.append(self.slices.pop(end))
            end += len(slices[-1])
        values = slices[0] if len(slices) == 1 else pa.concat_arrays(slices) if slices else pa.nulls(0, self.codec.type)
        errors = {row - first: self.errors.pop(row) for row in [row for row in self.errors if row < end]}
        parts = {row - first: self.parts.pop(row) for row in [row for row in self.parts if row < end]}
        # They are negative if a call was counted before it was refused.
        calls, retries = max(self.calls, 0), max(self.retries, 0)
        self.sent, self.calls, self.retries = end, self.calls - calls, self.retries - retries
        self.bytes = 0 if not self.slices else max(self.bytes - values.nbytes, 0)
        return Taken(first, values, errors, parts, calls, retries)

    def copied(self) -> "Outcomes":
        """A copy that does not change if the original changes."""
        return dataclasses.replace(self, slices=dict(self.slices), errors=dict(self.errors), parts=dict(self.parts))


def isolate(
    outcomes: Outcomes, retry: RetryPolicy, most_rows: int, timed_out: Callable[[int, str], RowError]
) -> Generator[Step, Answer, None]:
    """Settle every row. Call for at most `most_rows` rows; if that fails, retry; then split the rows in halves.

    Each half is called once, until a failing row is alone; that row gets all its attempts. So the
    outcome of a row does not depend on its neighbours. If a call names the rows that failed, only those are called
    again. A call without a result within `attempt-timeout` is retried, and not split. The caller of the generator
    watches the deadline. If the deadline is before the next attempt of a row, its error is `timed_out(attempts,
    last_error)`. If a result is malformed, all rows of its call get the error immediately. Outcomes taken while a
    call ran are final.
    """
    starts = range(0, outcomes.rows, most_rows)
    todo: list[tuple[Sequence[int], int, bool]] = [
        (range(first, min(first + most_rows, outcomes.rows)), 1, True) for first in reversed(starts)
    ]
    while todo:
        rows, attempt, whole = todo.pop()
        while True:
            outcomes.calls += 1
            returned, error = yield Call(rows, attempt)
            if (settled := outcomes.sent - rows[0]) > 0:
                # The outcomes of these rows were taken during the call; the other rows start again.
                rows, attempt = rows[settled:], 1
                if not rows:
                    break
            if returned is not None:
                waits = _settle(outcomes, rows, returned, attempt, retry)
                if returned.values is None:
                    others = [row for place, row in enumerate(rows) if place not in returned.failed]
                    todo += [(_range(others), attempt, whole)] if others else []
                while waits:
                    _, late = yield Wait(max(delay for delay, _ in waits.values()))
                    if late is None:
                        outcomes.retries += 1
                        todo.append((_range(sorted(waits)), attempt + 1, True))
                        break
                    # Rows with a shorter delay may still be in time.
                    latest = max(delay for delay, _ in waits.values())
                    for row in [row for row, (delay, _) in waits.items() if delay == latest]:
                        outcomes.fail(row, 1, timed_out(attempt, waits.pop(row)[1]))
                break
            assert error is not None
            if isinstance(error, MalformedResult):
                outcomes.fail_rows(rows, RowError(error.code, str(error), attempt))
                break
            if isinstance(error, (BudgetSpent, NotCalled)):
                outcomes.not_called(attempt)
                if isinstance(error, NotCalled):
                    refused = error.outcome(attempt - 1, lambda made: timed_out(made, ""))
                else:
                    refused = row_error(error, attempt, retryable=False)
                outcomes.fail_rows(rows, refused)
                break
            hung = isinstance(error, AttemptTimeout)
            delay = retry.delay(error, attempt) if whole or hung or len(rows) == 1 else None
            if delay is not None:
                _, late = yield Wait(delay)
                if late is None:
                    attempt += 1
                    outcomes.retries += 1
                    continue
            if (hung or len(rows) == 1) and delay is not None:
                outcomes.fail_rows(rows, timed_out(attempt, describe(error)))
            elif hung or len(rows) == 1:
                # Halves of a call that hangs would take as long again, and a service may charge for them.
                outcomes.fail_rows(rows, _row_error(error, attempt, retry, len(outcomes.errors)))
            else:
                half = len(rows) // 2
                todo.append((rows[half:], 1, False))
                todo.append((rows[:half], 1, False))
            break
        returned = error = None


def _settle(
    outcomes: Outcomes, rows: Sequence[int], returned: Returned, attempt: int, retry: RetryPolicy
) -> dict[int, tuple[float, str]]:
    """Settle what a call has returned. Returns the rows to call again: the delay, and the description of the error."""
    outcomes.calls -= not returned.called
    if not returned.failed:
        assert returned.values is not None
        outcomes.settle_rows(rows, returned.values, returned.wrong, attempt)
        return {}
    waits = {}
    for place, error in returned.failed.items():
        delay = None if isinstance(error, RefusedArgument) else retry.delay(error, attempt)
        if delay is None:
            outcomes.fail(rows[place], 1, _row_error(error, attempt, retry, len(outcomes.errors)))
        else:
            waits[rows[place]] = delay, describe(error)
    if returned.values is not None:
        good = [place for place in range(len(rows)) if place not in returned.failed]
        places = {place: number for number, place in enumerate(good)}
        wrong = {places[place]: error for place, error in returned.wrong.items()}
        if good:
            outcomes.settle_rows([rows[place] for place in good], returned.values.take(pa.array(good)), wrong, attempt)
    return waits


def _range(rows: Sequence[int]) -> Sequence[int]:
    """The rows as a range if they are consecutive."""
    return range(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def advanced(steps: Generator[Step, Answer, None], answer: Answer | None) -> Step | None:
    """The next step; None after the last one. Pass no answer for the first step."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration:
        return None


def _row_error(error: BaseException, attempts: int, retry: RetryPolicy, errors_before: int) -> RowError:
    if isinstance(error, WrongResult):
        return RowError(error.code, str(error), 0 if isinstance(error, RefusedArgument) else attempts)
    traced = errors_before < TRACEBACKS_PER_BATCH
    return row_error(error, attempts, retryable=retry.worthwhile(error), with_traceback=traced)
