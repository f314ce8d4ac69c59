"""Decides whether a row is retried, and when. It does no I/O, so that both threads and coroutines can use it."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from remote_udf.effective_options import ScalarOptions
from remote_udf.options import RetryStrategy
from remote_udf.outcomes import RowError
from udf_server.base.call_scope import EmptyResult, NotCalled
from udf_server.base.errors import BudgetSpent, Failure, RetryableError
from udf_server.base.failures import describe, row_error

__all__ = ["Attempts", "RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """FLIP-400's retry strategies. `random` draws the jitter; tests pass one with a seed."""

    options: ScalarOptions
    random: Random

    def worthwhile(self, error: BaseException) -> bool:
        """Whether `retry-on` names the class of the error or one of its base classes."""
        if isinstance(error, Failure):
            return error.retryable
        if isinstance(error, EmptyResult):
            return True
        if isinstance(error, BudgetSpent):
            return False
        wanted = self.options.retry_on
        return any(kind.__name__ in wanted for kind in type(error).__mro__)

    def delay(self, error: BaseException, attempts: int) -> float | None:
        """Seconds until the next attempt after `attempts` have failed, or None if that was the last.

        The delay is at least the `retry_after` of a RetryableError or a Failure.
        """
        options = self.options
        if options.retry_strategy is RetryStrategy.NONE or attempts >= options.max_attempts:
            return None
        if not self.worthwhile(error):
            return None
        if options.retry_strategy is RetryStrategy.FIXED_DELAY:
            delay = options.fixed_delay
        else:
            bound = min(options.max_delay, options.initial_delay * 2.0 ** min(attempts - 1, 60))
            delay = self.random.uniform(0.0, bound)
        hint = error.retry_after if isinstance(error, (RetryableError, Failure)) else None
        return max(delay, hint or 0.0)


class Attempts:
    """The attempts at one row. Create it after the first attempt has failed.

    Pass the error of each attempt to `after`, which returns what to do next. No exception is kept here, because its
    traceback refers to the frame of the caller, and that frame refers to this object.
    """

    def __init__(
        self,
        retry: RetryPolicy,
        deadline: float,
        clock: Callable[[], float],
        timeout_error: Callable[[int, str], RowError],
    ) -> None:
        self.made = 1
        self.deadline = deadline
        self._retry = retry
        self._clock = clock
        self._timeout_error = timeout_error
        self._last = ""

    def after(self, error: BaseException, *, with_traceback: bool) -> float | RowError | EmptyResult:
        """Seconds to wait before the next attempt, or the outcome of the row: its error, or its empty result."""
        if isinstance(error, NotCalled):
            return self.timed_out(error)
        delay = self._retry.delay(error, self.made)
        if delay is None and isinstance(error, EmptyResult):
            return error
        if delay is None:
            retryable = self._retry.worthwhile(error)
            return row_error(error, self.made, retryable=retryable, with_traceback=with_traceback)
        self._last = describe(error)
        return delay if self._clock() + delay < self.deadline else self.timed_out()

    def timed_out(self, error: BaseException | None = None) -> RowError:
        """The outcome of the row if its deadline passes during an attempt, which raises `error`, or before the next."""
        if isinstance(error, NotCalled):
            return error.outcome(self.made - 1, lambda made: self._timeout_error(made, self._last))
        return self._timeout_error(self.made, self._last)
