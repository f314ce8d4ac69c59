"""WaitingCalls is the queue of one function: the calls that wait for their limits, and whose turn it is."""

from collections.abc import Sequence

from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import FairQueue, Party
from udf_server.limits.budget import Budget, Needs
from udf_server.limits.guard_account import GuardAccount
from udf_server.limits.waiters import Waiter

__all__ = ["WaitingCalls"]


class WaitingCalls:
    """The limiter uses it with its lock held. A party is charged one turn for each of its calls that begins."""

    def __init__(self) -> None:
        self.queue: FairQueue[Waiter] = FairQueue()
        """The calls that wait, without the first one."""
        self._first: Waiter | None = None
        """The call whose turn it is. It stays the first one until it begins, whoever comes meanwhile."""
        self._billed: dict[Waiter, None] = {}
        """The calls that budgets bound."""
        self._admitted: dict[Waiter, None] = {}
        """The calls on this loop that were admitted with costs and have not begun yet."""
        self._passed_over: dict[Budget, dict[Party, None]] = {}
        """By budget that had too little for the first call of a party, the parties."""

    def __len__(self) -> int:
        return len(self.queue) + (self._first is not None)

    def push(self, waiter: Waiter) -> None:
        """Add a call. If its stream has ended, it is dropped."""
        self.queue.push(waiter.party, waiter)
        if waiter.bills:
            self._billed[waiter] = None

    @property
    def costs(self) -> Sequence[float] | None:
        """What the first call takes of each rate; None if nobody has looked for the first one."""
        return None if self._first is None else self._first.costs

    def first(self) -> Waiter | None:
        """The call whose turn it is, which goes on waiting; None if none waits."""
        while True:
            if self._first is None:
                found = self.queue.pop(1.0, lambda waiter: waiter.gone)
                if found is None:
                    return None
                self._first = found[1]
            if not self._first.gone:
                return self._first
            self.drop_first()

    def admit_first(self, source: GuardAccount, now: float) -> None:
        """Let the first call begin, which takes its units from this account. Call `begin` when it begins."""
        waiter = self._first
        assert waiter is not None
        self._remove_first()
        source.take(waiter.costs, now)
        waiter.source = source
        if waiter.costs:
            self._admitted[waiter] = None
        waiter.admit(now)

    def begin(self, waiter: Waiter, now: float) -> None:
        """Note that an admitted call begins."""
        waiter.began = now
        if waiter in self._admitted:
            del self._admitted[waiter]
            waiter.source.begin(waiter.costs, waiter.taken, now)
        else:  # its loop was replaced, and what it took was returned
            waiter.source.settle(waiter.costs, now, now)

    def _return(self, waiter: Waiter, now: float) -> None:
        """Return the units that an admitted call took, unless it has begun."""
        if waiter in self._admitted:
            del self._admitted[waiter]
            waiter.source.begin(waiter.costs, waiter.taken, now)
            waiter.source.settle([-cost for cost in waiter.costs], now, now)

    def return_all(self, now: float) -> None:
        """Return the units of all calls that were admitted and have not begun."""
        for waiter in list(self._admitted):
            self._return(waiter, now)

    def _remove_first(self) -> None:
        if self._billed and self._first is not None:
            self._billed.pop(self._first, None)
        self._first = None

    def pass_over(self, budget: Budget) -> None:
        """Pass over the party of the first call until `resume`. The call keeps its turn."""
        assert self._first is not None
        self.queue.hold(self._first.party, self._first, 1.0)
        self._passed_over.setdefault(budget, {})[self._first.party] = None
        self._first = None

    def resume(self, budget: Budget) -> None:
        """Serve the parties again that were passed over because of a budget."""
        for party in self._passed_over.pop(budget, ()):
            self.queue.resume(party)

    def holds(self, party: Party) -> bool:
        """Whether the calls of a party are passed over."""
        return self.queue.held(party) is not None

    def needs(self, budget: Budget) -> list[Needs]:
        """What the calls need that are passed over because of a budget."""
        found = []
        for party in self._passed_over.get(budget, ()):
            if calls := self.queue.held(party):
                bills = ((bill, *bill.owner.now()) for bill in calls[0].bills)
                found += [(spender, bill.estimate, len(calls)) for bill, of, spender in bills if of is budget]
        return found

    def refuse_over(self) -> None:
        """Refuse the calls of which a budget is spent."""
        for waiter in list(self._billed):
            try:
                for bill in waiter.bills:
                    bill.owner.now()[0].refuse_if_over()
            except BudgetSpent as error:
                waiter.refused = error
                waiter.wake()
                self._drop(waiter)

    def drop_first(self) -> None:
        """Remove the first call, which does not begin, and give its turn back."""
        if self._first is not None:
            self.queue.charge(self._first.party, -1.0)
            self._remove_first()

    def remove(self, waiter: Waiter, now: float) -> None:
        """Remove a call that waits no more and does not begin, so that nothing is claimed for it.

        If it was admitted at the same moment, return what it took, and its turn.
        """
        if waiter.admitted:
            self._return(waiter, now)
            self.queue.charge(waiter.party, -1.0)
        else:
            self._drop(waiter)

    def _drop(self, waiter: Waiter) -> None:
        if waiter is self._first:
            self.drop_first()
        else:
            self._billed.pop(waiter, None)
            self.queue.remove(waiter.party, waiter)
