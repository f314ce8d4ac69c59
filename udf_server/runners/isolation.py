"""Isolation: calls a vectorized function so that a bad row costs no other row.

Written without I/O: `isolate` is a generator that says what to do next, call or wait, and is told how
it went. Threads and coroutines drive the same one.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from remote_udf.types import accepts, normalized, spelled
from udf_server.failures import describe, row_error
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import TRACEBACKS_PER_BATCH
from udf_server.values import Codec, Failures, encode_rows

__all__ = ["Answer", "Call", "Outcomes", "Step", "Wait", "isolate"]


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


class WrongResult(Exception):
    """What came back is not one value per row."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Outcomes:
    """Values and errors of one batch, filled in as slices of it are settled."""

    rows: int
    codec: Codec
    parts: dict[int, pa.Array] = field(default_factory=dict)
    """First row of a slice to its values."""
    errors: dict[int, RowError] = field(default_factory=dict)
    retries: int = 0

    def settle(self, first: int, values: pa.Array, failures: Failures, attempts: int) -> None:
        for row, error in failures.items():
            self.errors[first + row] = RowError(ErrorCode.RESULT_TYPE, describe(error), attempts)
        self.parts[first] = values

    def fail(self, first: int, rows: int, error: RowError) -> None:
        self.errors.update(dict.fromkeys(range(first, first + rows), error))
        self.parts[first] = pa.nulls(rows, self.codec.type)

    def fail_rest(self, error: RowError) -> None:
        """Every row that has no outcome yet gets this one."""
        position = 0
        for first, part in sorted(self.parts.items()):
            if first > position:
                self.fail(position, first - position, error)
            position = first + len(part)
        if position < self.rows:
            self.fail(position, self.rows - position, error)

    def values(self) -> pa.Array:
        """One value per row, null where it failed; every row must have an outcome."""
        parts = [part for _, part in sorted(self.parts.items())]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.nulls(0, self.codec.type)


def isolate(
    outcomes: Outcomes, retry: RetryPolicy, most_rows: int, timed_out: Callable[[int, str], RowError]
) -> Generator[Step, Answer, None]:
    """Settles every row: calls for at most `most_rows` of them; where that fails, retries; then halves.

    The halves are called once each, until a bad row stands alone and gets all its attempts. So what
    becomes of a row does not depend on its neighbours. Whoever drives the generator watches the
    deadline; a row that cannot wait for its next attempt gets what `timed_out` says of the number of
    attempts and the last error.
    """
    starts = range(0, outcomes.rows, most_rows)
    todo = [(first, min(most_rows, outcomes.rows - first), True) for first in reversed(starts)]
    while todo:
        first, rows, whole = todo.pop()
        attempt = 1
        while True:
            result, error = yield Call(first, rows, attempt)
            if error is None:
                try:
                    values, failures = _checked(result, rows, outcomes.codec)
                    outcomes.settle(first, values, failures, attempt)
                    break
                except WrongResult as wrong:
                    error = wrong
                except Exception as strange:
                    # Whatever Arrow makes of an object that says it is an array.
                    why = f"expected an array of {spelled(outcomes.codec.type)}: {describe(strange)}"
                    error = WrongResult(ErrorCode.RESULT_TYPE, why)
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


def _row_error(error: BaseException, attempts: int, retry: RetryPolicy, errors_before: int) -> RowError:
    if isinstance(error, WrongResult):
        return RowError(error.code, str(error), attempts)
    traced = errors_before < TRACEBACKS_PER_BATCH
    return row_error(error, attempts, retryable=retry.worthwhile(error), with_traceback=traced)


def _checked(result: Any, rows: int, codec: Codec) -> tuple[pa.Array, Failures]:
    """The result as an array of the declared type, and the rows whose value does not fit it.

    Arrow arrays, and what pa.array makes one of without looking at each value, are converted where
    that keeps every value; lists are taken value by value. Raises WrongResult.
    """
    type_ = codec.type
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    elif isinstance(result, np.ndarray) or hasattr(result, "__arrow_array__") or hasattr(result, "__arrow_c_array__"):
        try:
            result = pa.array(result)
        except Exception:
            result = list(result)
    if not isinstance(result, (pa.Array, list, tuple)):
        kind = type(result).__name__
        message = f"expected an array of {spelled(type_)}, got a value of type {kind}"
        raise WrongResult(ErrorCode.RESULT_TYPE, message)
    if len(result) != rows:
        raise WrongResult(ErrorCode.RESULT_LENGTH, f"expected {rows} values, got {len(result)}")
    if not isinstance(result, pa.Array):
        return encode_rows(codec, result)
    if result.type == type_:
        return result, {}
    if _keeps_values(result.type, type_):
        try:
            return result.cast(type_), {}
        except pa.ArrowException:
            pass  # some value does not fit; find out which
    try:
        return encode_rows(codec, result.to_pylist())
    except (ValueError, OverflowError) as error:
        raise WrongResult(ErrorCode.RESULT_TYPE, f"expected {spelled(type_)}, got {spelled(result.type)}") from error


def _keeps_values(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast means the same values: wider, or narrower of the same kind."""
    same_kind = any(
        check(source) and check(target) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )
    return same_kind or accepts(target, normalized(source)) is not None
