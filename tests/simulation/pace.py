"""Pace looks at the calls of a rate: how many begin at once, and that the others begin at the pace of the rate."""

from collections.abc import Iterable

from tests.simulation.oracles import Violation
from udf_server.limits.settings import RateLimit

__all__ = ["Pace"]

RETURNED = 0.5
"""Units that come back are owed no more, so this part of a burst may begin in addition: it was leased and not used."""
LATE_SECONDS = 0.3
"""Calls that were allowed may begin together this much later: their process has leased units, or its loop is busy."""


class Pace:
    """The calls of one process, or of all that share the rates. Each takes one unit."""

    def __init__(self, rates: Iterable[RateLimit]) -> None:
        self._rates = [rate for rate in rates if rate.burst is not None]
        self._due = [float("-inf")] * len(self._rates)

    def began(self, now: float, where: str, *, late: bool) -> None:
        """A call begins. If it was allowed `late`, it may begin with others. Raises Violation."""
        for index, rate in enumerate(self._rates):
            assert rate.burst is not None
            pace = rate.seconds / rate.amount
            self._due[index] = due = max(self._due[index], now) + pace
            if due - now > (1 + RETURNED) * rate.burst * pace + LATE_SECONDS and not late:
                raise Violation(f"{where}: calls begin {due - now:g} s before the pace of {rate} allows them")
