"""GuardSettings are the operator's settings in `[guards.NAME]` of the server's file; CallCosts apply their rates."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import starmap

from remote_udf.effective_options import canonical, resolve
from remote_udf.errors import InvalidOption
from remote_udf.functions import FunctionKind
from remote_udf.option_tables import mapping, option, table_of
from remote_udf.option_values import ValueReader, choice, count, duration, switch
from udf_server.base.errors import InvalidConfig, InvalidCost
from udf_server.declaring.functions import Function

__all__ = ["BURST_PART", "CALLS", "CallCosts", "GuardSettings", "RateLimit", "WithoutCoordination", "parse_rates"]

log = logging.getLogger(__name__)

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


class CallCosts:
    """What calls of one function cost, in the units of its rates."""

    def __init__(self, key: str, rates: Sequence[RateLimit]) -> None:
        self._key, self._rates = key, rates
        self._units = {rate.unit for rate in rates} - {CALLS}
        self.counts_units = bool(self._units)
        """Whether a rate counts another unit than calls."""
        self._compared = False
        """Whether the units of an estimate were compared with those of the rates."""

    def require(self, function: Function) -> None:
        """Raises InvalidConfig if it is not a scalar function, or if a rate has a unit that its calls do not cost."""
        if function.spec.kind is not FunctionKind.SCALAR:
            raise InvalidConfig(
                f"setting guards: {self._key} is an {function.spec.kind} function; guards are for scalar functions"
            )
        if self._units and function.cost is None:
            raise InvalidConfig(
                f"setting guards, function {self._key}: rate counts {', '.join(sorted(self._units))}, but the function "
                "is declared without `cost`, which says how much a call is going to cost"
            )

    def of(self, estimate: Mapping[str, float]) -> Sequence[float]:
        """What a call takes of each rate, of which this is expected. Raises InvalidCost if it never fits."""
        if not self._compared and estimate:
            self._compare(estimate)
        found = [1.0 if rate.unit == CALLS else estimate.get(rate.unit, 0.0) for rate in self._rates]
        for rate, amount in zip(self._rates, found, strict=True):
            if amount > rate.amount:
                raise InvalidCost(
                    f"function {self._key}: cost: a call of {amount:g} {rate.unit} never fits the rate {rate}"
                )
        return found

    def missed(self, costs: Sequence[float], spent: Mapping[str, float]) -> Sequence[float]:
        """What a call has spent beyond what it took of each rate; less than 0 if it has spent less."""
        return [spent.get(rate.unit, cost) - cost for rate, cost in zip(self._rates, costs, strict=True)]

    def _compare(self, estimate: Mapping[str, float]) -> None:
        """Warn if the first estimate lacks a unit of the rates: such a rate bounds nothing."""
        self._compared = True
        if missing := sorted(self._units - estimate.keys()):
            log.warning(
                "a rate counts a unit that `cost` of the function has not returned: use one name in both",
                extra={"function": self._key, "rate": ", ".join(missing), "cost": ", ".join(sorted(estimate))},
            )
