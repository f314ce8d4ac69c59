"""Limiter decides whether a call of a function may begin now, waits, or is refused, and lets those that wait begin."""

import asyncio
import collections
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from remote_udf.functions import FunctionKind
from udf_server.base.attempts import NotCalled
from udf_server.base.call_scope import current_scope
from udf_server.base.errors import BudgetSpent, CircuitOpen, InvalidConfig, RetryableError
from udf_server.base.functions import Function
from udf_server.base.spending import Spending
from udf_server.limits.bills import Bill, take_all
from udf_server.limits.breaker import ADAPTIVE_MOST, WORKED, AdaptiveLimit, Breaker, CallOutcome
from udf_server.limits.budget import Budget, Needs
from udf_server.limits.costs import CallCosts
from udf_server.limits.guard_account import Demand, GuardAccount
from udf_server.limits.guard_metrics import GuardMetrics
from udf_server.limits.queue import NewWaiter, Steps, Waiter, WaitingCalls
from udf_server.limits.settings import GuardSettings

__all__ = ["Limiter"]

log = logging.getLogger(__name__)

PAUSE_MOST_SECONDS = 3_600.0
"""Longest pause of a rate that a service can ask for."""


class Limiter:
    """The guard of one function, if it has one, and the calls that run or wait. Any thread or loop may use it.

    A call takes a place, units of the rates and of its budgets, all or nothing. While a budget has nothing for it, the
    calls of its stream are passed over and keep their turn. For a call ask `takes_at_once`, which nearly always allows
    it, and otherwise `enter`, which waits. Call `leave` after each call that began.

    A guard counts a call as failed if it raises RetryableError, a retryable Failure, TimeoutError or OSError, or if its
    deadline cancels it. Any other exception concerns the row only. A call for many rows may name those that have
    failed: see `breaker.py`. A call that is cancelled because its client is gone, or because the other one of two
    calls (`hedge-after`) has given the outcome, does not count.
    """

    def __init__(
        self, key: str, settings: GuardSettings | None = None, metrics: GuardMetrics | None = None,
        clock: Callable[[], float] = time.monotonic, *, shared: bool = False,
    ) -> None:  # fmt: skip
        """Without settings, there is no guard, and budgets alone limit the calls.

        If `shared` is set, nothing is allowed before a Coordinator has joined `sharing` to a ledger.
        """
        self.key, self.clock, self._metrics = key, clock, metrics
        self._settings = settings = settings or GuardSettings()
        self.costs = CallCosts(key, settings.rate)
        self._lock = threading.Lock()
        """Held only for short operations: calls run on several threads and loops. For each call it is acquired and
        released explicitly, which takes half as long as `with`."""
        self.account = GuardAccount(
            key, settings, self._lock, self._demand, self._changed, clock, shared=shared and settings.has_sums
        )  # fmt: skip
        self.sharing = self.account if shared and settings.has_sums else None
        """The account that processes share; None if there is none, or if the limits are those of this process."""
        self._adaptive = AdaptiveLimit(settings.max_concurrency or ADAPTIVE_MOST) if settings.adaptive else None
        self._breaker = (
            Breaker(settings.breaker_failures, settings.breaker_delay) if settings.breaker_failures else None
        )
        self.one_call: Sequence[float] = (1.0,) * len(settings.rate)
        """What a call takes of each rate if all rates count calls."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose calls are counted. If a blocked loop is replaced, its calls are not counted any more."""
        self._waiting = WaitingCalls()
        self._admitted: dict[Waiter, None] = {}
        """The calls on this loop that were admitted with costs and have not begun yet."""
        self._later: collections.deque[Callable[[], object]] = collections.deque()
        """What is to be done without the lock: budgets have locks of their own, and tell other functions."""
        self._in_use = 0
        self._calm = True
        """Whether surely no call waits for its turn. Then a call need not look at the queue."""
        self._shown: tuple[float, bool] = (-1.0, False)
        """What the metrics show: the number of calls that may run at once, and whether the breaker is closed."""
        self._show()

    def require(self, function: Function) -> None:
        """Raises InvalidConfig if it is not a scalar function, or if a rate has a unit that its calls do not cost."""
        if function.spec.kind is not FunctionKind.SCALAR:
            raise InvalidConfig(
                f"setting guards: {self.key} is an {function.spec.kind} function; guards are for scalar functions"
            )
        self.costs.require(function)

    @property
    def closed(self) -> bool:
        """Whether the breaker is closed, so that calls are made."""
        return self._breaker is None or self._breaker.closed

    @property
    def in_use(self) -> int:
        """Number of calls that run, or were admitted and begin soon."""
        return self._in_use

    @property
    def waiting(self) -> WaitingCalls:
        """The calls that wait, for those who look at them."""
        return self._waiting

    @property
    def _places(self) -> float:
        """Number of calls that may run at once."""
        places = self.account.places
        return places if self._adaptive is None else min(self._adaptive.limit, places)

    def is_full(self) -> bool:
        """Whether calls wait for their turn."""
        return len(self._waiting) > 0

    def takes_at_once(self, costs: Sequence[float], now: float, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Take a place and units for a call without budgets, as nearly every one can. Otherwise `enter` decides."""
        self._lock.acquire()
        try:
            if not self._calm or self._loop is not loop or (self._breaker is not None and not self._breaker.closed):
                return False
            if self._adaptive is not None and self._in_use >= self._adaptive.limit:
                return False
            if not self.account.take_at_once(costs, self._in_use, now):
                return False
            self._in_use += 1
            return True
        finally:
            self._lock.release()

    def enter(
        self, costs: Sequence[float], bills: Sequence[Bill], loop: asyncio.AbstractEventLoop | None, make: NewWaiter
    ) -> Steps[tuple[float, GuardAccount]]:
        """The steps of a call until it may begin. They return when it begins, and the account that it took from.

        `loop` is that of the call, or None for a thread. Raises BudgetSpent, CircuitOpen, or RetryableError.
        """
        try:
            waiter, began, source = self._take(costs, bills, make, loop)
        finally:
            self._do_later()
        if waiter is not None:
            try:
                yield waiter
            except NotCalled as late:
                late.unavailable = next(filter(None, (bill.owner.now()[0].unavailable for bill in bills)), "")
                self._forget(waiter, loop)
                raise
            if not waiter.admitted:
                self._refuse(waiter, loop)
            began, source = self._begin(waiter), waiter.source
        self._ask(costs, bills, began, source, loop)
        return began, source

    def leave(
        self, outcome: CallOutcome | None, began: float, costs: Sequence[float], source: GuardAccount,
        spending: Spending | None, loop: asyncio.AbstractEventLoop | None,
    ) -> None:  # fmt: skip
        """Record a call that has ended. Its outcome is None if it was cancelled for a reason of its client."""
        goal, opened = self._settings.latency_goal, False
        in_time = goal is None or self.clock() - began <= goal
        self._lock.acquire()
        try:
            if self._loop is not loop:
                return
            self.account.left(self._in_use)
            if outcome is not None:
                opened = self._learn(outcome, in_time)
                if outcome.retry_after and self._settings.rate:
                    self.account.pause(min(outcome.retry_after, PAUSE_MOST_SECONDS))
            if spending is not None and spending.amounts and costs:
                rates = self._settings.rate
                spent = ((spending.amounts.get(rate.unit), cost) for rate, cost in zip(rates, costs, strict=True))
                amounts = [0.0 if actual is None else actual - cost for actual, cost in spent]
                source.settle(amounts, began, self.clock())
            self._in_use -= 1
            if not self._calm:
                self._admit()
        finally:
            self._lock.release()
        if self._later:
            self._do_later()
        if opened:
            log.warning("circuit opened", extra={"function": self.key})
        if outcome is not WORKED or self._settings.adaptive or not self._shown[1]:
            self._show()

    def waiting_for(self, budget: Budget) -> Iterable[Needs]:
        """What the calls that wait for a budget need."""
        with self._lock:
            return self._waiting.needs(budget)

    def look_again(self, budget: Budget) -> None:
        """Let the calls look again that were passed over because of a budget, and refuse those that it never allows."""
        with self._lock:
            self._waiting.resume(budget)
            self._calm = False
            if budget.is_over:
                self._waiting.refuse_over()
            self._admit()
        self._do_later()

    def try_again(self) -> None:
        """Let calls begin whose time has come."""
        with self._lock:
            self._admit()
        self._do_later()

    def _do_later(self) -> None:
        while True:
            try:
                todo = self._later.popleft()
            except IndexError:
                return
            todo()

    def _learn(self, outcome: CallOutcome, in_time: bool) -> bool:
        """Adapt to a call that ends. Returns whether that opened the breaker. Call with the lock held."""
        if self._adaptive is not None:
            if in_time and not outcome.overloaded:
                self._adaptive.succeeded(self._in_use)
            else:
                self._adaptive.failed(self._in_use)
        if self._breaker is None:
            return False
        if outcome.went_well:
            self._breaker.succeeded(0.0 if self._breaker.closed else self.clock())
            return False
        return self._breaker.failed(self.clock())

    def _take(
        self, costs: Sequence[float], bills: Sequence[Bill], make: NewWaiter, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[Waiter | None, float, GuardAccount]:
        """Take all that a call needs, or queue for it. Returns None or a waiter, when it began, and the account."""
        party = current_scope.get().party
        with self._lock:
            now = self.clock()
            if self._loop is not loop:
                # The calls that were admitted on a loop that blocks may never begin.
                for admitted in list(self._admitted):
                    self._return(admitted)
                self._loop, self._in_use, self._waiting = loop, 0, WaitingCalls()
            self._refuse_if_unavailable()
            for bill in bills:
                bill.owner.now()[0].expect(self)
            source = self.account.source
            free = self._in_use < self._places and not len(self._waiting) and not self._waiting.holds(party)
            if free and not source.wait(costs, now) and self._lacking(bills) is None:
                source.take(costs, now)
                source.begin(costs, now, now)
                self._in_use += 1
                return None, now, source
            waiter = make(costs, bills)
            self._waiting.push(party, waiter)
            self._calm = False
            self._admit()
            if not waiter.admitted:
                self.account.call_back()
            return waiter, now, source

    def _lacking(self, bills: Sequence[Bill]) -> Budget | None:
        """Take what a call costs of its budgets, or nothing. Returns one that has too little. Raises BudgetSpent."""
        if not bills:
            return None
        try:
            return take_all(bills, self)
        finally:
            self._later.extend(bill.budget.tell_if_over for bill in bills if bill.budget is not None)

    def _begin(self, waiter: Waiter) -> float:
        began = self.clock()
        if waiter.costs:
            with self._lock:
                if waiter in self._admitted:
                    del self._admitted[waiter]
                    waiter.source.begin(waiter.costs, waiter.taken, began)
                else:  # its loop was replaced, and what it took was returned
                    waiter.source.settle(waiter.costs, began, began)
        return began

    def _return(self, waiter: Waiter) -> None:
        """Return the units that an admitted call took, unless it has begun or that was done before."""
        if waiter in self._admitted:
            del self._admitted[waiter]
            now = self.clock()
            waiter.source.begin(waiter.costs, waiter.taken, now)
            waiter.source.settle([-cost for cost in waiter.costs], now, now)

    def _refuse(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None) -> None:
        """Raise the reason for which a waiter was woken without being admitted."""
        self._forget(waiter, loop)
        if waiter.refused is not None:
            raise waiter.refused
        with self._lock:
            self._refuse_if_unavailable()
        raise RetryableError(f"function {self.key}: its guard was not coordinated for some time")

    def _refuse_if_unavailable(self) -> None:
        if why := self.account.unavailable:
            raise RetryableError(
                f"function {self.key}: its guard is not coordinated: {why}; calls go on when it answers, or at once "
                "with the setting without-coordination = 'fail-open' of the guard"
            )

    def _forget(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None) -> None:
        """Remove a waiter. It may have been admitted at the same moment."""
        party = current_scope.get().party
        with self._lock:
            waiter.leave()
            if waiter.admitted:
                self._later.extend(functools.partial(bill.end, good=False, called=False) for bill in waiter.bills)
            if self._loop is loop:
                if waiter.admitted:
                    self._return(waiter)
                    self._in_use -= 1
                    self._waiting.give_back(party)
                else:
                    self._waiting.remove(party, waiter)
                self._admit()
        self._do_later()

    def _ask(
        self, costs: Sequence[float], bills: Sequence[Bill], began: float, source: GuardAccount,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:  # fmt: skip
        """Ask the breaker, which is the last: after it allows the only test call, that call must be made.

        Raises CircuitOpen.
        """
        if self._breaker is None or self._breaker.closed:
            return
        with self._lock:
            wait = self._breaker.ask(self.clock())
            if wait and self._loop is loop:
                self._in_use -= 1
                source.settle([-cost for cost in costs], began, self.clock())
                self._admit()
        if wait:
            for bill in bills:
                bill.end(good=False)
            self._do_later()
            if self._metrics is not None:
                self._metrics.circuit_refused()
            raise CircuitOpen(f"function {self.key}: too many calls in a row failed", retry_after=wait)

    def _admit(self) -> None:
        """Let waiting calls begin, fairly by caller, job and stream. Call with the lock held."""
        if not len(self._waiting):
            self._calm = True
            return
        if self.account.unavailable:
            while (waiter := self._waiting.first()) is not None:
                waiter.wake()
                self._waiting.drop_first()
            return
        while self._in_use < self._places and (waiter := self._waiting.first()) is not None:
            source, now = self.account.source, self.clock()
            if wait := source.wait(waiter.costs, now):
                if not waiter.delayed and self._metrics is not None:
                    waiter.delayed = True
                    self._metrics.rate_waited()
                if wait < math.inf:
                    waiter.try_after(wait, self.try_again)
                return
            try:
                lacking = self._lacking(waiter.bills)
            except BudgetSpent as error:
                waiter.refused = error
                waiter.wake()
                self._waiting.drop_first()
                continue
            if lacking is not None:
                self._waiting.pass_over(lacking)
                continue
            source.take(waiter.costs, now)
            self._in_use += 1
            self._waiting.begin_first()
            if waiter.costs:
                self._admitted[waiter] = None
            waiter.source = source
            waiter.admit(now)

    def _changed(self) -> None:
        """React to a grant, or to the loss of the coordination."""
        self.try_again()
        self._show()

    def _demand(self) -> Demand:
        waiting = len(self._waiting)
        if self._adaptive is not None:
            waiting = min(waiting, max(self._adaptive.limit - self._in_use, 0))
        costs = self._waiting.costs or (self.one_call if waiting else ())
        return Demand(self._in_use, waiting, costs)

    def _show(self) -> None:
        if self._metrics is None:
            return
        shown = self._places, self.closed
        if shown != self._shown:  # setting a metric costs as much as the rest of a guarded call
            self._shown = shown
            self._metrics.show(shown[0], closed=shown[1])
