"""When windows of a stream are emitted: early fire, late fire and allowed lateness (FLIP-392).

`EmitOptions` is what a caller asks for, checked; `Firing` is the one rule by which a window of a key fires.
It has no clock and does no I/O: watermark and processing time come in, milliseconds since 1970.

    early fire 1 s, late fire 0 s, lateness 3 s; the window [0 s, 3 s) of a key whose first row came at 0.2 s

    processing time  0.2    1.2    2.2          the first row starts the clock of early fires
    watermark                          2.999          5.999
                      |------ early ------|---- late ----| cleaned up
    fires                   x      x      x  x  x     on time at 2.999, then for every late row
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.errors import InvalidOption
from remote_udf.options import Option, canonical
from spark_client.base.errors import PlanError

__all__ = ["EMIT_OPTIONS", "EMIT_PREFIX", "EmitOptions", "Firing", "emit_options"]

EMIT_PREFIX = "spark.remoteudf.emit"
"""`<prefix>.<option>` in the Spark session is for every window aggregate on a stream."""


def _switch(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{value!r} is neither true nor false")
    return text == "true"


def _delay(value: Any) -> float:
    if isinstance(value, str) and value.strip().startswith("-"):
        return -parse_seconds(value.strip().lstrip("-"))
    return parse_seconds(value)


def _shown_delay(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _option(name: str, doc: str, *, switch: bool = False) -> Option:
    if switch:
        return Option(name, _switch, lambda on: str(on).lower(), None, doc)
    return Option(name, _delay, _shown_delay, None, doc)


_ALL = (
    _option(
        "early-fire-enabled", "Emit a window's value before its end. Unless set: if `early-fire-delay` is.",
        switch=True,
    ),
    _option(
        "early-fire-delay",
        "`0 s`: with every micro-batch that has rows of the window; else so long in processing time after the first "
        "row of the key and window, and every so long after that.",
    ),
    _option(
        "late-fire-enabled", "Emit a window's value again for late rows. Unless set: if `late-fire-delay` is.",
        switch=True,
    ),
    _option("late-fire-delay", "As `early-fire-delay`, after the end of the window, from its first late row."),
    _option(
        "allow-lateness",
        "How far the watermark may be past a window's end while late rows of it still count. Needs late fire; "
        "without it late rows are dropped. At least `late-fire-delay`.",
    ),
)  # fmt: skip
EMIT_OPTIONS: Mapping[str, Option] = {option.name: option for option in _ALL}
"""Options of `RemoteGrouping.emit` and of the session, by name; Flink has them below `table.exec.emit`."""


@dataclasses.dataclass(frozen=True)
class EmitOptions:
    """Delays in milliseconds, None for what is off; `lateness` is 0 without late fire."""

    early: int | None = None
    late: int | None = None
    lateness: int = 0

    @property
    def fires(self) -> bool:
        """Whether windows are emitted at other times than their end."""
        return self.early is not None or self.late is not None

    @property
    def needs_clock(self) -> bool:
        """Whether a fire may be due without a row and without a watermark."""
        return bool(self.early) or bool(self.late)


def emit_options(given: Mapping[str, Any], session: Mapping[str, str]) -> EmitOptions:
    """The options of a call over those of the session, which stand below EMIT_PREFIX.

    Raises InvalidOption for what is unknown or malformed, PlanError for what makes no sense together.
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
            "no late fire would ever come"
        )
    return EmitOptions(early, late, round(lateness * 1000))


def _fire(values: Mapping[str, Any], name: str, shown: str) -> int | None:
    """Milliseconds, None if it is off."""
    delay = values.get(f"{name}-delay")
    if not values.get(f"{name}-enabled", delay is not None):
        return None
    if delay is None or delay < 0:
        raise PlanError(
            f"{shown} delay should not be null or negative value when {name} is enabled; set '{name}-delay', found "
            f"{'none' if delay is None else _shown_delay(delay)}"
        )
    return round(delay * 1000)


@dataclasses.dataclass
class Firing:
    """The times of one key and window; `early_at` and `late_at` are the next periodic fires, None before any."""

    early_at: int | None = None
    late_at: int | None = None
    on_time: bool = False
    """The window has fired because the watermark reached its last millisecond."""

    def rows_came(self, options: EmitOptions, last: int, watermark: int, now: int) -> bool:
        """Rows that are not late came; whether the window fires at once. `last` is its last millisecond."""
        if watermark < last:
            if options.early:
                self.early_at = now + options.early if self.early_at is None else self.early_at
            return options.early == 0
        if not self.on_time:
            # A window first seen after its end: nothing was emitted when its time came.
            self.on_time = True
            return True
        if options.late:
            self.late_at = now + options.late if self.late_at is None else self.late_at
        return options.late == 0

    def time_passed(self, options: EmitOptions, last: int, watermark: int, now: int) -> bool:
        """Whether the window fires because of the watermark or of the clock."""
        fires = False
        if self.early_at is not None and self.early_at <= now and options.early:
            self.early_at = _next(self.early_at, options.early, now)
            fires = True
        if self.late_at is not None and self.late_at <= now and options.late:
            self.late_at = _next(self.late_at, options.late, now)
            fires = True
        if not self.on_time and watermark >= last:
            self.on_time = fires = True
        return fires


def _next(due: int, delay: int, now: int) -> int:
    """The first time after now that is a whole number of delays after `due`."""
    return due + ((now - due) // delay + 1) * delay
