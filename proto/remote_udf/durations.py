"""Durations as users write them in options: "2 s", "100ms", "3 min"."""

import functools
import re
from datetime import timedelta
from decimal import Decimal

from remote_udf.errors import InvalidOption

__all__ = ["format_seconds", "parse_seconds"]

_SECONDS = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
"""The spellings of Flink's TimeUtils and of Spark's JavaUtils.timeStringAs."""

_UNITS = tuple((unit, round(_SECONDS[unit] * 1e9)) for unit in ("d", "h", "min", "s", "ms", "us"))
"""The units used in output, with their nanoseconds."""

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


def parse_seconds(text: str | timedelta) -> float:
    """Convert a duration to seconds. Raises InvalidOption for a number without a unit, because it is ambiguous."""
    if isinstance(text, timedelta):
        return text.total_seconds()
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in _SECONDS or len(match[1]) > 30:
        raise InvalidOption(f"{text!r} is not a duration: write a number and a unit, such as '2 s' or '100 ms'")
    return float(match[1]) * _SECONDS[match[2].lower()]


@functools.lru_cache(maxsize=1_000)
def format_seconds(seconds: float) -> str:
    """Format seconds in the largest unit that gives a whole number: 0.25 -> "250 ms", 180.0 -> "3 min"."""
    # More digits would show the rounding of floating point numbers.
    nanoseconds = round(Decimal(f"{seconds * 1e9:.12g}"))
    for unit, length in _UNITS:
        if nanoseconds >= length and nanoseconds % length == 0:
            return f"{nanoseconds // length} {unit}"
    return f"{nanoseconds} ns" if nanoseconds else "0 s"
