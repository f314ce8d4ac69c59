"""Breaker stops calls to a service that only fails, and tests it with one call at intervals.

No library is used: when pybreaker tries again, it lets every waiting caller through at once, which can
overload a service that is recovering.
"""

from enum import Enum, auto

__all__ = ["Breaker"]


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class Breaker:
    """A state machine without a clock: closed, open after consecutive failures, half open during a test call."""

    def __init__(self, failures: int, delay: float) -> None:
        """After `failures` consecutive failures the breaker opens for `delay` seconds."""
        self._most, self._delay = failures, delay
        self._state = _State.CLOSED
        self._failures = 0
        self._until = 0.0
        self._probe_until = 0.0

    @property
    def closed(self) -> bool:
        return self._state is _State.CLOSED

    def ask(self, now: float) -> float:
        """Ask before a call. Returns 0.0 if the call may be made, else the seconds after which to ask again."""
        if self._state is _State.CLOSED:
            return 0.0
        if self._state is _State.OPEN and now >= self._until:
            self._state = _State.HALF_OPEN
            # A test call that never ends must not keep the breaker half open forever.
            self._probe_until = now + self._delay
            return 0.0
        if self._state is _State.HALF_OPEN and now >= self._probe_until:
            self._probe_until = now + self._delay
            return 0.0
        until = self._until if self._state is _State.OPEN else self._probe_until
        return max(until - now, 0.001)

    def succeeded(self) -> None:
        """Record a call that succeeded. While the breaker is open, it does not close it."""
        self._failures = 0
        if self._state is _State.HALF_OPEN:
            self._state = _State.CLOSED

    def failed(self, now: float) -> bool:
        """Record a call that failed. Returns whether that opened the breaker."""
        self._failures += 1
        if self._state is _State.OPEN or (self._state is _State.CLOSED and self._failures < self._most):
            return False
        self._state, self._until = _State.OPEN, now + self._delay
        return True
