"""Planted bugs of limits: turns, fair shares, guards, hedges, admission, and what a client holds."""

import dataclasses
from collections.abc import Callable
from typing import Any

from spark_client.executor.engine.groups import Group
from spark_client.executor.stream.in_flight import MessageSizing
from tests.simulation.mutant import Mutant, nothing, returns, zero
from udf_server.base.fairness import FairQueue, Party
from udf_server.hosting.turns import Turns
from udf_server.limits.breaker import Breaker
from udf_server.limits.budget import Budget
from udf_server.limits.guard_account import GuardAccount
from udf_server.limits.hedge import Hedge, _Race
from udf_server.limits.limiter import Limiter
from udf_server.limits.sharing.ledger import Ledger
from udf_server.limits.sharing.window import Window
from udf_server.streams.accounting import RowAccounts
from udf_server.streams.services import Admission

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


def _all_places(original: Any) -> Any:
    return lambda self, claim, me, now: max(original(self, claim, me, now), claim["most"])


def _newest_back(original: Any) -> Any:
    def take_back(self: Any, amount: float, first: int, now: float) -> None:
        for index in reversed(range(len(self._slots))):
            taken = min(self._amounts[index], amount)
            self._amounts[index] -= taken
            self._sum -= taken
            self._due -= taken * self._pace
            amount -= taken

    return take_back


def _any_number(original: Any) -> Any:
    def init(self: Any, name: str, settings: Any, *rest: Any, **keywords: Any) -> None:
        original(self, name, dataclasses.replace(settings, max_concurrency=None), *rest, **keywords)

    return init


def _unlimited(original: Any) -> Any:
    def init(self: Any, amount: float, seconds: float, *rest: Any) -> None:
        original(self, amount * 1e6, seconds)

    return init


def _without_pace(original: Any) -> Any:
    return lambda self, amount, seconds, burst=None, *rest: original(self, amount, seconds, None, *rest)


def _before_the_wait(original: Any) -> Any:
    lacking = Limiter.__dict__["_lacking"]

    def take(self: Any, costs: Any, bills: Any, *rest: Any) -> Any:
        vars(self)["_lacking"] = lambda found: None if any(bill.spender for bill in found) else lacking(self, found)
        if bills:
            lacking(self, bills)
        return original(self, costs, bills, *rest)

    return take


def _place_kept(original: Any) -> Any:
    kept: dict[int, Any] = {}

    def lacking(self: Any, bills: Any) -> Any:
        found = original(self, bills)
        if found is not None and id(bills) not in kept:
            kept[id(bills)] = bills
            self.in_use += 1
        elif found is None and kept.pop(id(bills), None) is not None:
            self.in_use -= 1
        return found

    return lacking


LIMIT_MUTANTS = (
    Mutant("a worker keeps its place after its rows", Turns, "leave", nothing),
    Mutant("a worker loses its turn at the end of a batch", Turns, "enter", _asks_again),
    Mutant("the caller that was served most comes first", FairQueue, "pop", _most_served_first),
    Mutant("a stream that returns gets what it has missed", FairQueue, "push", _compensated),
    Mutant("rows in flight have no limit", MessageSizing, "has_room", returns(True)),
    Mutant("input is read whatever is held", Group, "bytes", zero),
    Mutant("a guard allows any number of calls at once", GuardAccount, "__init__", _any_number),
    Mutant("the place of a guarded call is not returned", Limiter, "leave", nothing),
    Mutant("a rate is ignored", Window, "__init__", _unlimited),
    Mutant("a rate is not paced", Window, "__init__", _without_pace),
    Mutant("a breaker does not open", Breaker, "failed", returns(False)),
    Mutant("a breaker that tests allows all calls", Breaker, "ask", _tests_at_will),
    Mutant("each server gets all places of a shared guard", Ledger, "_places", _all_places),
    Mutant("units of a shared rate that come back are the newest", Window, "take_back", _newest_back),
    Mutant("a budget does not count what calls report", Budget, "spent", nothing),
    Mutant("a budget is taken before a call waits for its guard", Limiter, "_take", _before_the_wait),
    Mutant("a call that waits for its budget holds a place", Limiter, "_lacking", _place_kept),
    Mutant("any number of hedges is sent", Hedge, "may_send", returns(True)),
    Mutant("the answer of a hedge is not taken", _Race, "_answered", nothing),
    Mutant("a hedge goes on after its row has a value", _Race, "close", _hedge_goes_on),
    Mutant("the limit of a stream's rows is ignored", RowAccounts, "_has_room", returns(True)),
    Mutant("the limits of all streams are ignored", Admission, "_full", nothing),
    Mutant("admission tickets are not returned", Admission, "give_back", nothing),
    Mutant("the rows of a lost stream stay admitted", RowAccounts, "drop", nothing),
    Mutant("a lost stream stays in the fair queue", Party, "close", nothing),
)
