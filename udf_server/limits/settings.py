"""GuardSettings are the operator's settings in `[guards.NAME]` of the server's file, with the rates that they name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import starmap

from remote_udf.effective_options import canonical, resolve
from remote_udf.errors import InvalidOption
from remote_udf.option_tables import mapping, option, table_of
from remote_udf.option_values import ValueReader, choice, count, duration, switch
from udf_server.base.errors import InvalidConfig

__all__ = ["BURST_PART", "CALLS", "GuardSettings", "RateLimit", "WithoutCoordination", "parse_rates"]

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


class WithoutCoordination(StrEnum):
    """What happens to calls while the coordination of several servers is unavailable."""

    FAIL_CLOSED = "fail-closed"
    """They fail as RetryableError."""
    FAIL_OPEN = "fail-open"
    """They are made; each process applies the whole limit alone."""


def _amount(unit: str, amount: float) -> str:
    return f"{amount:.15g}" if unit == CALLS else f"{amount:.15g} {unit}"


_rates = ValueReader(parse_rates, lambda rates: ", ".join(map(str, rates)), "str")
_bursts = ValueReader(parse_bursts, lambda bursts: ", ".join(starmap(_amount, bursts.items())), "str")


@dataclass(frozen=True)
class GuardSettings:
    """Guards of one scalar function, over all streams of a process, or of all servers that share a coordination.

    A guard that is None, empty or False is disabled.
    """

    max_concurrency: int | None = option(count(1), None, "Maximum number of concurrent calls.")
    adaptive: bool = option(
        ValueReader(switch.read, str, switch.accepts), False,
        "Whether the number of concurrent calls of a process adapts: it begins low, rises by one per successful round, "
        "and is halved after a failure.",
    )  # fmt: skip
    latency_goal: float | None = option(
        duration, None, "Seconds. With `adaptive`, a call that takes longer counts as failed."
    )
    rate: tuple[RateLimit, ...] = option(
        _rates, (), "Maximum amounts per time, such as '100/second' or '90000 tokens/minute'. All of them hold."
    )
    burst: Mapping[str, float] = mapping(
        _bursts,
        "How much of a rate may begin at once, in its unit: '50', '9000 tokens'. The rest begins at the pace of the "
        "rate. By default a tenth of the rate, and at least one call; rates over more than a minute have no pace by "
        "default.",
    )
    breaker_failures: int | None = option(
        count(1), None, "Number of consecutive failures in a process after which its calls stop for `breaker_delay`."
    )
    breaker_delay: float = option(duration, 10.0, "Seconds until one test call is made.")
    without_coordination: WithoutCoordination = option(
        choice(WithoutCoordination), WithoutCoordination.FAIL_CLOSED,
        "What happens to calls while the coordination of several servers is unavailable.",
    )  # fmt: skip

    @classmethod
    def parse(cls, name: str, table: Mapping[str, str | float | Sequence[str]]) -> "GuardSettings":
        """The settings of a table. Raises InvalidConfig, which names the function and the key."""
        source = f"setting guards.{name}"
        if "rate-storage-variable" in table or "rate_storage_variable" in table:
            raise InvalidConfig(f"{source}: rate-storage-variable no longer exists; set coordination_url instead")
        try:
            texts = canonical(table, source=source, known=(table_of(cls),))
        except InvalidOption as error:
            raise InvalidConfig(str(error)) from None
        settings = resolve(cls, texts)
        if settings.latency_goal is not None and not settings.adaptive:
            raise InvalidConfig(f"{source}: latency-goal needs adaptive = true")
        try:
            return replace(settings, rate=paced(settings.rate, settings.burst))
        except InvalidOption as error:
            raise InvalidConfig(f"{source}: burst: {error}") from None

    @property
    def has_sums(self) -> bool:
        """Whether processes can share anything: breaker and adaptive limit are learned by each process for itself."""
        return self.max_concurrency is not None or bool(self.rate)

    def __str__(self) -> str:
        """The settings that differ from their defaults, by name."""
        default = GuardSettings()
        values = [(each, getattr(self, each.attribute)) for each in table_of(GuardSettings).values()]
        changed = [(each, value) for each, value in values if value != getattr(default, each.attribute)]
        return ", ".join(f"{each.name} = {each.format(value)}" for each, value in changed)
