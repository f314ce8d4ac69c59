"""RateLimit is an amount of a unit per time, and what may begin of it at once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from remote_udf.errors import InvalidOption

__all__ = ["BURST_PART", "CALLS", "RateLimit", "amounts_of", "paced", "parse_bursts", "parse_rates"]

CALLS = "calls"
"""The unit of a rate that names none."""
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_AMOUNT = r"\s*(\d[\d_]*(?:\.\d+)?)\s*([A-Za-z][\w-]*)?\s*"
_TIME = r"(?:/|\bper\b)\s*(0*[1-9]\d*)?\s*(second|minute|hour|day)s?\s*"
PACED_SECONDS = 60
"""The longest window that is paced without a `burst`."""
BURST_PART = 10
"""Without a `burst`, the amount divided by this number may begin at once, and at least one call."""


@dataclass(frozen=True)
class RateLimit:
    """At most `amount` of the unit in any `seconds`."""

    amount: float
    unit: str
    seconds: int
    burst: float | None = None
    """How much may begin at once. The rest begins at the pace of the rate; None if there is no pace."""

    def __str__(self) -> str:
        known = {seconds: name for name, seconds in _SECONDS.items()}
        unit = "" if self.unit == CALLS else f" {self.unit}"
        return f"{self.amount:.15g}{unit}/{known.get(self.seconds) or f'{self.seconds} seconds'}"


def parse_rates(value: str | Sequence[str]) -> tuple[RateLimit, ...]:
    """One rate, several with commas, or a list of them. Raises InvalidOption."""
    found = []
    for amount, unit, match in _amounts(value, _TIME, "a rate, such as '100/second' or '90000 tokens/minute'"):
        found.append(RateLimit(amount, unit, int(match[3] or 1) * _SECONDS[match[4]]))
    if len({(rate.unit, rate.seconds) for rate in found}) < len(found) or not found:
        raise InvalidOption(f"{value!r} has two rates of one unit and time, or none")
    return tuple(found)


def parse_bursts(value: str | Sequence[str]) -> Mapping[str, float]:
    """An amount, several with commas, or a list of them, by unit. Raises InvalidOption."""
    found: dict[str, float] = {}
    for amount, unit, _ in _amounts(value, "", "an amount, such as '50' or '9000 tokens'"):
        if unit in found:
            raise InvalidOption(f"{value!r} has two amounts of {unit}")
        found[unit] = amount
    return found


def _amounts(value: object, behind: str, what: str) -> Iterator[tuple[float, str, re.Match[str]]]:
    """Each amount of more than 0 with its unit, and the match of the text, which has this pattern behind them."""
    for text in [str(each) for each in value] if isinstance(value, list | tuple) else str(value).split(","):
        match = re.fullmatch(_AMOUNT + behind, text, re.ASCII)
        if match is None or not float(match[1]):
            raise InvalidOption(f"{text.strip()!r} is not {what}")
        yield float(match[1]), match[2] or CALLS, match


def paced(rates: Sequence[RateLimit], bursts: Mapping[str, float]) -> tuple[RateLimit, ...]:
    """The rates with what may begin at once: by unit, or by default. Raises InvalidOption if no rate has a unit."""
    if missing := sorted(bursts.keys() - {rate.unit for rate in rates}):
        raise InvalidOption(f"{', '.join(missing)}: no rate counts them")
    return tuple(replace(rate, burst=_burst(rate, bursts.get(rate.unit))) for rate in rates)


def _burst(rate: RateLimit, given: float | None) -> float | None:
    if given is not None:
        return min(given, rate.amount)
    if rate.seconds > PACED_SECONDS:
        return None
    return max(rate.amount / BURST_PART, 1.0 if rate.unit == CALLS else 0.0)


def amounts_of(rates: Sequence[RateLimit], estimate: Mapping[str, float]) -> tuple[float, ...]:
    """What one call takes of each rate."""
    return tuple(1.0 if rate.unit == CALLS else estimate.get(rate.unit, 0.0) for rate in rates)
