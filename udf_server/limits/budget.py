"""Budget is what this process may take of one budget, of a job or of a caller for a day, and has spent of it."""

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from udf_server.base.errors import BudgetSpent
from udf_server.limits.costs import RunningCall, Spender
from udf_server.limits.rates import CALLS
from udf_server.limits.sharing.account import FORGOTTEN, Account
from udf_server.limits.sharing.grants import Grant, checked_grant
from udf_server.limits.sharing.ledger import Ledger
from udf_server.limits.terms import Terms

__all__ = ["Answers", "Budget", "Needs", "Payer"]

AHEAD_SECONDS = 0.1
"""A claim asks ahead for what calls take in this time."""
LOOK_SECONDS = 0.5
"""How often running calls are looked at that may never end."""
ENOUGH = 1 - 1e-9
"""Sums of fractions are not exact."""
Answers = Callable[[dict[str, Any]], dict[str, Any]]
"""A ledger in this process, which answers a claim at once."""
Needs = tuple[Spender, Mapping[str, float], int]
"""Calls that wait for a budget: whose they are, the estimate of the first one, and their number."""
_order = itertools.count()


class Payer(Protocol):
    """Whose calls a budget bounds: the limiter of a function."""

    def waiting_for(self, budget: "Budget") -> Iterable[Needs]:
        """What its calls that wait for this budget need."""

    def look_again(self, budget: "Budget") -> None:
        """Let its calls look again that wait for this budget."""


@dataclass(slots=True)
class _Unit:
    """What is known of one unit. All but the amount is the part of this process, unless it says otherwise."""

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
    """What calls wait for, and what the first one of a function needs, in turn of each."""
    least: float = 0.0

    @property
    def total(self) -> float:
        """What all processes have spent, as far as this one knows."""
        return self.spent + self.others


