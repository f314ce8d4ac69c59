"""BudgetSums are what this process has of a budget, by unit, and whether all processes have spent it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from udf_server.limits.budget_costs import Terms
from udf_server.limits.settings import CALLS
from udf_server.limits.sharing.account import FORGOTTEN
from udf_server.limits.sharing.claims import Grant, LimitClaim, UnitClaim

__all__ = ["BudgetSums"]

AHEAD_SECONDS = 0.1
"""A claim asks ahead for what calls take in this time."""
ENOUGH = 1 - 1e-9
"""Sums of fractions are not exact."""


@dataclass(slots=True)
class _Unit:
    """One unit. A number without a comment about other processes is the part of this process; the amount is for all."""

    name: str
    amount: float
    leased: float = 0.0
    """What calls may take."""
    reserved: float = 0.0
    """What calls that run have taken."""
    spent: float = 0.0
    others: float = 0.0
    """What other processes have spent."""
    elsewhere: float = 0.0
    """What other processes hold."""
    recent: float = 0.0
    """What was taken since the last claim."""
    claimed: float = 0.0
    """What was spent when the last claim was made, and what calls held then."""
    claimed_held: float = 0.0
    wanted: float = 0.0
    """What the calls that wait need together."""
    least: float = 0.0
    """What the first call that waits of one function needs. Functions take turns."""

    @property
    def total(self) -> float:
        """What all processes have spent, as far as this one knows."""
        return self.spent + self.others

    def claim(self, elapsed: float, *, waits: bool, leave: bool) -> UnitClaim:
        """Its part of a claim, `elapsed` seconds after the last one. `waits`: calls wait for more of some unit."""
        ahead = 0.0 if leave else self.recent / elapsed * AHEAD_SECONDS
        # What calls wait for and does not fit may be what others wait for, so nothing is kept meanwhile.
        self.leased = 0.0 if waits or leave else min(self.leased, ahead)
        recent = self.recent / 2
        self.recent = recent if recent > self.amount * FORGOTTEN else 0.0
        self.claimed, self.claimed_held = self.spent, self.reserved
        return {
            "amount": self.amount, "spent": self.spent, "held": self.reserved + self.leased,
            "take": 0.0 if leave else self.wanted, "least": self.least, "ahead": max(ahead - self.leased, 0.0),
        }  # fmt: skip

    def granted(self, leased: float, spent: float, elsewhere: float) -> bool:
        """Take the first numbers of a grant. Returns whether other processes have spent less than was thought."""
        self.leased += leased
        self.elsewhere, before, self.others = elsewhere, self.others, max(spent - self.claimed, 0.0)
        return self.others < before


class BudgetSums:
    """The units of one budget, and the rows that have failed. The budget uses them with its lock held."""

    def __init__(self, terms: Terms, whose: str) -> None:
        """`whose` budget it is, is for messages."""
        self._terms, self._whose = terms, whose
        self._units = [_Unit(unit, amount) for unit, amount in terms.amounts]
        self.names = [unit.name for unit in self._units]
        self._rows, self._failed = _Unit("rows", math.inf), _Unit("failed rows", math.inf)
        self._counted = [*self._units, self._rows, self._failed]
        self.over = ""
        """Why no call may begin any more; empty before that."""
        self._too_many_errors = False
        """Whether that is final: later rows may change a share, and nothing that was spent comes back."""

    def amounts(self) -> list[tuple[str, float, float]]:
        """By unit, what all processes have spent, as far as this one knows, and the budget."""
        return [(unit.name, unit.total, unit.amount) for unit in self._units]

    @property
    def changed(self) -> bool:
        """Whether the ledger does not know all sums, or anything is leased."""
        return any(unit.leased or unit.spent != unit.claimed for unit in self._counted)

    def lacks(self, costs: Sequence[float]) -> bool:
        """Whether a call has to wait for more."""
        return any(cost > 0 and unit.leased < cost * ENOUGH for unit, cost in zip(self._units, costs, strict=True))

    def take(self, costs: Sequence[float]) -> None:
        """Take what a call needs, which begins. A call of the unit `calls` is spent then."""
        for unit, cost in zip(self._units, costs, strict=True):
            unit.recent += cost
            unit.leased = max(unit.leased - cost, 0.0)
            if unit.name == CALLS:
                unit.spent += cost
            else:
                unit.reserved += cost
        self.look()

    def give_back(self, costs: Sequence[float]) -> None:
        """Hold nothing any more for a call that has taken this. What it has spent is counted when it reports it."""
        for unit, cost in zip(self._units, costs, strict=True):
            if unit.name != CALLS:
                unit.reserved = max(unit.reserved - cost, 0.0)

    def not_called(self, costs: Sequence[float]) -> None:
        """Count a call no more that was not made after all."""
        for unit, cost in zip(self._units, costs, strict=True):
            if unit.name == CALLS:
                unit.spent -= cost

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count what a call has reported or, if negative, was counted in vain."""
        for unit in self._units:
            if unit.name != CALLS:
                unit.spent += amounts.get(unit.name, 0.0)

    def unreported(self, costs: Sequence[float], spent: Mapping[str, float]) -> dict[str, float]:
        """By unit, what a call has taken beyond what it has reported."""
        return {
            unit.name: max(cost - spent.get(unit.name, 0.0), 0.0) for unit, cost in zip(self._units, costs, strict=True)
        }

    def answered(self, rows: int, failed: int) -> None:
        """Count rows that have an outcome."""
        self._rows.spent += rows
        self._failed.spent += failed

    def want(self, needs: Iterable[tuple[Sequence[float], int, bool]]) -> None:
        """Ask for this only: what a call costs that waits, for how many, and whether a grant must be enough for one."""
        for unit in self._units:
            unit.wanted = unit.least = 0.0
        for costs, calls, least in needs:
            for unit, cost in zip(self._units, costs, strict=True):
                unit.wanted += cost * calls
                unit.least = cost if least else unit.least

    def lease_rest(self) -> None:
        """Lease all that no process has spent, as far as this one knows, and that its calls do not hold."""
        for unit in self._units:
            unit.leased = max(unit.amount - unit.total - unit.reserved, 0.0)
            unit.claimed_held, unit.elsewhere = unit.reserved, 0.0
        self._look_for_room([unit.leased for unit in self._units])

    def claim(self, elapsed: float, *, leave: bool) -> LimitClaim:
        """The sums of a claim, `elapsed` seconds after the last one."""
        waits = any(unit.wanted for unit in self._units)
        claims = [unit.claim(elapsed, waits=waits, leave=leave) for unit in self._counted]
        rows, failed = int(self._rows.claimed), int(self._failed.claimed)
        return {"units": dict(zip(self.names, claims, strict=False)), "rows": rows, "failed": failed}

    def granted(self, grant: Grant) -> bool:
        """Take what was granted. Returns whether anything was leased."""
        found = [*grant.units, [0.0, grant.rows, 0.0], [0.0, grant.failed, 0.0]]
        less = [unit.granted(*numbers[:3]) for unit, numbers in zip(self._counted, found, strict=True)]
        if any(less):
            self.look_again()
        self.look()
        self._look_for_room([numbers[3] for numbers in grant.units])
        return any(numbers[0] > 0 for numbers in grant.units)

    def look(self) -> None:
        """Note if the budget is spent."""
        if self.over:
            return
        for unit in self._units:
            if unit.total >= unit.amount * ENOUGH:
                self.over = self._spent(unit)
        rows, failed = int(self._rows.total), int(self._failed.total)
        if failed and (allowed := self._terms.errors.exceeded(failed, rows)):
            self._too_many_errors = True
            self.over = f"{failed:,} of {rows:,} rows of {self._whose} have failed; its budget allows {allowed}"

    def look_again(self) -> None:
        """Note if the budget is not spent any more: a call was not made, or ended late."""
        if not self._too_many_errors:
            self.over = ""
            self.look()

    def _look_for_room(self, room: Sequence[float]) -> None:
        """Note if the budget is spent because a call that waits does not fit, and nothing can come back.

        Nothing can if no process holds any. What processes held that have crashed is spent.
        """
        for unit, left in zip(self._units, room, strict=True):
            held = unit.claimed_held + unit.elsewhere
            if unit.least > 0 and left < unit.least * ENOUGH and held <= unit.amount * (1 - ENOUGH) and not self.over:
                self.over = f"{self._spent(unit)}, and a call costs {unit.least:,.6g}"

    def _spent(self, unit: _Unit) -> str:
        return f"the budget of {self._whose} is spent: {unit.total:,.6g} of {unit.amount:,.6g} {unit.name}"
