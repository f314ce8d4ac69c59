"""Claims are what members send to ledgers, and answers are what they get. Both are JSON."""

from typing import TypedDict

__all__ = ["LedgerAnswer", "LimitClaim", "RateClaim", "UnitClaim"]


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
