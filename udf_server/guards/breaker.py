"""Breaker stops calls to a service that only fails, and tests it with one call at intervals.

No library is used: when pybreaker tries again, it lets every waiting caller through at once, which can
overload a service that is recovering.
"""

__all__ = ["Breaker"]


class Breaker:
    """A state machine without a clock: closed, open after consecutive failures, and half open when the delay is over.

    Each process has one and learns for itself, as with Envoy and resilience4j. While it is open, the outcomes of calls
    that still run change nothing. When it is half open, the next outcome decides, whether
    it is that of a test call or of one that began before.
    """

    def __init__(self, failures: int, delay: float) -> None:
        """After `failures` consecutive failures the breaker opens for `delay` seconds."""
        self._most, self._delay = failures, delay
        self._failures = 0
        self._until: float | None = None
        """When it becomes half open; None while it is closed."""
        self._probe_until = 0.0

    @property
    def closed(self) -> bool:
        return self._until is None

    def ask(self, now: float) -> float:
        """Ask before a call. Returns 0.0 if the call may be made, else the seconds after which to ask again."""
        if self._until is None:
            return 0.0
        if (left := max(self._until, self._probe_until) - now) > 0:
            return max(left, 0.001)
        # A test call that never ends must not keep the breaker half open forever.
        self._probe_until = now + self._delay
        return 0.0

    def succeeded(self, now: float) -> None:
        """Record a call that succeeded."""
        self._failures = 0
        if self._until is not None and now >= self._until:
            self._until = None

    def failed(self, now: float) -> bool:
        """Record a call that failed. Returns whether that opened the breaker."""
        self._failures += 1
        if now < self._until if self._until is not None else self._failures < self._most:
            return False
        self._until, self._probe_until = now + self._delay, 0.0
        return True
