"""When to call again for a row, and after which delay."""

from dataclasses import dataclass
from random import Random

from remote_udf.options import RetryStrategy, ScalarOptions
from udf_server.base.errors import RetryableError

__all__ = ["RetryPolicy"]


@dataclass(frozen=True)
class RetryPolicy:
    """FLIP-400's retry strategies. `random` draws the jitter; tests pass one with a seed."""

    options: ScalarOptions
    random: Random

    def worthwhile(self, error: BaseException) -> bool:
        """Whether the error's class, or one it derives from, is among `retry-on`."""
        wanted = self.options.retry_on
        return any(kind.__name__ in wanted for kind in type(error).__mro__)

    def delay(self, error: BaseException, attempts: int) -> float | None:
        """Seconds until the next attempt after `attempts` have failed, or None if that was the last.

        A RetryableError's `retry_after` is the least the delay may be.
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
        hint = error.retry_after if isinstance(error, RetryableError) else None
        return max(delay, hint or 0.0)
