"""HedgeBudget decides after what time a slow call is made a second time, and how often that may be done."""

import collections
import threading
import time
from collections.abc import Callable

__all__ = ["LEARN_CALLS", "HedgeBudget"]

OVERLOAD_SECONDS = 1.0
"""After a sign of overload, nothing is sent a second time for this time."""
SAMPLES = 500
"""Number of durations from which the delay is learned."""
LEARN_CALLS = 50
"""The delay is computed again after this number of durations. Before that, nothing is sent a second time."""
LEARNED_QUANTILE = 0.95
MOST_SAVED = 100.0
"""What may be sent a second time at once after a long time in which nothing was."""


class HedgeBudget:
    """The hedges of one function. Safe to use from any thread."""

    def __init__(self, after: float | None, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`after` is the delay in seconds; None to learn it. `share` is the most hedges per call."""
        self.after, self._learns, self._share, self._clock = after, after is None, share, clock
        """`after` is None until it is learned."""
        self._saved = 0.0
        """Number of hedges that may be sent now."""
        self._durations: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self._new = 0
        self._overloaded_until = 0.0
        self._lock = threading.Lock()

    def begun(self) -> None:
        """Count a call, which may not be a hedge."""
        with self._lock:
            self._saved = min(self._saved + self._share, MOST_SAVED)

    def ended(self, seconds: float) -> None:
        """Learn from the duration of a call, hedged or not."""
        if not self._learns:
            return
        with self._lock:
            self._durations.append(seconds)
            self._new += 1
            if self._new >= LEARN_CALLS:
                self._new = 0
                ordered = sorted(self._durations)
                self.after = ordered[int(LEARNED_QUANTILE * (len(ordered) - 1))]

    def overloaded(self, seconds: float | None = None) -> None:
        """Note a sign of overload. `seconds` is the time for which it asks; a later sign does not shorten it."""
        until = self._clock() + max(OVERLOAD_SECONDS, seconds or 0.0)
        with self._lock:
            self._overloaded_until = max(self._overloaded_until, until)

    @property
    def is_overloaded(self) -> bool:
        """Whether there was a sign of overload lately."""
        return self._clock() < self._overloaded_until

    def take(self) -> bool:
        """Take a hedge from those that may be sent now. Returns whether there was one."""
        if self.is_overloaded:
            return False
        with self._lock:
            if self._saved < 1.0:
                return False
            self._saved -= 1.0
        return True
