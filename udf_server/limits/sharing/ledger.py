"""Ledger keeps the sums of one limit that several members share: places, units of windows, and units of a budget.

A member is a process of a server. It sends a claim at intervals and gets a grant, a share that it uses without asking:

- Places are leased. A member that sends no claim for LEASE_SECONDS loses its places. A member that gets fewer places
  than it has keeps the others until its next claim says that it has stopped using them, so that the sum of all
  places never exceeds the limit.
- Units of a window are counted when they are granted, as if calls began at the end of their lease, so that no window
  has more than its amount. The claim says how long the member keeps them (`keep`); no call begins with them later. What
  was not used is returned with a later claim, and what was spent beyond an estimate is added.
- Units of a budget are not returned with time. A claim has their sums since its member joined, not changes: so a claim
  that is lost or that arrives twice counts once, and a ledger that has lost its data learns the sums from its members.
  What a member holds was leased to it: for calls that run, or ahead of calls. It counts as spent until the member says
  that it holds less. What a member held when it crashed counts as spent, for it may have been spent.
- A ledger that was lost, or that is an older copy, does not know the leases of members before they claim. They do so
  within a lease. Until its end no member gets more places than it has, and nothing of a budget.

`redis_script.py` is the same in Lua, for Redis. A test compares them, claim by claim.
"""

import math
from typing import TypedDict

from udf_server.limits.sharing.claims import LedgerAnswer, LimitClaim, RateClaim, UnitClaim
from udf_server.limits.sharing.window import Window

__all__ = ["AHEAD_PARTS", "AHEAD_SECONDS", "LEASE_SECONDS", "Ledger", "ahead_seconds"]

LEASE_SECONDS = 5.0
"""The places of a member end this long after its last claim."""
TURN_SECONDS = 0.5
"""If the places cannot be shared equally, the members that get one more change at this interval."""
AHEAD_SHARE = 4
"""A claim gets at most the rest divided by this number ahead of its calls, so that no member waits for what another one
has leased and does not use."""
AHEAD_SECONDS, AHEAD_PARTS = 0.1, 10
"""How long units of a window are kept that were got ahead of calls, and the part of the window that it is at most."""


class Member(TypedDict):
    """What is known of a member."""

    number: int
    """That of its last claim."""
    settings: str
    until: float
    """When its lease ends."""
    places: int
    wanted: int
    rows: int
    failed: int
    units: dict[str, list[float]]
    """Of a budget: what it has spent, and what it holds."""


def ahead_seconds(seconds: float) -> float:
    """How long a member may keep units of a window of `seconds` that it got ahead of its calls."""
    return min(AHEAD_SECONDS, seconds / AHEAD_PARTS)


