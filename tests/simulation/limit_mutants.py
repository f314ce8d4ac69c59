"""Planted bugs of limits: turns, fair shares, guards, hedges, admission, and what a client holds."""

from collections.abc import Callable
from typing import Any

from spark_client.executor.engine.groups import Group
from spark_client.executor.stream.message_sizing import MessageSizing
from tests.simulation.mutant import Mutant, nothing, returns, zero
from udf_server.base.fairness import FairQueue, Party
from udf_server.hosting.turns import Turns
from udf_server.limits.breaker import Breaker
from udf_server.limits.gate import Gate
from udf_server.limits.hedge import Hedge, _Race
from udf_server.limits.job_budget import JobBudget
from udf_server.limits.local_limits import LocalLimits
from udf_server.limits.rates import MovingWindow
from udf_server.limits.sharing import ledger
from udf_server.streams.accounting import RowAccounts
from udf_server.streams.admission import Admission

__all__ = ["LIMIT_MUTANTS"]


def _asks_again(original: Any) -> Any:
    return lambda self, holder: not self.busy and original(self, holder)


def _most_served_first(original: Any) -> Any:
    return lambda self, cost, *rest: original(self, -cost, *rest)


def _compensated(original: Any) -> Any:
    def push(self: Any, party: Any, item: Any) -> None:
        leaf = self._leaf(party)
        served = leaf.served
        original(self, party, item)
        leaf.served = served

    return push


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: property(lambda self: value)


def _tests_at_will(original: Any) -> Any:
    def ask(self: Any, now: float) -> float:
        was_open = not self.closed and now < self._until
        found: float = original(self, now)
        return found if was_open else 0.0

    return ask


def _hedge_goes_on(original: Any) -> Any:
    def close(self: Any) -> None:
        self.second = None
        original(self)

    return close


def _all_permits(original: Any) -> Any:
    return lambda state, claim, now: max(original(state, claim, now), claim["most"])


def _newest_back(original: Any) -> Any:
    def take_back(used: Any, rate: Any, now: float) -> None:
        for _, amount in rate["back"]:
            for each in sorted(used, key=int, reverse=True):
                taken = min(used[each], amount)
                used[each] -= taken
                amount -= taken

    return take_back


LIMIT_MUTANTS = (
    Mutant("a worker keeps its place after its rows", Turns, "leave", nothing),
    Mutant("a worker loses its turn at the end of a batch", Turns, "enter", _asks_again),
    Mutant("the caller that was served most comes first", FairQueue, "pop", _most_served_first),
    Mutant("a stream that returns gets what it has missed", FairQueue, "_push", _compensated),
    Mutant("rows in flight have no limit", MessageSizing, "has_room", returns(True)),
    Mutant("input is read whatever is held", Group, "bytes", zero),
    Mutant("a guard allows any number of calls at once", LocalLimits, "places", _always(float("inf"))),
    Mutant("the place of a guarded call is not returned", Gate, "leave", nothing),
    Mutant("a rate is ignored", MovingWindow, "wait", returns(0.0)),
    Mutant("a breaker does not open", Breaker, "failed", returns(False)),
    Mutant("a breaker that tests allows all calls", Breaker, "ask", _tests_at_will),
    Mutant("each server gets all permits of a shared guard", ledger, "_permits", _all_permits),
    Mutant("tokens of a shared rate that come back are the newest", ledger, "_take_back", _newest_back),
    Mutant("a budget does not count what calls report", JobBudget, "spent", nothing),
    Mutant("any number of hedges is sent", Hedge, "may_send", returns(True)),
    Mutant("the answer of a hedge is not taken", _Race, "_answered", nothing),
    Mutant("a hedge goes on after its row has a value", _Race, "close", _hedge_goes_on),
    Mutant("the limit of a stream's rows is ignored", RowAccounts, "_has_room", returns(True)),
    Mutant("the limits of all streams are ignored", Admission, "_full", nothing),
    Mutant("admission tickets are not returned", Admission, "give_back", nothing),
    Mutant("the rows of a lost stream stay admitted", RowAccounts, "drop", nothing),
    Mutant("a lost stream stays in the fair queue", Party, "close", nothing),
)
