"""Ledger keeps the sums of one limit that several members share: permits, and tokens of rates.

A member is a process of a server. It sends a claim at intervals and gets a grant, which it spends without asking:

- Permits are leased. A member that sends no claim for LEASE_SECONDS loses its permits. A member that gets fewer permits
  than it has keeps the others until its next claim says that it has stopped using them, so that the sum of all
  permits never exceeds the limit.
- Tokens are counted when they are granted, as if they were spent at the end of their lease, so that no window has
  more than its amount. The claim says how long the member keeps them (`keep`); it spends none later. What was not
  spent is returned with a later claim, and what was spent beyond an estimate is added.

`redis_script.py` is the same in Lua, for Redis. A test compares them, claim by claim.
"""

import math
from typing import Any

__all__ = ["AHEAD_PARTS", "AHEAD_SECONDS", "LEASE_SECONDS", "SLOTS", "Ledger", "ahead_seconds"]

LEASE_SECONDS = 5.0
"""The permits of a member end this long after its last claim."""
TURN_SECONDS = 0.5
"""If the permits cannot be shared equally, the members that get one more change at this interval."""
SLOTS = 100
"""Number of parts of a window. Tokens of a part are counted until the end of the part is out of the window."""
AHEAD_SHARE = 4
"""A claim gets at most the rest divided by this number ahead of its calls."""
AHEAD_SECONDS, AHEAD_PARTS = 0.1, 10
"""How long tokens are kept that were got ahead of calls, and the part of the rate's time that it is at most."""


_NOBODY = (0.0, 0, 0, 0)
"""Of a member: when its permits end, the permits, those it wants, its last claim's turn."""


def ahead_seconds(seconds: float) -> float:
    """How long a member may keep tokens of a rate over `seconds` that it got ahead of its calls."""
    return min(AHEAD_SECONDS, seconds / AHEAD_PARTS)


class Ledger:
    """The state of one shared limit. It does no I/O and has no clock."""

    def __init__(self, *, may_be_lost: bool = False) -> None:
        """`may_be_lost`: members may have leases of an earlier ledger whose data was lost, as a Redis loses it."""
        self._state: dict[str, Any] | None = None
        self._settling = LEASE_SECONDS if may_be_lost else 0.0

    def exchange(self, claim: dict[str, Any], now: float, run: str = "") -> dict[str, Any]:
        """The grant for a claim. It has only `conflict`, with their settings, if other members have other settings.

        `run` identifies the process that has the data: each Redis has another one after each start. A claim that
        arrives twice, or after a later one of its member, changes nothing; then the grant has only `stale`.
        """
        state, settling = self._state, now + self._settling
        if state is not None:
            _set_back(state, claim, now)
            if state["run"] != run:
                state.update(run=run, epoch=claim["fresh"], settling=now + LEASE_SECONDS)
            settling, members = state["settling"], state["members"]
            for member in [member for member, (until, *_) in members.items() if until <= now]:
                del members[member]
            if state["settings"] != claim["settings"]:
                if any(member != claim["member"] for member in members):
                    return {"conflict": state["settings"]}
                state = None
            elif members.get(claim["member"], _NOBODY)[3] >= claim["turn"]:
                return {"stale": True}
        if state is None:
            # Until the leases of a ledger that was lost have ended, members get no more permits than they have.
            state = self._state = {
                "settings": claim["settings"], "epoch": claim["fresh"], "members": {}, "used": {}, "paused": 0.0,
                "settling": settling, "run": run, "at": now,
            }  # fmt: skip
        before = state["members"].get(claim["member"], _NOBODY)[3]
        grant = {"epoch": state["epoch"], "now": now, "permits": _permits(state, claim, now)}
        state["paused"] = max(state["paused"], now + claim["pause"])
        grant["paused"] = max(state["paused"] - now, 0.0)
        grant["tokens"] = []
        for index, rate in enumerate(claim["rates"]):
            used = state["used"].setdefault(str(index), {})
            if claim["epoch"] == state["epoch"]:  # otherwise those that come back were never counted here
                _take_back(used, rate, now)
            grant["tokens"].append(_tokens(used, rate, now, before, paused=state["paused"] > now))
        if claim["leave"]:
            del state["members"][claim["member"]]
        return grant


