"""Claims are what members send to ledgers, and grants are what these answer. Both are JSON.

Grants are checked before they are used: another service may answer anything.
"""

import json
import math
from collections.abc import Iterable
from typing import NamedTuple, TypedDict, TypeVar

from remote_udf.errors import RemoteUdfError

__all__ = [
    "CoordinationFailed",
    "Grant",
    "LedgerAnswer",
    "LimitClaim",
    "RateClaim",
    "UnitClaim",
    "checked_grant",
    "read_grant",
]


class RateClaim(TypedDict):
    """What a member claims of one rate."""

    amount: float
    seconds: float
    burst: float | None
    settled: list[list[float]]
    """What was spent beyond estimates, with the number of the claim that told it first."""
    back: list[list[float]]
    """What was not used, with the time from which it was granted."""
    keep: float
    take: float
    least: float
    ahead: float


class UnitClaim(TypedDict):
    """What a member claims of one unit of a budget."""

    amount: float
    spent: float
    held: float
    take: float
    least: float
    ahead: float


class LimitClaim(TypedDict, total=False):
    """What a member needs, has and has used: each kind of account fills in its part, and `Account` all that is left."""

    member: str
    settings: str
    epoch: str
    number: int
    lasts: bool
    most: int
    ceiling: int
    wanted: int
    spare: int
    rates: list[RateClaim]
    pause: float
    units: dict[str, UnitClaim]
    rows: int
    failed: int
    fresh: str
    """The epoch of the ledger if it begins with this claim."""
    leave: bool


class LedgerAnswer(TypedDict, total=False):
    """A grant; or only `conflict`, or only `stale`. Another service may answer anything until it is checked."""

    conflict: str
    stale: bool
    epoch: str
    now: float
    places: int
    rates: list[list[float]]
    paused: float
    units: dict[str, list[float]]
    rows: int
    failed: int


CONFLICT_LENGTH = 2_000
T = TypeVar("T")
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


def read_grant(received: str | bytes) -> LedgerAnswer:
    """The JSON object that was received. Raises CoordinationFailed, whose message does not quote it."""
    try:
        grant: LedgerAnswer = json.loads(received)
    except (TypeError, ValueError, RecursionError):
        raise _no_grant("expected a JSON object") from None
    if not isinstance(grant, dict):
        raise _no_grant("expected a JSON object")
    conflict = grant.get("conflict", "")
    if not isinstance(conflict, str) or len(conflict) > CONFLICT_LENGTH:
        raise _no_grant("conflict is no text, or a long one")
    return grant


def checked_grant(grant: LedgerAnswer, most: int, amounts: Iterable[float], units: Iterable[str]) -> Grant:
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
        epoch, _checked(grant.get("now"), what="now"), _count("places", grant.get("places"), -1, most),
        [_numbers(pair, 2, limit) for pair, limit in zip(_list(rates, len(limits)), limits, strict=True)],
        _checked(grant.get("paused"), 0.0, what="paused"),
        [[*_numbers(each[:3], 3), _checked(each[3])] for each in numbers],
        _count("rows", grant.get("rows"), 0), _count("failed", grant.get("failed"), 0),
    )  # fmt: skip


def _no_grant(why: str) -> CoordinationFailed:
    return CoordinationFailed(f"the answer is no grant: {why}; check what coordination_url names")


def _count(name: str, value: float | None, least: int, most: float = math.inf) -> int:
    number = _checked(value, least, most, name)
    if number != int(number):
        raise _no_grant(f"{name} is no whole number")
    return int(number)


def _list(value: list[T] | None, length: int) -> list[T]:
    if not isinstance(value, list) or len(value) != length:
        raise _no_grant(f"expected a list of {length}")
    return value


def _numbers(value: list[float] | None, length: int, most: float = math.inf) -> list[float]:
    return [_checked(each, 0.0, most * ROUNDED) for each in _list(value, length)]


def _checked(value: float | None, least: float = -math.inf, most: float = math.inf, what: str = "an amount") -> float:
    """A finite number within the bounds. JSON of Python has NaN and infinity, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _no_grant(f"{what} is no number")
    # A whole number of many digits is compared before it is converted, which it may be too large for.
    if not -1e300 < value < 1e300 or not least <= value <= most:
        raise _no_grant(f"{what} is out of its bounds")
    return float(value)
