"""The types of columns and random values of them.

Floating point values are multiples of a quarter below 2^20, infinite or NaN. Sums of them are exact in any order, so
results are compared without a tolerance.
"""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from tests.differential.choices import Choices

__all__ = ["COLLATED", "NUMBERS", "ORDERABLE", "STRUCT", "TYPES", "ZONES", "clock_change", "total_order", "value"]

ZONES = ("UTC", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca")
CHANGES = {
    "UTC": ("2026-03-29 02:00", "2026-10-25 02:00"),
    "America/Los_Angeles": ("2026-03-08 02:00", "2026-11-01 01:00"),
    "Europe/Berlin": ("2026-03-29 02:00", "2026-10-25 02:00"),
    "Australia/Lord_Howe": ("2026-10-04 02:00", "2026-04-05 01:30"),
    "Africa/Casablanca": ("2026-03-22 02:00", "2026-02-15 02:00"),
}
"""The times when the clock of a zone changes: forward, and back."""


STRUCT = "struct<v:bigint,`B.c`:string,k:double>"
"""A struct whose fields have names of columns."""
COLLATED = "string collate UTF8_LCASE"
"""A string type that ignores case."""


def clock_change(draw: Choices, zone: str) -> dt.datetime:
    """A local time near which the times of a table are."""
    forward, back = CHANGES[zone]
    return dt.datetime.fromisoformat(draw.weighted([(20, "2026-01-15 10:00"), (30, forward), (50, back)]))


def _integer(bits: int) -> Callable[[Choices, Any], int]:
    edge = 2 ** (bits - 1)
    return lambda draw, _: draw.weighted([(90, draw.between(0, 6) - 2), (4, edge - 1), (3, -edge), (3, 100)])


def _small(draw: Choices, _: Any) -> int:
    return draw.between(0, 3) if draw.chance(60) else draw.between(0, 12) - 4


def _double(draw: Choices, _: Any) -> float:
    special = (float("nan"), -0.0, float("inf"), float("-inf"))
    return draw.of(special) if draw.chance(20) else (draw.below(3) if draw.chance(50) else draw.between(0, 24) - 8) / 4


def _text(draw: Choices, _: Any) -> str:
    return draw.of(("a", "", "b", "A", "a b", "é", "x.y", "%", "aa"))


def _instant(draw: Choices, base: tuple[dt.datetime, str]) -> dt.datetime:
    clock, zone = base
    local = clock.replace(tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)
    return local + _delta(draw)


def _delta(draw: Choices) -> dt.timedelta:
    minutes = draw.weighted([(6, 10 * (draw.between(0, 24) - 12)), (2, draw.between(0, 200)), (2, 720 * draw.below(6))])
    seconds = draw.of((0, 0, 0, 1, 59.5, -0.000001))
    return dt.timedelta(minutes=minutes, seconds=seconds)


def _clock(draw: Choices, base: tuple[dt.datetime, str]) -> dt.datetime:
    return base[0] + _delta(draw)


def _interval(draw: Choices, _: Any) -> dt.timedelta:
    longest = dt.timedelta(days=106_751_991)
    if draw.chance(4):
        return longest
    return dt.timedelta(seconds=draw.between(0, 400) - 100, days=draw.below(3))


def _element(make: Callable[[Choices, Any], Any]) -> Callable[[Choices, Any], Any]:
    return lambda draw, base: None if draw.chance(10) else make(draw, base)


def _array(draw: Choices, base: Any) -> list[Any]:
    return draw.several(lambda: _element(_small)(draw, base), 0, 3)


def _map(draw: Choices, base: Any) -> dict[str, Any]:
    return {key: _element(_small)(draw, base) for key in draw.some(("a", "b", "A"))}


def _struct(draw: Choices, base: Any) -> tuple[Any, ...]:
    return (_element(_small)(draw, base), _element(_text)(draw, base), _element(_double)(draw, base))


TYPES: dict[str, Callable[[Choices, Any], Any]] = {
    "bigint": _small,
    "int": _small,
    "string": _text,
    "double": _double,
    "boolean": lambda draw, _: draw.of((False, True)),
    "timestamp": _instant,
    "timestamp_ntz": _clock,
    "date": lambda draw, base: (base[0] + dt.timedelta(days=draw.below(4))).date(),
    "decimal(10,2)": lambda draw, _: Decimal(draw.between(0, 400) - 100).scaleb(-2),
    "smallint": _integer(16),
    "tinyint": _integer(8),
    "float": _double,
    "binary": lambda draw, _: draw.of((b"", b"\x00", b"a", b"\xff\xfe")),
    "interval day to second": _interval,
    "decimal(38,18)": lambda draw, _: Decimal(draw.between(0, 10**6)).scaleb(draw.of((0, -18, 14))),
    "array<bigint>": _array,
    STRUCT: _struct,
    "map<string,bigint>": _map,
    "array<struct<x:timestamp,y:bigint>>": lambda draw, base: [(_instant(draw, base), _small(draw, base))],
    "time(6)": lambda draw, base: _clock(draw, base).time(),
    COLLATED: _text,
    "interval year to month": lambda draw, _: draw.between(0, 30) - 15,
    "variant": lambda draw, _: draw.of(("1", '{"a":1}', "[1,null]", '"a"', "null", '{"a":{"b":2.5}}')),
}
"""A random value by DDL type, given a time to which times are near. Numbers of months and JSON represent values that
Python does not have; `world.table` makes columns of them."""

NUMBERS = ("bigint", "int", "double", "decimal(10,2)")
ORDERABLE = tuple(type_ for type_ in TYPES if not type_.startswith("map") and type_ != "variant")


def total_order(type_: str) -> bool:
    """Whether the type has an order in which only identical values are equal."""
    return not any(part in type_ for part in ("map", "variant", "collate"))


def value(draw: Choices, type_: str, base: tuple[dt.datetime, str], nulls: bool) -> Any:
    """A random value of the type; sometimes None if `nulls`."""
    return None if nulls and draw.chance(15) else TYPES[type_](draw, base)
