"""Grants are what ledgers answer. They are checked before they are used: another service may answer anything."""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from remote_udf.errors import RemoteUdfError

__all__ = ["CoordinationFailed", "Grant", "checked_grant", "read_grant"]

CONFLICT_LENGTH = 2_000
ROUNDED = 1 + 1e-9
"""Redis writes 14 digits of a number."""


class CoordinationFailed(RemoteUdfError):
    """A claim was not answered, or not by a grant. The message has no secret of the URL."""


class Grant(NamedTuple):
    """The answer to a claim."""

    epoch: str
    now: float
    """The time of the ledger."""
    places: int
    """-1 if there is no limit."""
    rates: list[list[float]]
    """For each rate: what calls that wait get, and what is got ahead of calls."""
    paused: float
    """Seconds for which nothing is taken of the rates."""
    units: list[list[float]]
    """Four numbers of each unit of a budget, as `Ledger.exchange` says."""
    rows: int
    failed: int


def read_grant(received: Any) -> dict[str, Any]:
    """The JSON object that was received. Raises CoordinationFailed, whose message does not quote it."""
    try:
        grant = json.loads(received)
    except (TypeError, ValueError, RecursionError):
        grant = None
    if not isinstance(grant, dict):
        raise _no_grant("expected a JSON object")
    conflict = grant.get("conflict", "")
    if not isinstance(conflict, str) or len(conflict) > CONFLICT_LENGTH:
        raise _no_grant("conflict is no text, or a long one")
    return grant


def checked_grant(grant: dict[str, Any], most: int, amounts: Iterable[float], units: Iterable[str]) -> Grant:
    """The grant for a limit of places (-1 for any number), of these amounts of rates, and of units of a budget.

    Raises CoordinationFailed if it is none.
    """
    epoch, rates, limits = grant.get("epoch"), grant.get("rates") or [], list(amounts)  # Lua's {} is no list
    if not isinstance(epoch, str):
        raise _no_grant("epoch is no text")
    found = grant.get("units") or {}
    if not isinstance(found, dict):
        raise _no_grant("units is no object")
    numbers = [_list(found.get(unit), 4) for unit in units]
    return Grant(
        epoch, _number(grant, "now"), _count(grant, "places", -1, most),
        [_numbers(pair, 2, limit) for pair, limit in zip(_list(rates, len(limits)), limits, strict=True)],
        _number(grant, "paused", 0.0),
        [[*_numbers(each[:3], 3), _checked(each[3])] for each in numbers],
        _count(grant, "rows", 0), _count(grant, "failed", 0),
    )  # fmt: skip


def _no_grant(why: str) -> CoordinationFailed:
    return CoordinationFailed(f"the answer is no grant: {why}; check what coordination_url names")


def _number(grant: dict[str, Any], name: str, least: float = -math.inf) -> float:
    return _checked(grant.get(name), least, what=name)


def _count(grant: dict[str, Any], name: str, least: int, most: float = math.inf) -> int:
    number = _checked(grant.get(name), least, most, name)
    if number != int(number):
        raise _no_grant(f"{name} is no whole number")
    return int(number)


def _list(value: Any, length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise _no_grant(f"expected a list of {length}")
    return value


def _numbers(value: Any, length: int, most: float = math.inf) -> list[float]:
    return [_checked(each, 0.0, most * ROUNDED) for each in _list(value, length)]


def _checked(value: Any, least: float = -math.inf, most: float = math.inf, what: str = "an amount") -> float:
    """A finite number within the bounds. JSON of Python has NaN and infinity, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _no_grant(f"{what} is no number")
    # A whole number of many digits is compared before it is converted, which it may be too large for.
    if not -1e300 < value < 1e300 or not least <= value <= most:
        raise _no_grant(f"{what} is out of its bounds")
    return float(value)