class Ledger:
    """The sums of one limit. It does no I/O and has no clock."""

    def __init__(self, *, may_be_lost: bool = False) -> None:
        """`may_be_lost`: members may have leases of an earlier ledger whose data was lost, as a Redis loses it."""
        self._may_be_lost = may_be_lost
        self.members: dict[str, Member] = {}
        """By name. Those whose lease has ended are forgotten, unless they have spent units of a budget."""
        self.windows: dict[int, Window] = {}
        self._settings, self._epoch, self._run = "", "", ""
        self._paused = self._at = 0.0
        self._settling = -math.inf
        """Until when members may have leases that are not known here."""

    def exchange(self, claim: LimitClaim, now: float, run: str = "", up_seconds: float = LEASE_SECONDS) -> LedgerAnswer:
        """The grant for a claim. It has only `conflict`, with their settings, if other members have other settings.

        A claim that arrives twice, or after a later one of its member, changes nothing; then the grant has only
        `stale`. Units of a budget have four numbers: what is leased now, what all members have spent, what other
        members that are alive hold, and what was left before this lease.

        `run` identifies the process that has the data, and `up_seconds` is how long it has run: they show that a ledger
        was lost, or is an older copy. Each Redis has another `run` after each start.
        """
        name, members = claim["member"], self.members
        if self._epoch:
            self._set_back(now)
            if self._run != run:
                self._run, self._epoch, self._settling = run, claim["fresh"], now + LEASE_SECONDS
        self._at = now
        for member in [each for each, kept in members.items() if kept["until"] <= now and not kept["units"]]:
            del members[member]
        for member, kept in members.items():
            if member != name and kept["until"] > now and kept["settings"] != claim["settings"]:
                return {"conflict": kept["settings"]}
        old = members.get(name)
        before = 0 if old is None else old["number"]
        if before >= claim["number"]:
            return {"stale": True}
        if self._settings != claim["settings"] or not self._epoch:
            self._begin(claim, now, run, up_seconds)
        if claim["units"] and old is None and claim["epoch"] not in ("", self._epoch):
            self._settling = now + LEASE_SECONDS
        me: Member = {
            "number": claim["number"], "settings": claim["settings"],
            "until": 0.0 if claim["leave"] else now + LEASE_SECONDS,
            "places": 0, "wanted": claim["wanted"], "rows": claim["rows"], "failed": claim["failed"],
            "units": {unit: [part["spent"], part["held"]] for unit, part in claim["units"].items()},
        }  # fmt: skip
        members[name] = me
        grant: LedgerAnswer = {"epoch": self._epoch, "now": now, "places": self._places(claim, me, now)}
        self._paused = max(self._paused, now + claim["pause"])
        grant["paused"] = max(self._paused - now, 0.0)
        grant["rates"] = [
            self._rate(index, rate, claim["epoch"], before, now) for index, rate in enumerate(claim["rates"])
        ]
        grant["units"] = self._units(claim["units"], me, now)
        grant["rows"] = sum(kept["rows"] for kept in members.values())
        grant["failed"] = sum(kept["failed"] for kept in members.values())
        return grant

    def _begin(self, claim: LimitClaim, now: float, run: str, up_seconds: float) -> None:
        """Begin with these settings. What was spent of a budget stays spent.

        A budget that a Redis does not know has hardly ever been lost, if the Redis has run for some time.
        """
        self._settings, self._epoch, self._run, self._paused = claim["settings"], claim["fresh"], run, 0.0
        self.windows.clear()
        if self._may_be_lost:
            settles = LEASE_SECONDS if claim["most"] >= 0 else max(LEASE_SECONDS - up_seconds, 0.0)
            self._settling = max(self._settling, now + settles)

    def _set_back(self, now: float) -> None:
        """If the clock was set back, or a clock that is behind has taken over, set all times back by as much.

        Otherwise leases of members that are gone would last longer than leases do, and rates would stay used.
        """
        if (late := self._at - now) <= 0:
            return
        self._settling -= late
        self._paused -= late
        for member in self.members.values():
            member["until"] -= late
        for window in self.windows.values():
            window.set_back(late)

    def _places(self, claim: LimitClaim, me: Member, now: float) -> int:
        """The places of the member until its next claim; -1 if there is no limit."""
        limit, name = claim["most"], claim["member"]
        if limit < 0:
            return -1
        others = {each: kept for each, kept in self.members.items() if kept is not me}
        held = sum(kept["places"] for kept in others.values())
        wanted = {each: kept["wanted"] for each, kept in others.items()} | {name: claim["wanted"]}
        places = max(min(_share(wanted, name, limit, now), limit - held), 0)
        if self._settling > now:
            places = min(places, claim["ceiling"])
        else:
            needed = sum(max(kept["places"], kept["wanted"]) for kept in others.values())
            places += max(min(claim["spare"], limit - needed - places), 0)
        me["places"] = max(places, claim["ceiling"])
        return places

    def _rate(self, index: int, rate: RateClaim, epoch: str, before: int, now: float) -> list[float]:
        """The units that a member gets of one rate: for its calls that wait, and ahead of calls.

        What it has settled in claims up to `before` was counted.
        """
        window = self.windows.get(index)
        if window is None:
            window = self.windows[index] = Window(rate["amount"], rate["seconds"], rate["burst"])
        if epoch == self._epoch:  # otherwise those that come back were never counted here
            for first, amount in rate["back"]:
                window.take_back(amount, int(first), now)
        window.add(math.fsum(amount for turn, amount in rate["settled"] if turn > before), now)
        room = 0.0 if self._paused > now else window.room(rate["least"], now)
        granted = min(rate["take"], room) if room >= rate["least"] and room > 0 else 0.0
        ahead = max(min(rate["ahead"], (room - granted) / AHEAD_SHARE), 0.0)
        window.add(granted, now, rate["keep"])
        window.add(ahead, now, max(ahead_seconds(rate["seconds"]), rate["keep"]))
        return [granted, ahead]

    def _units(self, units: dict[str, UnitClaim], me: Member, now: float) -> dict[str, list[float]]:
        """What a member gets of each unit of a budget. If a call does not fit one unit, it gets nothing of any.

        Otherwise members could wait for each other, each with a part of what a call needs.
        """
        found = {unit: self._used(unit, part, me, now) for unit, part in units.items()}
        fits = all(not part["take"] or found[unit][3] >= part["least"] * (1 - 1e-9) for unit, part in units.items())
        for unit, part in units.items():
            room = found[unit][3]
            if fits and room > 0 and self._settling <= now:
                leased = min(part["take"], room)
                leased += max(min(part["ahead"], (room - leased) / AHEAD_SHARE), 0.0)
                found[unit][0] = leased
                me["units"][unit][1] += leased
        return found

    def _used(self, unit: str, part: UnitClaim, me: Member, now: float) -> list[float]:
        spent = held = elsewhere = 0.0
        for member in self.members.values():
            its_spent, its_held = member["units"].get(unit, (0.0, 0.0))
            spent, held = spent + its_spent, held + its_held
            if member is not me and member["until"] > now:
                elsewhere += its_held
        return [0.0, spent, elsewhere, part["amount"] - spent - held]


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
