"""Budget is what this process may take of one budget, of a job or of a caller for a day, and has spent of it."""

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from udf_server.base.errors import BudgetSpent
from udf_server.limits.budget_costs import GRACE_SECONDS, RunningCall, Spender, Terms
from udf_server.limits.budget_sums import BudgetSums
from udf_server.limits.sharing.account import Account
from udf_server.limits.sharing.claims import Grant, LedgerAnswer, LimitClaim

__all__ = ["Answers", "Budget", "Needs", "Payer"]

LOOK_SECONDS = 0.5
"""How often running calls are looked at that may never end."""
Answers = Callable[[LimitClaim], LedgerAnswer]
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
        super().__init__(
            name, label, str(terms), threading.Lock(), clock, limit=f"the budget of {whose}", fail_open=fail_open,
            opening="budgets_without_coordination = 'fail-open'",
        )  # fmt: skip
        self.terms, self.caller, self.title = terms, caller, title
        self.lock, self.order = self._lock, next(_order)
        self._member = uuid.uuid4().hex
        """A ledger must not take it for an earlier budget of the same name, which has left."""
        self.streams = 0
        """Number of open streams that use it. `Budgets` counts them."""
        self.idle_since = clock()
        self._answers = answers
        self._sums = BudgetSums(terms, whose)
        self._told = ""
        """Why calls that wait were told to look again last."""
        self._spenders: dict[str, Spender] = {}
        self.running: dict[RunningCall, None] = {}
        """The calls that run and may still spend."""
        self._looked = clock()
        self._payers: dict[Payer, None] = {}
        """Those whose calls it bounds."""
        self._waiting: dict[Payer, None] = {}
        """Those whose calls have got too little since they were told to look again."""
        if answers is not None:
            self._granted(answers(self._next_claim()))

    def spender(self, function: str) -> Spender:
        """The spender for the calls of a function."""
        with self._lock:
            return self._spenders.setdefault(function, Spender(self._sums.names))

    def ended(self, call: RunningCall, spender: Spender, *, good: bool, called: bool) -> None:
        """Note that a call has ended, which may have been written off. `called`: it was made."""
        with self._lock:
            self.running.pop(call, None)
            if not called:
                self._sums.not_called(call.costs)
            if call.lost is None:
                self._give_back(call, spender)
            else:
                self._sums.spend({unit: -lost for unit, lost in call.lost.items()})
            if not called or call.lost is not None:
                self._sums.look_again()
            spender.ended(call.spending.amounts, good=good)
        self.changed()

    def spent(self, amounts: Mapping[str, float]) -> None:
        """Count what a call has spent, as it reports it."""
        with self._lock:
            self._sums.spend(amounts)
            self._sums.look()
        self.tell_if_over()

    def answered(self, rows: int, failed: int) -> None:
        """Count rows that have an outcome. Those that failed because the budget is spent are not counted."""
        with self._lock:
            self._sums.answered(rows, failed)
            if failed:
                self._sums.look()
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
                self._answers(self._next_claim(leave=True))

    @property
    def is_over(self) -> bool:
        """Whether no call may begin any more."""
        return bool(self._sums.over)

    @property
    def is_idle(self) -> bool:
        """Whether no stream uses it and no call runs that may still spend."""
        return not self.streams and not self.running

    def amounts(self) -> list[tuple[str, float, float]]:
        """By unit, what all processes have spent, as far as this one knows, and the budget."""
        with self._lock:
            return self._sums.amounts()

    def claim(self, *, leave: bool = False) -> LimitClaim:
        needs = [] if leave else [each for payer in list(self._payers) for each in payer.waiting_for(self)]
        with self._lock:
            self._want(needs)
            return self._next_claim(leave)

    def changed(self) -> None:
        """Let calls look again that wait for more, or all that wait if the budget is spent."""
        if not self._waiting and self._sums.over == self._told:
            return
        with self._lock:
            payers = self._waiting if self._sums.over == self._told else dict(self._payers)
            self._waiting, self._told = {}, self._sums.over
        for payer in payers:
            payer.look_again(self)

    def tell_if_over(self) -> None:
        """Have all calls that wait refused if the budget is spent, unless that was done."""
        if self._sums.over != self._told:
            self.changed()

    # What follows is called with the lock held.

    def expect(self, payer: Payer) -> None:
        """Tell the payer from now on when the budget is spent. Raises BudgetSpent if it is. It needs no lock."""
        self._payers[payer] = None
        self.refuse_if_over()

    def refuse_if_over(self) -> None:
        """Raise BudgetSpent if no call may begin any more. It needs no lock."""
        if self._sums.over:
            raise BudgetSpent(self._sums.over)

    def wait_for_more(self, payer: Payer) -> None:
        """Tell the payer to look again when there may be more, and ask the ledger for it."""
        self._waiting[payer] = None
        self.call_back()

    def fits(self, spender: Spender, estimate: Mapping[str, float]) -> Sequence[float] | None:
        """What a call takes of each unit; None if it has to wait. Raises BudgetSpent."""
        costs = spender.costs(estimate)
        if costs is None:
            return None
        if self._answers is None and not self.is_alone and (self.away or not self._epoch):
            return None  # other processes may have spent the budget
        if self._sums.lacks(costs) and (self._answers is not None or self.is_alone):
            self._sums.want([(costs, 1, True)])
            if self._answers is not None:
                self._granted(self._answers(self._next_claim()))
            else:  # the ledger of all processes is away
                self._sums.lease_rest()
            self.refuse_if_over()
        return None if self._sums.lacks(costs) else costs

    def take(self, call: RunningCall, spender: Spender, costs: Sequence[float]) -> None:
        """Take what fits for a call, which begins. If it does not end in time, what it has taken is spent."""
        self._sums.take(costs)
        call.spender, call.costs, call.until = spender, costs, self._clock() + call.timeout + GRACE_SECONDS
        spender.running += 1
        self.running[call] = None

    def _give_back(self, call: RunningCall, spender: Spender) -> None:
        """Hold nothing for a call any more."""
        spender.running -= 1
        self._sums.give_back(call.costs)

    def _write_off(self, now: float) -> None:
        """Count what calls have taken as spent that may never end, so that others do not wait for them."""
        self._looked = now
        for call in list(self.running):
            if call.party.closed:
                call.until = min(call.until, now + GRACE_SECONDS)
            if now <= call.until or call.spender is None:
                continue
            del self.running[call]
            self._give_back(call, call.spender)
            call.lost = self._sums.unreported(call.costs, call.spending.amounts)
            self._sums.spend(call.lost)
        self._sums.look()

    def _want(self, needs: Sequence[Needs]) -> None:
        """Note what calls wait for."""
        chosen = needs[self._number % len(needs)][0] if needs else None
        wanted = ((spender.costs(estimate), number, spender is chosen) for spender, estimate, number in needs)
        self._sums.want((costs, number, least) for costs, number, least in wanted if costs is not None)

    def _needs(self) -> tuple[bool, bool]:
        return bool(self._waiting), bool(self.running) or self._sums.changed

    def _claim(self, leave: bool, now: float) -> LimitClaim:
        if now >= self._looked + LOOK_SECONDS:
            self._write_off(now)
        sums = self._sums.claim(max(now - self._sent, 0.01), leave=leave)
        return {"member": self._member, "fresh": self._member, **sums}

    def _expected(self) -> tuple[int, Iterable[float], Iterable[str]]:
        return -1, (), self._sums.names

    def _take_grant(self, grant: Grant, now: float, *, lost: bool) -> bool:
        return self._sums.granted(grant)
