"""CallOutcome is what one call tells about the service behind a function: does it work, is it overloaded?

One rule holds for all calls. An error means that the service has failed if another attempt may succeed; any other error
belongs to its row. A call for many rows names its failed rows, as values or by RowErrors. It counts once: it has failed
if all of its rows have failed so, and it shows an overload if any has.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from udf_server.base.errors import Failure, RetryableError, RowErrors

__all__ = ["TIMED_OUT", "WORKED", "CallOutcome", "of_error", "of_result"]


class CallOutcome(NamedTuple):
    """What a guard counts of a call."""

    went_well: bool
    """Whether the service answers: for the circuit breaker."""
    overloaded: bool
    """Whether the service could not handle a part of the call: for the adaptive limit."""
    retry_after: float
    """Seconds for which the service asks to wait; 0.0 if it does not."""


WORKED = CallOutcome(went_well=True, overloaded=False, retry_after=0.0)
TIMED_OUT = CallOutcome(went_well=False, overloaded=True, retry_after=0.0)


def of_result(result: Any) -> CallOutcome:
    """The outcome of a call for many rows that has returned."""
    # Nearly all calls return values alone, and of many rows there are few types.
    if not isinstance(result, (list, tuple)) or not any(issubclass(each, Failure) for each in set(map(type, result))):
        return WORKED
    return _of_rows((each for each in result if isinstance(each, Failure)), len(result))


def of_error(error: BaseException, rows: int = 1) -> CallOutcome:
    """The outcome of a call for this number of rows that has raised an exception."""
    if isinstance(error, RowErrors):
        return _of_rows(error.errors.values(), rows)
    return _of_rows((error,), 1)


def _of_rows(errors: Iterable[BaseException], rows: int) -> CallOutcome:
    found = [error for error in errors if _is_failure(error)]
    if not found:
        return WORKED
    return CallOutcome(len(found) < rows, overloaded=True, retry_after=max(map(_retry_after, found)))


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, Failure):
        return error.retryable
    return isinstance(error, (RetryableError, TimeoutError, OSError))


def _retry_after(error: BaseException) -> float:
    after = error.retry_after if isinstance(error, (RetryableError, Failure)) else None
    return after if after and 0 < after < math.inf else 0.0
