"""AdaptiveLimit: how many calls at once a service takes well; additive increase, multiplicative decrease."""

__all__ = ["AdaptiveLimit"]

FIRST = 8.0


class AdaptiveLimit:
    """Arithmetic only. A round is as many calls as the limit allows.

    The limit rises by one per round of calls that went well, as long as it is used, and is halved by a call
    that did not; but once per round only, for the calls of a round fail together.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._limit = min(FIRST, self._most)
        self._spared = 0.0
        """Calls that were in flight when it was last halved; their outcomes have no new information."""

    @property
    def limit(self) -> int:
        return int(self._limit)

    def succeeded(self, in_use: int) -> None:
        """A call went well while this many were in flight, itself among them."""
        self._spared = max(self._spared - 1, 0.0)
        if in_use >= self.limit:
            self._limit = min(self._limit + 1.0 / self._limit, self._most)

    def failed(self, in_use: int) -> None:
        """A call failed, or took longer than it should."""
        if self._spared > 0:
            self._spared -= 1
            return
        self._limit = max(self._limit / 2.0, 1.0)
        self._spared = float(in_use - 1)