def _set_back(state: dict[str, Any], claim: dict[str, Any], now: float) -> None:
    """If the clock was set back, or a clock that is behind has taken over, set all times back by as much.

    Otherwise leases of members that are gone would last longer than leases do, and rates would stay used.
    """
    late, state["at"] = state["at"] - now, now
    if late <= 0:
        return
    state["settling"] -= late
    state["paused"] -= late
    for member, (until, *rest) in state["members"].items():
        state["members"][member] = (until - late, *rest)
    for index, rate in enumerate(claim["rates"]):
        slots = math.floor(late / (rate["seconds"] / SLOTS))
        used = state["used"].get(str(index), {})
        state["used"][str(index)] = {str(int(slot) - slots): amount for slot, amount in used.items()}


def _permits(state: dict[str, Any], claim: dict[str, Any], now: float) -> int:
    """The permits of the member until its next claim; -1 if there is no limit. It is recorded as alive."""
    members, me = state["members"], claim["member"]
    permits = -1
    if claim["most"] >= 0:
        limit = claim["most"]
        others = {member: kept for member, kept in members.items() if member != me}
        held = sum(kept[1] for kept in others.values())
        wanted = {member: kept[2] for member, kept in others.items()} | {me: claim["wanted"]}
        permits = max(min(_share(wanted, me, limit, now), limit - held), 0)
        if state["settling"] > now:
            permits = min(permits, claim["ceiling"])
        else:
            needed = sum(max(kept[1], kept[2]) for kept in others.values())
            permits += max(min(claim["spare"], limit - needed - permits), 0)
    members[me] = (now + LEASE_SECONDS, max(permits, claim["ceiling"]), claim["wanted"], claim["turn"])
    return permits


def _share(wanted: dict[str, int], me: str, limit: int, now: float) -> int:
    """The fair share of a member: equal for all that want more, and what the others want is theirs."""
    left, order = limit, sorted(wanted, key=lambda member: (wanted[member], member))
    for place, member in enumerate(order):
        rest = len(order) - place
        if wanted[member] * rest > left:
            sharing = sorted(order[place:])
            turn = (sharing.index(me) + math.floor(now / TURN_SECONDS)) % rest
            return left // rest + (1 if turn < left % rest else 0)
        if member == me:
            break
        left -= wanted[member]
    return wanted[me]


def _tokens(used: dict[str, float], rate: dict[str, Any], now: float, before: int, *, paused: bool) -> list[float]:
    """The tokens that a member gets of one rate: for its calls that wait, and ahead of calls.

    What it has settled in claims up to `before` was counted.
    """
    seconds = rate["seconds"]
    width = seconds / SLOTS
    for slot in [slot for slot in used if (int(slot) + 1) * width + seconds <= now]:
        del used[slot]
    if (settled := math.fsum(amount for turn, amount in rate["settled"] if turn > before)) > 0:
        slot = str(math.floor(now / width))
        used[slot] = used.get(slot, 0.0) + settled
    room = 0.0 if paused else rate["amount"] - sum(used.values())
    granted = min(rate["take"], room) if room >= rate["least"] and room > 0 else 0.0
    ahead = max(min(rate["ahead"], (room - granted) / AHEAD_SHARE), 0.0)
    for amount, kept in ((granted, rate["keep"]), (ahead, max(ahead_seconds(seconds), rate["keep"]))):
        if amount > 0:
            slot = str(math.floor((now + kept) / width))
            used[slot] = used.get(slot, 0.0) + amount
    return [granted, ahead]


def _take_back(used: dict[str, float], rate: dict[str, Any], now: float) -> None:
    """Take back what was not spent: pairs of a slot, in which or after which it was counted, and an amount.

    The oldest tokens from that slot on are taken back, whoever has spent them: those that are left count longer than if
    they were older. What is out of the window is counted no more, and must not be taken from others.
    """
    width = rate["seconds"] / SLOTS
    for first, amount in rate["back"]:
        if (first + 1) * width + rate["seconds"] <= now:
            continue
        for slot in sorted((slot for slot in used if int(slot) >= first), key=int):
            taken = min(used[slot], amount)
            used[slot] -= taken
            amount -= taken
            if used[slot] <= 0:
                del used[slot]
            if amount <= 0:
                break
