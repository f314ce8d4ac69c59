"""The breaker and the adaptive limit of one process, and what a call tells them about the service behind its function.

No library is used for the breaker: when pybreaker tries again, it lets every waiting caller through at once, which can
overload a service that is recovering. The adaptive limit uses additive increase and multiplicative decrease.

One rule says what calls tell. An error means that the service has failed if another attempt may succeed; any other
error belongs to its row. A call for many rows names its failed rows, as values or by RowErrors. It counts once: it has
failed if all of its rows have failed so, and it shows an overload if any has.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from udf_server.base.errors import Failure, RetryableError, RowErrors
from udf_server.limits.settings import GuardSettings

__all__ = [
    "ADAPTIVE_MOST",
    "TIMED_OUT",
    "WORKED",
    "AdaptiveLimit",
    "Breaker",
    "CallOutcome",
    "Learned",
    "of_error",
    "of_result",
]


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


class Breaker:
    """A state machine without a clock: closed, open after consecutive failures, and half open when the delay is over.

    Each process has one and learns for itself, as with Envoy and resilience4j. While it is open, the outcomes of calls
    that still run change nothing. When it is half open, the next outcome decides, whether it is that of a test call or
    of one that began before.
    """

    def __init__(self, failures: int, delay: float) -> None:
        """After `failures` consecutive failures the breaker opens for `delay` seconds."""
        self._most, self._delay = failures, delay
        self.closed = True
        """An attribute, because every call looks at it."""
        self._failures = 0
        self._until = self._probe_until = 0.0
        """When it becomes half open, while it is not closed; and until when a test call may take."""

    def ask(self, now: float) -> float:
        """Ask before a call. Returns 0.0 if the call may be made, else the seconds after which to ask again."""
        if self.closed:
            return 0.0
        if (left := max(self._until, self._probe_until) - now) > 0:
            return max(left, 0.001)
        # A test call that never ends must not keep the breaker half open forever.
        self._probe_until = now + self._delay
        return 0.0

    def succeeded(self, now: float) -> None:
        """Record a call that succeeded."""
        self._failures = 0
        if not self.closed and now >= self._until:
            self.closed = True

    def failed(self, now: float) -> bool:
        """Record a call that failed. Returns whether that opened the breaker."""
        self._failures += 1
        if self._failures < self._most if self.closed else now < self._until:
            return False
        self.closed, self._until, self._probe_until = False, now + self._delay, 0.0
        return True


ADAPTIVE_MOST = 1_000
"""Maximum number of concurrent calls if `adaptive` is set without `max_concurrency`."""
FIRST = 8.0


class AdaptiveLimit:
    """The limit, without I/O. A round is as many calls as the limit allows.

    If the calls of a round succeed and the limit is reached, it rises by one. If a call fails, the limit is halved,
    but only once per round, because the calls of a round fail together.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = min(FIRST, self._most)
        self._spared = 0.0
        """Number of calls that were in flight when the limit was last halved: their failures are ignored."""

    @property
    def limit(self) -> int:
        return int(self._limit)

    def succeeded(self, in_use: int) -> None:
        """Record a call that succeeded while `in_use` calls, including this one, were in flight."""
        self._spared = max(self._spared - 1, 0.0)
        if in_use >= self.limit:
            self._limit = min(self._limit + 1.0 / self._limit, self._most)

    def failed(self, in_use: int) -> None:
        """Record a call that failed or was too slow."""
        if self._spared > 0:
            self._spared -= 1
            return
        self._limit = max(self._limit / 2.0, 1.0)
        self._spared = float(in_use - 1)


class Learned:
    """What this process has learned of the service behind a function, if its guard has a breaker or is adaptive."""

    def __init__(self, settings: GuardSettings) -> None:
        self._goal = math.inf if settings.latency_goal is None else settings.latency_goal
        most, failures = settings.max_concurrency or ADAPTIVE_MOST, settings.breaker_failures
        self._adaptive = AdaptiveLimit(most) if settings.adaptive else None
        self._breaker = None if failures is None else Breaker(failures, settings.breaker_delay)
        self.closed = True
        """Whether the breaker is closed, so that calls are made. An attribute, because every call looks at it."""
        self.limit: float = math.inf if self._adaptive is None else self._adaptive.limit
        """Number of calls that the adaptive limit lets run at once, another such attribute."""

    def ask(self, now: float) -> float:
        """Ask before a call. Returns 0.0 if the breaker allows it, else the seconds after which to ask again."""
        return 0.0 if self._breaker is None else self._breaker.ask(now)

    def ended(self, outcome: CallOutcome, seconds: float, in_use: int, now: float) -> bool:
        """Learn from a call that took so long, while `in_use` calls ran. Returns whether that opened the breaker."""
        if self._adaptive is not None:
            if seconds <= self._goal and not outcome.overloaded:
                self._adaptive.succeeded(in_use)
            else:
                self._adaptive.failed(in_use)
            self.limit = self._adaptive.limit
        if self._breaker is None:
            return False
        opened = False
        if outcome.went_well:
            self._breaker.succeeded(now)
        else:
            opened = self._breaker.failed(now)
        self.closed = self._breaker.closed
        return opened
