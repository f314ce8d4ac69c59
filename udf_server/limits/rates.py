"""RateLimit is an amount of a unit per time, and MovingWindow counts it in this process."""

import bisect
import collections
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from remote_udf.errors import InvalidOption

__all__ = ["CALLS", "MovingWindow", "RateLimit", "amounts_of", "parse_rates"]

CALLS = "calls"
"""The unit of a rate that names none."""
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_RATE = re.compile(
    r"\s*(\d[\d_]*(?:\.\d+)?)\s*([A-Za-z][\w-]*)?\s*(?:/|\bper\b)\s*(\d+)?\s*(second|minute|hour|day)s?\s*", re.ASCII
)
MERGED = 1_000
"""A window counts amounts together that are closer than its length divided by this number."""


@dataclass(frozen=True)
class RateLimit:
    """At most `amount` of the unit in any `seconds`."""

    amount: float
    unit: str
    seconds: int

    def __str__(self) -> str:
        known = {seconds: name for name, seconds in _SECONDS.items()}
        unit = "" if self.unit == CALLS else f" {self.unit}"
        return f"{self.amount:.15g}{unit}/{known.get(self.seconds) or f'{self.seconds} seconds'}"


def parse_rates(value: Any) -> tuple[RateLimit, ...]:
    """One rate, several with commas, or a list of them. Raises InvalidOption."""
    texts = [str(each) for each in value] if isinstance(value, list | tuple) else str(value).split(",")
    found = []
    for text in texts:
        match = _RATE.fullmatch(text)
        if match is None or not float(match[1]) or int(match[3] or 1) == 0:
            raise InvalidOption(f"{text.strip()!r} is not a rate, such as '100/second' or '90000 tokens/minute'")
        found.append(RateLimit(float(match[1]), match[2] or CALLS, int(match[3] or 1) * _SECONDS[match[4]]))
    if len({(rate.unit, rate.seconds) for rate in found}) < len(found) or not found:
        raise InvalidOption(f"{value!r} has two rates of one unit and time, or none")
    return tuple(found)


class MovingWindow:
    """The amounts of one rate in its last seconds. It may exceed the rate only by `settle`."""

    def __init__(self, rate: RateLimit, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._times: collections.deque[float] = collections.deque()
        self._amounts: collections.deque[float] = collections.deque()
        self._sum = 0.0
        self._ready = 0.0
        """What calls have taken that were told to begin, and have not begun yet."""

    def take(self, amount: float) -> None:
        """Count an amount until `begin` counts it from then on."""
        self._ready += amount

    def begin(self, amount: float) -> None:
        """Count an amount that was taken from now on, because its call begins."""
        self._ready = max(self._ready - amount, 0.0)
        self.settle(amount, 0.0)

    def wait(self, amount: float) -> float:
        """Seconds until the amount fits; 0.0 if it does now."""
        now, times, amounts = self._clock(), self._times, self._amounts
        while times and times[0] + self._rate.seconds <= now:
            self._sum -= amounts.popleft()
            times.popleft()
        if not times:
            self._sum = 0.0  # the sum of many fractions is not exact
        left = self._sum + self._ready + amount - self._rate.amount
        if left <= 1e-9 * self._rate.amount or not (times or self._ready):
            return 0.0
        for time, each in zip(times, amounts, strict=True):
            left -= each
            if left <= 1e-9 * self._rate.amount:
                return time + self._rate.seconds - now
        return float(self._rate.seconds)

    def settle(self, amount: float, since: float) -> None:
        """Count an amount now; a negative one takes back what was counted at `since` or later.

        The oldest amounts from then on are taken back: those that are left count longer than if they were older. What
        is out of the window is counted no more, and must not be taken from other calls.
        """
        if amount < 0:
            self._take_back(-amount, since)
        if amount <= 0:
            return
        now = self._clock()
        self._sum += amount
        if len(self._times) > MERGED and now - self._times[-2] < self._rate.seconds / MERGED:
            # The amounts count until the last of them is out of the window, so the rate holds.
            self._times[-1] = now
            self._amounts[-1] += amount
        else:
            self._times.append(now)
            self._amounts.append(amount)

    def _take_back(self, amount: float, since: float) -> None:
        if since + self._rate.seconds <= self._clock():
            return
        for index in range(bisect.bisect_left(self._times, since), len(self._times)):
            taken = min(self._amounts[index], amount)
            self._amounts[index] -= taken
            self._sum -= taken
            amount -= taken
            if amount <= 0:
                return


def amounts_of(rates: Sequence[RateLimit], estimate: dict[str, float]) -> tuple[float, ...]:
    """What one call takes of each rate."""
    return tuple(1.0 if rate.unit == CALLS else estimate.get(rate.unit, 0.0) for rate in rates)
