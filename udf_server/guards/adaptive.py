"""AdaptiveLimit finds the number of concurrent calls of this process that a service can handle.

It uses additive increase and multiplicative decrease.
"""

__all__ = ["ADAPTIVE_MOST", "AdaptiveLimit"]

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
