"""Options of early firing, late firing and allowed lateness (FLIP-392), validated; `Firing` implements them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.effective_options import canonical, resolve
from remote_udf.option_tables import Option, option, table_of
from remote_udf.option_values import ValueReader, switch
from spark_client.base.errors import PlanError
from spark_client.base.options import EMIT_PREFIX
from spark_client.executor.aggregate.firing import EmitOptions

__all__ = ["EMIT_OPTIONS", "emit_options"]


def _delay(value: str | timedelta) -> float:
    if isinstance(value, str) and value.strip().startswith("-"):
        return -parse_seconds(value.strip().lstrip("-"))
    return parse_seconds(value)


def _shown_delay(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


_delays = ValueReader(_delay, _shown_delay, "Duration")


@dataclass(frozen=True)
class _Settings:
    early_fire_enabled: bool | None = option(
        switch, None, "Emit a window's value before its end. Default: true if `early-fire-delay` is set."
    )
    early_fire_delay: float | None = option(
        _delays, None,
        "`0 s`: emit with every micro-batch that has rows of the window. Otherwise: emit at this interval of "
        "processing time, starting with the first row of the key and window.",
    )  # fmt: skip
    late_fire_enabled: bool | None = option(
        switch, None, "Emit a window's value again for late rows. Default: true if `late-fire-delay` is set."
    )
    late_fire_delay: float | None = option(
        _delays, None, "Like `early-fire-delay`, after the window's end, starting with its first late row."
    )
    allow_lateness: float | None = option(
        _delays, None,
        "How far the watermark may be past a window's end while its late rows still count. Requires late fire; "
        "without it late rows are dropped. At least `late-fire-delay`.",
    )  # fmt: skip


EMIT_OPTIONS: Mapping[str, Option] = table_of(_Settings)
"""Options of `RemoteGrouping.emit` and of the session, by name; in Flink they are below `table.exec.emit`."""


def emit_options(given: Mapping[str, object], session: Mapping[str, str]) -> EmitOptions:
    """The options of a call, which override those of the session below EMIT_PREFIX.

    Raises InvalidOption for unknown or malformed options, PlanError for options that contradict each other.
    """
    merged: dict[str, str] = {}
    for key, value in session.items():
        if key.startswith(EMIT_PREFIX + "."):
            name = key.removeprefix(EMIT_PREFIX + ".").replace("-fire.", "-fire-")
            merged |= canonical({name: value}, source=f"session setting {key}", known=(EMIT_OPTIONS,))
    merged |= canonical(given, source="emit of a window aggregate", known=(EMIT_OPTIONS,))
    settings = resolve(_Settings, merged)
    early = _fire(settings.early_fire_enabled, settings.early_fire_delay, "early-fire")
    late = _fire(settings.late_fire_enabled, settings.late_fire_delay, "late-fire")
    lateness = settings.allow_lateness or 0.0
    if lateness < 0:
        raise PlanError(f"allow-lateness {_shown_delay(lateness)} is negative")
    if late is None:
        return EmitOptions(early)
    if lateness == 0:
        raise PlanError(
            "late fire, the 'AFTER WATERMARK' emit strategy, requires set 'allow-lateness' to be longer than zero"
        )
    if lateness * 1000 < late:
        raise PlanError(
            f"allow-lateness {format_seconds(lateness)} is shorter than late-fire-delay {format_seconds(late / 1000)}: "
            "no late fire would occur"
        )
    return EmitOptions(early, late, round(lateness * 1000))


def _fire(enabled: bool | None, delay: float | None, name: str) -> int | None:
    """The delay in milliseconds; None if it is off."""
    if not (delay is not None if enabled is None else enabled):
        return None
    if delay is None or delay < 0:
        raise PlanError(
            f"{name.capitalize()} delay should not be null or negative value when {name} is enabled; set "
            f"'{name}-delay', found {'none' if delay is None else _shown_delay(delay)}"
        )
    return round(delay * 1000)
