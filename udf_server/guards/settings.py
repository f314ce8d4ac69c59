"""GuardSettings are the operator's settings in `[guards.NAME]` of the server's file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from limits import RateLimitItem, parse

from remote_udf.durations import parse_seconds
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
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in table.items():
            attribute = key.replace("-", "_")
            source = f"setting guards.{name}, {key!r}"
            if attribute not in known:
                shown = ", ".join(sorted(each.replace("_", "-") for each in known))
                raise InvalidConfig(f"{source}: unknown (known: {shown})")
            try:
                values[attribute] = _PARSERS[attribute](value)
            except (ValueError, TypeError) as error:
                raise InvalidConfig(f"{source}: {value!r} is not valid: {error}") from error
        settings = cls(**values)
        if settings.latency_goal is not None and not settings.adaptive:
            raise InvalidConfig(f"setting guards.{name}: latency-goal needs adaptive = true")
        if settings.rate_storage_variable is not None and settings.rate is None:
            raise InvalidConfig(f"setting guards.{name}: rate-storage-variable needs a rate")
        return settings


def _count(value: Any) -> int:
    number = int(value)
    if isinstance(value, (bool, float)) or number < 1:
        raise ValueError("a whole number of at least 1 is expected")
    return number


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is expected")
    return value


def _seconds(value: Any) -> float:
    seconds = parse_seconds(value)
    if not 0 < seconds < float("inf"):
        raise ValueError("a time longer than zero is expected")
    return seconds


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "max_concurrency": _count,
    "adaptive": _switch,
    "latency_goal": _seconds,
    "rate": lambda value: parse(str(value)),
    "rate_storage_variable": str,
    "breaker_failures": _count,
    "breaker_delay": _seconds,
}
