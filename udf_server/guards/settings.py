"""GuardSettings are the operator's settings in `[guards.NAME]` of the server's file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from limits import RateLimitItem, parse

from remote_udf.durations import format_seconds
from remote_udf.errors import InvalidOption
from remote_udf.option_values import Option, count, duration, switch
from remote_udf.options import canonical
from udf_server.base.errors import InvalidConfig

__all__ = ["GuardSettings"]


@dataclass(frozen=True)
class GuardSettings:
    """Guards of one `async def` function, over all streams of one server. A guard that is None or False is disabled."""

    max_concurrency: int | None = None
    """Maximum number of concurrent calls."""
    adaptive: bool = False
    """Whether the number of concurrent calls adapts: it begins low, rises by one per successful round, and is halved
    after a failure."""
    latency_goal: float | None = None
    """Seconds. With `adaptive`, a call that takes longer counts as failed."""
    rate: RateLimitItem | None = None
    """Maximum number of calls per time, such as "100/second"."""
    rate_storage_variable: str | None = None
    """Environment variable with the URL of a Redis that counts for all servers ("redis://...")."""
    breaker_failures: int | None = None
    """Number of consecutive failures after which calls stop for `breaker_delay`."""
    breaker_delay: float = 10.0
    """Seconds until one test call is made."""

    @classmethod
    def parse(cls, name: str, table: Mapping[str, Any]) -> "GuardSettings":
        """The settings of a table. Raises InvalidConfig, which names the function and the key."""
        source = f"setting guards.{name}"
        try:
            texts = canonical(table, source=source, known=(_OPTIONS,))
        except InvalidOption as error:
            raise InvalidConfig(str(error)) from None
        settings = cls(**{_OPTIONS[key].attribute: _OPTIONS[key].parse(text) for key, text in texts.items()})
        if settings.latency_goal is not None and not settings.adaptive:
            raise InvalidConfig(f"{source}: latency-goal needs adaptive = true")
        if settings.rate_storage_variable is not None and settings.rate is None:
            raise InvalidConfig(f"{source}: rate-storage-variable needs a rate")
        return settings


def _rate(value: Any) -> RateLimitItem:
    try:
        return parse(str(value))
    except ValueError:
        raise InvalidOption(f"{value!r} is not a rate, such as '100/second'") from None


_VALUES: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], str]]] = {
    "max-concurrency": (count(1), str),
    "adaptive": (switch, str),
    "latency-goal": (duration, format_seconds),
    "rate": (_rate, str),
    "rate-storage-variable": (str, str),
    "breaker-failures": (count(1), str),
    "breaker-delay": (duration, format_seconds),
}
# The defaults and the documentation are those of the attributes of GuardSettings.
_OPTIONS = {name: Option(name, *value, None, "") for name, value in _VALUES.items()}
