"""BudgetLedger counts what the members spend for one job, and leases the rest of its budget to them.

A member is one process of a server. Its claim has sums since it joined, not changes since its last claim: so a claim
that is lost or that arrives twice counts once, and a ledger that has lost its data learns the sums from its members.

- What a member holds was leased to it: for calls that run, or ahead of calls. It counts as spent until the member
  says that it holds less. What a member held when it crashed counts as spent, for it may have been spent.
- A ledger that was lost, or that is an older copy, does not know what members have spent before they claim. They do so
  within a lease, and until its end nothing is leased.
- A claim gets what its calls need, and at most a part of the rest ahead of them, so that no member waits at the end of
  the budget for what another one has leased and does not use.

`redis_script.py` has the same in Lua, for Redis. A test compares them, claim by claim.
"""

from typing import Any

from udf_server.limits.sharing.ledger import AHEAD_SHARE, LEASE_SECONDS

__all__ = ["BUDGET", "BudgetLedger"]

BUDGET = "budget"
"""The `kind` of claims for this ledger."""


class BudgetLedger:
    """The budget of one job. It does no I/O and has no clock."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {"members": {}, "run": None, "settling": 0.0, "at": 0.0}

    def exchange(
        self, claim: dict[str, Any], now: float, run: str = "", up_seconds: float = LEASE_SECONDS
    ) -> dict[str, Any]:
        """The grant for a claim. It has only `conflict`, with their amounts, if members that are alive have others.

        Units have four numbers: what is leased now, what all members have spent, what other members that are alive
        hold, and what was left before this lease. If a call of the claim does not fit one unit, it gets nothing of any:
        otherwise members could wait for each other, each with a part of what a call needs.

        `run` identifies the process that has the data, and `up_seconds` is how long it has run. They show that a ledger
        was lost, or is an older copy.
        """
        state = self._state
        late, state["at"] = max(state["at"] - now, 0.0), now  # the clock was set back, or one that is behind took over
        state["settling"] -= late
        for member in state["members"].values():
            member["until"] -= late
        for name, member in state["members"].items():
            if name != claim["member"] and member["until"] > now and member["settings"] != claim["settings"]:
                return {"conflict": member["settings"]}
        old = state["members"].get(claim["member"])
        if old is not None and old["turn"] >= claim["turn"]:
            return {"stale": True}  # it was overtaken by a later one
        if state["run"] is None:
            state.update(run=run, settling=now + max(LEASE_SECONDS - up_seconds, 0.0))
        elif state["run"] != run:
            state.update(run=run, settling=now + LEASE_SECONDS)
        if old is None and claim["known"]:
            state["settling"] = now + LEASE_SECONDS
        me = state["members"][claim["member"]] = {
            "turn": claim["turn"], "settings": claim["settings"],
            "until": 0.0 if claim["leave"] else now + LEASE_SECONDS,
            "rows": claim["rows"], "failed": claim["failed"],
            "units": {unit: [part["spent"], part["held"]] for unit, part in claim["units"].items()},
        }  # fmt: skip
        units = {unit: self._used(unit, part, me, now) for unit, part in claim["units"].items()}
        fits = all(
            not part["take"] or units[unit][3] >= part["least"] * (1 - 1e-9) for unit, part in claim["units"].items()
        )
        for unit, part in claim["units"].items():
            room = units[unit][3]
            if fits and room > 0 and state["settling"] <= now:
                leased = min(part["take"], room)
                leased += max(min(part["ahead"], (room - leased) / AHEAD_SHARE), 0.0)
                units[unit][0] = leased
                me["units"][unit][1] += leased
        return {
            "units": units,
            "rows": sum(member["rows"] for member in state["members"].values()),
            "failed": sum(member["failed"] for member in state["members"].values()),
        }

    def _used(self, unit: str, part: dict[str, float], me: dict[str, Any], now: float) -> list[float]:
        spent = held = elsewhere = 0.0
        for member in self._state["members"].values():
            its_spent, its_held = member["units"].get(unit, (0.0, 0.0))
            spent, held = spent + its_spent, held + its_held
            if member is not me and member["until"] > now:
                elsewhere += its_held
        return [0.0, spent, elsewhere, part["amount"] - spent - held]
