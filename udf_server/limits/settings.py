"""GuardSettings are the operator's settings in `[guards.NAME]` of the server's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import starmap

from remote_udf.effective_options import canonical, resolve
from remote_udf.errors import InvalidOption
from remote_udf.option_tables import mapping, option, table_of
from remote_udf.option_values import ValueReader, choice, count, duration, switch
from udf_server.base.errors import InvalidConfig
from udf_server.limits.rates import CALLS, RateLimit, paced, parse_bursts, parse_rates

__all__ = ["GuardSettings", "WithoutCoordination"]


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
