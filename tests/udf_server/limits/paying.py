"""Calls of one function that a budget bounds, without a function: those that begin, wait, and are refused."""

from udf_server.base.call_scope import Spending
from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import ANYONE, Party
from udf_server.limits.budget import Budget
from udf_server.limits.stream_budget import Bill, StreamBudget, take_all

__all__ = ["Call", "Calls", "exchange"]


class Call:
    """One call."""

    def __init__(self, calls: "Calls", estimate: dict[str, float], party: Party, timeout: float) -> None:
        self._calls, self.spending, self.refused = calls, Spending(), ""
        self.bill = Bill(calls, estimate, party, timeout, self.spending)

    @property
    def began(self) -> bool:
        return self.bill.spender is not None

    def try_again(self) -> None:
        """Begin, or be refused, unless it has to wait."""
        try:
            take_all([self.bill], self._calls)
        except BudgetSpent as error:
            self.refused = str(error)
        self._calls.budget.tell_if_over()

    def spend(self, **amounts: float) -> None:
        self.spending.add(amounts)
        self._calls.budget.spent(amounts)

    def end(self, *, good: bool = True, called: bool = True, **amounts: float) -> None:
        if amounts:
            self.spend(**amounts)
        self.bill.end(good=good, called=called)

    def leave(self) -> None:
        """Wait no more."""
        self._calls.waiting.remove(self)


class Calls:
    """The calls of one function."""

    def __init__(self, budget: Budget | StreamBudget, function: str = "f@1") -> None:
        spender = None if isinstance(budget, StreamBudget) else budget.spender(function)
        self.now = budget.now if isinstance(budget, StreamBudget) else lambda: (budget, spender)
        self.waiting: list[Call] = []

    @property
    def budget(self) -> Budget:
        return self.now()[0]

    def begin(self, party: Party = ANYONE, timeout: float = 60.0, **estimate: float) -> Call:
        """A call, which waits if it has neither begun nor been refused."""
        call = Call(self, estimate, party, timeout)
        try:
            self.budget.expect(self)
        except BudgetSpent as error:
            call.refused = str(error)
        if not self.waiting and not call.refused:
            call.try_again()
        if not call.began and not call.refused:
            self.waiting.append(call)
        return call

    def waiting_for(self, budget: Budget):
        return [(self.now()[1], self.waiting[0].bill.estimate, len(self.waiting))] if self.waiting else []

    def look_again(self, budget: Budget) -> None:
        while self.waiting:
            call = self.waiting.pop(0)
            call.try_again()
            if not call.began and not call.refused:
                self.waiting.insert(0, call)
                return


def exchange(budget: Budget, ledger, now: float = 0.0) -> dict:
    """Send a claim of the budget to a ledger, and give it the grant. Returns the claim."""
    claim = {**budget.claim(), "leave": False, "fresh": f"e{id(ledger)}"}
    budget.granted(ledger.exchange(claim, now))
    return claim
