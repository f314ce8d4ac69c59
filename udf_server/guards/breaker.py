"""Breaker: stops calling a service that only fails, and tries it with one call now and then.

Written here because the libraries there are let every waiting caller through at once when they try again
(pybreaker), which is what a service that recovers needs least.
"""

from enum import Enum, auto

__all__ = ["Breaker"]


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class Breaker:
    """A state machine without a clock: closed, open after failures in a row, half open while one call tries."""

    def __init__(self, failures: int, delay: float) -> None:
        """Opens after this many failures in a row, for `delay` seconds."""
        self._most, self._delay = failures, delay
        self._state = _State.CLOSED
        self._failures = 0
        self._until = 0.0
        self._probe_until = 0.0

    @property
    def closed(self) -> bool:
        return self._state is _State.CLOSED

    def ask(self, now: float) -> float:
        """Before a call: 0.0 to make it, or seconds after which to ask again."""
        if self._state is _State.CLOSED:
            return 0.0
        if self._state is _State.OPEN and now >= self._until:
            self._state = _State.HALF_OPEN
            # A probe that never ends must not keep it half open forever.
            self._probe_until = now + self._delay
            return 0.0
        if self._state is _State.HALF_OPEN and now >= self._probe_until:
            self._probe_until = now + self._delay
            return 0.0
        until = self._until if self._state is _State.OPEN else self._probe_until
        return max(until - now, 0.001)

    def succeeded(self) -> None:
        """A call went well; one that was made before it opened tells nothing."""
        self._failures = 0
        if self._state is _State.HALF_OPEN:
            self._state = _State.CLOSED

    def failed(self, now: float) -> bool:
        """A call failed. Whether that opened it."""
        self._failures += 1
        if self._state is _State.OPEN or (self._state is _State.CLOSED and self._failures < self._most):
            return False
        self._state, self._until = _State.OPEN, now + self._delay
        return True