class Budget(Account):
    """The budget of a job in one process, for its calls on any thread.

    A call takes what it is going to cost from what was leased. A ledger in this process leases more at once.
    """

    kind = "budget"
    lasts = True

    def __init__(
        self, name: str, terms: Terms, *, whose: str = "this job", caller: str = "", title: str = "",
        fail_open: bool = False, clock: Callable[[], float] = time.monotonic, answers: Answers | None = None,
    ) -> None:  # fmt: skip
        """Create what `name` has spent in this process: nothing. `whose` budget it is, is for messages. `title` says
        for people which of its caller's budgets it is.

        `answers` is the ledger, if it is in this process; otherwise a Coordinator sends the claims. If these are not
        answered for some time, calls wait, or with `fail_open` this process takes the rest of the budget for its own.
        """
        label = f"{caller}, {title}" if caller else title
        super().__init__(name, label, str(terms), threading.Lock(), clock, fail_open=fail_open)
        self.terms, self.caller, self.title, self._whose = terms, caller, title, whose
        self.lock, self.order = self._lock, next(_order)
        self._member = uuid.uuid4().hex
        """A ledger must not take it for an earlier budget of the same name, which has left."""
        self.streams = 0
        """Number of open streams that use it. `Budgets` counts them."""
        self.idle_since = clock()
        self._answers = answers
        self._alone: Answers | None = None
        """The ledger in this process while the one that processes share is away, for `fail_open`."""
        self._units = [_Unit(unit, amount) for unit, amount in terms.amounts]
        self._rows = self._failed = self._other_rows = self._other_failed = 0
        self._claimed_rows = (0, 0)
        self._over = ""
        """Why no call may begin any more; empty before that."""
        self._too_many_errors = False
        """Whether that is final: later rows may change a share, and nothing that was spent comes back."""
        self._told = ""
        """Why calls that wait were told to look again last."""
        self._spenders: dict[str, Spender] = {}
        self._running: dict[RunningCall, None] = {}
        self._looked = clock()
        self._payers: dict[Payer, None] = {}
        """Those whose calls it bounds."""
        self._waiting: dict[Payer, None] = {}
        """Those whose calls have got too little since they were told to look again."""
        if answers is not None:
            self._granted(answers(self._addressed(self._next_claim())))

    def spender(self, function: str) -> Spender:
        """The spender for the calls of a function."""
        with self._lock:
            return self._spenders.setdefault(function, Spender([unit.name for unit in self._units]))

    def ended(self, call: RunningCall, *, good: bool, called: bool = True) -> None:
        """Note that a call has ended, and whether it has a result. It may have been written off.

        `called` is False if it was not made, after all.
        """
        with self._lock:
            for index, unit in enumerate(self._units):
                if not called and unit.name == CALLS:
                    unit.spent -= call.costs[index]
            self._running.pop(call, None)
            if call.lost is None:
                self._give_back(call)
            else:
                for unit, lost in zip(self._units, call.lost, strict=True):
                    unit.spent -= lost
            if not called or call.lost is not None:
                self._look_again()
            call.spender.ended(call.spending.amounts, good=good)
        self.changed()

    def spent(self, amounts: Mapping[str, float]) -> None:
        """Count what a call has spent, as it reports it."""
        with self._lock:
            for unit in self._units:
                if unit.name != CALLS:
                    unit.spent += amounts.get(unit.name, 0.0)
            self._look()
        self.tell_if_over()

    def answered(self, rows: int, failed: int) -> None:
        """Count rows that have an outcome. Those that failed because the budget is spent are not counted."""
        with self._lock:
            self._rows += rows
            self._failed += failed
            if failed:
                self._look()
        self.tell_if_over()

    def look(self) -> None:
        """Write off calls that may never end. Call about once a second."""
        with self._lock:
            self._write_off(self._clock())
        self.changed()

    def leave(self) -> None:
        """Return what was leased to the ledger in this process, if it is there."""
        if self._answers is not None:
            with self._lock:
                self._answers({**self._addressed(self._next_claim(True)), "leave": True})

    @property
    def is_over(self) -> bool:
        """Whether no call may begin any more."""
        return bool(self._over)

    @property
    def is_idle(self) -> bool:
        """Whether no stream uses it and no call runs that may still spend."""
        return not self.streams and not self._running

    @property
    def unavailable(self) -> str:
        """Why calls wait although the budget may not be spent; empty if they do not."""
        if self._fail_open or not self.away:
            return ""
        return (
            f"the budget of {self._whose} is not coordinated: {self._why}; calls go on when it answers, or at once "
            "with the setting budgets_without_coordination = 'fail-open'"
        )

    @property
    def running(self) -> Iterable[RunningCall]:
        """The calls that run and may still spend."""
        return tuple(self._running)

    def amounts(self) -> list[tuple[str, float, float]]:
        """By unit, what all processes have spent, as far as this one knows, and the budget."""
        with self._lock:
            return [(unit.name, unit.total, unit.amount) for unit in self._units]

    def used(self) -> list[tuple[str, float]]:
        """By unit, the part of the budget that all processes have spent, as far as this one knows."""
        return [(unit, spent / most) for unit, spent, most in self.amounts()]

    def claim(self, *, leave: bool = False) -> dict[str, Any]:
        needs = [] if leave else [each for payer in list(self._payers) for each in payer.waiting_for(self)]
        with self._lock:
            self._want(needs)
            return self._next_claim(leave)

    def changed(self) -> None:
        """Let calls look again that wait for more, or all that wait if the budget is spent."""
        if not self._waiting and self._over == self._told:
            return
        with self._lock:
            payers = self._waiting if self._over == self._told else dict(self._payers)
            self._waiting, self._told = {}, self._over
        for payer in payers:
            payer.look_again(self)

    def tell_if_over(self) -> None:
        """Have all calls that wait refused if the budget is spent, unless that was done."""
        if self._over != self._told:
            self.changed()

    # What follows is called with the lock held.

    def expect(self, payer: Payer) -> None:
        """Tell the payer from now on when the budget is spent. Raises BudgetSpent if it is. It needs no lock."""
        self._payers[payer] = None
        self.refuse_if_over()

    def refuse_if_over(self) -> None:
        """Raise BudgetSpent if no call may begin any more. It needs no lock."""
        if self._over:
            raise BudgetSpent(self._over)

    def wait_for_more(self, payer: Payer) -> None:
        """Tell the payer to look again when there may be more, and ask the ledger for it."""
        self._waiting[payer] = None
        self.call_back()

    def fits(self, spender: Spender, estimate: Mapping[str, float]) -> Sequence[float] | None:
        """What a call takes of each unit; None if it has to wait. Raises BudgetSpent."""
        costs = spender.costs(estimate)
        if costs is None:
            return None
        answers = self._answers or self._ledger_for_itself()
        if answers is None and (self.away or not self._epoch):
            return None  # other processes may have spent the budget
        if self._lacks(costs) and answers is not None:
            for unit, cost in zip(self._units, costs, strict=True):
                unit.wanted = unit.least = cost
            answer = answers(self._addressed(self._next_claim()))
            if self._answers is not None:
                self._granted(answer)
            else:
                self._take_grant(checked_grant(answer, *self._expected()), self._clock(), lost=False)
            self.refuse_if_over()
        return None if self._lacks(costs) else costs

    def take(self, call: RunningCall) -> RunningCall:
        """Take what fits for a call, which begins. If it does not end in time, what it has taken is spent."""
        for unit, cost in zip(self._units, call.costs, strict=True):
            unit.recent += cost
            unit.leased = max(unit.leased - cost, 0.0)
            if unit.name == CALLS:
                unit.spent += cost
            else:
                unit.reserved += cost
        call.spender.running += 1
        call.begins(self._clock())
        self._running[call] = None
        self._look()
        return call

    def _lacks(self, costs: Sequence[float]) -> bool:
        return any(cost > 0 and unit.leased < cost * ENOUGH for unit, cost in zip(self._units, costs, strict=True))

    def _addressed(self, claim: dict[str, Any]) -> dict[str, Any]:
        """The claim for a ledger in this process. It has no other members that claim."""
        return {"fresh": self._member, "leave": False, **claim}

    def _ledger_for_itself(self) -> Answers | None:
        """While the ledger of all processes is away: one with what they have spent, as far as this one knows."""
        if not self.is_alone:
            return None
        if self._alone is None:
            ledger, clock = Ledger(), self._clock
            others = {unit.name: {"spent": unit.others, "held": 0.0} for unit in self._units}
            for part, unit in zip(others.values(), self._units, strict=True):
                part.update(amount=unit.amount, take=0.0, least=0.0, ahead=0.0)
            rows = {"rows": self._other_rows, "failed": self._other_failed}
            claim = {**self._next_claim(True), **rows, "units": others, "member": "others", "fresh": "alone"}
            ledger.exchange({**claim, "epoch": "", "leave": True}, clock())
            self._alone = lambda claim: ledger.exchange({**claim, "epoch": ""}, clock())
        return self._alone

    def _look(self) -> None:
        """Note if the budget is spent."""
        if self._over:
            return
        for unit in self._units:
            if unit.total >= unit.amount * ENOUGH:
                self._over = (
                    f"the budget of {self._whose} is spent: {unit.total:,.6g} of {unit.amount:,.6g} {unit.name}"
                )
        rows, failed = self._rows + self._other_rows, self._failed + self._other_failed
        if allowed := self.terms.errors.exceeded(failed, rows):
            self._too_many_errors = True
            self._over = f"{failed:,} of {rows:,} rows of {self._whose} have failed; its budget allows {allowed}"

    def _look_again(self) -> None:
        """Let calls begin again if the budget is not spent any more: a call was not made, or ended late."""
        if not self._too_many_errors:
            self._over = ""
            self._look()

    def _give_back(self, call: RunningCall) -> None:
        """Hold nothing for a call any more."""
        call.spender.running -= 1
        for unit, cost in zip(self._units, call.costs, strict=True):
            if unit.name != CALLS:
                unit.reserved = max(unit.reserved - cost, 0.0)

    def _write_off(self, now: float) -> None:
        """Count what calls have taken as spent that may never end, so that others do not wait for them."""
        self._looked = now
        for call in [call for call in self._running if call.is_written_off(now)]:
            del self._running[call]
            self._give_back(call)
            call.lost = [
                0.0 if unit.name == CALLS else max(cost - call.spending.amounts.get(unit.name, 0.0), 0.0)
                for unit, cost in zip(self._units, call.costs, strict=True)
            ]
            for unit, lost in zip(self._units, call.lost, strict=True):
                unit.spent += lost
        self._look()

    def _want(self, needs: Sequence[Needs]) -> None:
        """Note what calls wait for."""
        for unit in self._units:
            unit.wanted = unit.least = 0.0
        chosen = needs[self._number % len(needs)][0] if needs else None
        for spender, estimate, number in needs:
            costs = spender.costs(estimate)
            for unit, cost in zip(self._units, costs or (), strict=costs is not None):
                unit.wanted += cost * number
                if spender is chosen:
                    unit.least = cost

    def _needs(self) -> tuple[bool, bool]:
        busy = any(spender.running for spender in self._spenders.values())
        busy = busy or any(unit.leased or unit.spent != unit.claimed for unit in self._units)
        return bool(self._waiting), busy or (self._rows, self._failed) != self._claimed_rows

    def _claim(self, leave: bool, now: float) -> dict[str, Any]:
        if now >= self._looked + LOOK_SECONDS:
            self._write_off(now)
        if self._alone is not None and not self.is_alone:
            self._alone = None
            for unit in self._units:
                unit.leased = 0.0
        elapsed = max(now - self._sent, 0.01)
        waits, units = any(unit.wanted for unit in self._units), {}
        for unit in self._units:
            ahead = 0.0 if leave else unit.recent / elapsed * AHEAD_SECONDS
            # What calls wait for and does not fit may be what others wait for, so nothing is kept meanwhile.
            unit.leased = 0.0 if waits or leave else min(unit.leased, ahead)
            units[unit.name] = {
                "amount": unit.amount, "spent": unit.spent, "held": unit.reserved + unit.leased,
                "take": 0.0 if leave else unit.wanted, "least": unit.least, "ahead": max(ahead - unit.leased, 0.0),
            }  # fmt: skip
            recent = unit.recent / 2
            unit.recent = recent if recent > unit.amount * FORGOTTEN else 0.0
            unit.claimed, unit.claimed_held = unit.spent, unit.reserved
        self._claimed_rows = (self._rows, self._failed)
        return {"member": self._member, "units": units, "rows": self._rows, "failed": self._failed}

    def _expected(self) -> tuple[int, Iterable[float], Iterable[str]]:
        return -1, (), (unit.name for unit in self._units)

    def _take_grant(self, grant: Grant, now: float, *, lost: bool) -> bool:
        more, less = False, False
        for unit, (leased, spent, elsewhere, _) in zip(self._units, grant.units, strict=True):
            unit.leased += leased
            unit.elsewhere, others = elsewhere, max(spent - unit.claimed, 0.0)
            more, less = more or leased > 0, less or others < unit.others
            unit.others = others
        rows, failed = self._claimed_rows
        self._other_rows, self._other_failed = grant.rows - rows, grant.failed - failed
        if less:
            self._look_again()
        self._look()
        self._look_for_room([numbers[3] for numbers in grant.units])
        return more

    def _look_for_room(self, room: Sequence[float]) -> None:
        """Note if the budget is spent because a call does not fit, and nothing can come back: no process holds any.

        What processes held that have crashed is spent.
        """
        for unit, left in zip(self._units, room, strict=True):
            held = unit.claimed_held + unit.elsewhere
            if unit.least > 0 and left < unit.least * ENOUGH and held <= unit.amount * (1 - ENOUGH) and not self._over:
                self._over = (
                    f"the budget of {self._whose} is spent: {unit.total:,.6g} of {unit.amount:,.6g} {unit.name}, and "
                    f"a call costs {unit.least:,.6g}"
                )

    def _arrived(self) -> None:
        pass  # claims have sums, so the next one says it all

    def _lost(self) -> None:
        pass
