"""Options of early firing, late firing and allowed lateness (FLIP-392), validated; `Firing` implements them."""

from collections.abc import Mapping
from datetime import timedelta

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.effective_options import canonical
from remote_udf.option_values import Option, switch
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


def _option(name: str, doc: str, *, on_off: bool = False) -> Option:
    if on_off:
        return Option(name, switch, lambda on: str(on).lower(), None, doc)
    return Option(name, _delay, _shown_delay, None, doc)


_ALL = (
    _option(
        "early-fire-enabled", "Emit a window's value before its end. Default: true if `early-fire-delay` is set.",
        on_off=True,
    ),
    _option(
        "early-fire-delay",
        "`0 s`: emit with every micro-batch that has rows of the window. Otherwise: emit at this interval of "
        "processing time, starting with the first row of the key and window.",
    ),
    _option(
        "late-fire-enabled", "Emit a window's value again for late rows. Default: true if `late-fire-delay` is set.",
        on_off=True,
    ),
    _option("late-fire-delay", "Like `early-fire-delay`, after the window's end, starting with its first late row."),
    _option(
        "allow-lateness",
        "How far the watermark may be past a window's end while its late rows still count. Requires late fire; "
        "without it late rows are dropped. At least `late-fire-delay`.",
    ),
)  # fmt: skip
EMIT_OPTIONS: Mapping[str, Option] = {option.name: option for option in _ALL}
"""Options of `RemoteGrouping.emit` and of the session, by name; in Flink they are below `table.exec.emit`."""


def emit_options(given: Mapping[str, object], session: Mapping[str, str]) -> EmitOptions:
    """The options of a call, which override those of the session below EMIT_PREFIX.

    Raises InvalidOption for unknown or malformed options, PlanError for options that contradict each other.
    """
    merged: dict[str, str] = {}
    for key, value in session.items():
        if key.startswith(EMIT_PREFIX + "."):
            option = key.removeprefix(EMIT_PREFIX + ".").replace("-fire.", "-fire-")
            merged |= canonical({option: value}, source=f"session setting {key}", known=(EMIT_OPTIONS,))
    merged |= canonical(given, source="emit of a window aggregate", known=(EMIT_OPTIONS,))
    values = {name: EMIT_OPTIONS[name].parse(text) for name, text in merged.items()}
    early = _fire(values, "early-fire", "Early-fire")
    late = _fire(values, "late-fire", "Late-fire")
    lateness = values.get("allow-lateness", 0.0)
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


def _fire(values: Mapping[str, float], name: str, shown: str) -> int | None:
    """The delay in milliseconds; None if it is off."""
    delay = values.get(f"{name}-delay")
    if not values.get(f"{name}-enabled", delay is not None):
        return None
    if delay is None or delay < 0:
        raise PlanError(
            f"{shown} delay should not be null or negative value when {name} is enabled; set '{name}-delay', found "
            f"{'none' if delay is None else _shown_delay(delay)}"
        )
    return round(delay * 1000)
