"""Limiter decides whether a call of a function may begin now, waits, or is refused, and lets those that wait begin."""

import asyncio
import collections
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from udf_server.base.call_scope import NotCalled, Spending
from udf_server.base.errors import BudgetSpent, CircuitOpen, RetryableError
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.limits.breaker import WORKED, CallOutcome, Learned
from udf_server.limits.budget import Budget, Needs
from udf_server.limits.guard_account import Demand, GuardAccount
from udf_server.limits.queue import WaitingCalls
from udf_server.limits.settings import CallCosts, GuardSettings
from udf_server.limits.stream_budget import Bill, take_all
from udf_server.limits.waiters import Steps, Waiter

__all__ = ["Limiter"]

log = logging.getLogger(__name__)

PAUSE_MOST_SECONDS = 3_600.0
"""Longest pause of a rate that a service can ask for."""


class Limiter:
    """The guard of one function, if it has one, and the calls that run or wait, on all threads and loops.

    A call takes a place, units of the rates and of its budgets, all or nothing. While a budget has nothing for it, the
    calls of its stream are passed over and keep their turn. For a call ask `takes_at_once`, which nearly always allows
    it, and otherwise `enter`, which waits. Call `leave` after each call that began.

    A guard counts a call as failed if it raises RetryableError, a retryable Failure, TimeoutError or OSError, or if its
    deadline cancels it. All other exceptions concern their rows only. A call for many rows may name those that have
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
        self.learned = Learned(settings)
        self.one_call: Sequence[float] = (1.0,) * len(settings.rate)
        """What a call takes of each rate if all rates count calls."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose calls are counted. If a blocked loop is replaced, its calls are not counted any more."""
        self.waiting = WaitingCalls()
        self._later: collections.deque[Callable[[], object]] = collections.deque()
        """What is to be done without the lock: budgets have locks of their own, and tell other functions."""
        self.in_use = 0
        """Number of calls that run, or were admitted and begin soon."""
        self._calm = True
        """Whether surely no call waits for its turn. Then a call need not look at the queue."""
        self._show()

    @property
    def _places(self) -> float:
        """Number of calls that may run at once."""
        return min(self.learned.limit, self.account.places)

    def is_full(self) -> bool:
        """Whether calls wait for their turn."""
        return len(self.waiting) > 0

    def takes_at_once(self, costs: Sequence[float], now: float, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Take a place and units for a call without budgets, as nearly every one can. Otherwise `enter` decides."""
        self._lock.acquire()
        try:
            learned = self.learned
            if not self._calm or self._loop is not loop or not learned.closed or self.in_use >= learned.limit:
                return False
            if not self.account.take_at_once(costs, self.in_use, now):
                return False
            self.in_use += 1
            return True
        finally:
            self._lock.release()

    def enter(self, waiter: Waiter) -> Steps[None]:
        """The steps of a call until it may begin. They return when it begins.

        Raises BudgetSpent, CircuitOpen, or RetryableError.
        """
        try:
            begins = self._take(waiter)
        finally:
            self._do_later()
        if not begins:
            try:
                yield waiter
            except NotCalled as late:
                late.unavailable = next(filter(None, (bill.owner.now()[0].unavailable for bill in waiter.bills)), "")
                self._forget(waiter)
                raise
            if not waiter.admitted:
                self._refuse(waiter)
            with self._lock:
                self.waiting.begin(waiter, self.clock())
        self._ask(waiter)

    def leave(
        self, outcome: CallOutcome | None, began: float, costs: Sequence[float], source: GuardAccount,
        spending: Spending | None, loop: asyncio.AbstractEventLoop | None,
    ) -> None:  # fmt: skip
        """Record a call that has ended. Its outcome is None if it was cancelled for a reason of its client."""
        now, opened, was_closed = self.clock(), False, self.learned.closed
        self._lock.acquire()
        try:
            if self._loop is not loop:
                return
            self.account.left(self.in_use)
            if outcome is not None:
                opened = self.learned.ended(outcome, now - began, self.in_use, now)
                if outcome.retry_after and self._settings.rate:
                    self.account.pause(min(outcome.retry_after, PAUSE_MOST_SECONDS))
            if spending is not None and spending.amounts and costs:
                source.settle(self.costs.missed(costs, spending.amounts), began, now)
            self.in_use -= 1
            if not self._calm:
                self._admit()
        finally:
            self._lock.release()
        if self._later:
            self._do_later()
        if opened:
            log.warning("circuit opened", extra={"function": self.key})
        if outcome is not WORKED or self._settings.adaptive or not was_closed:
            self._show()

    def waiting_for(self, budget: Budget) -> Iterable[Needs]:
        """What the calls that wait for a budget need."""
        with self._lock:
            return self.waiting.needs(budget)

    def look_again(self, budget: Budget) -> None:
        """Let the calls look again that were passed over because of a budget, and refuse those that it never allows."""
        with self._lock:
            self.waiting.resume(budget)
            self._calm = False
            if budget.is_over:
                self.waiting.refuse_over()
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

    def _take(self, waiter: Waiter) -> bool:
        """Take all that a call needs, or queue for it. Returns whether it begins."""
        with self._lock:
            now = self.clock()
            if self._loop is not waiter.loop:
                # The calls that were admitted on a loop that blocks may never begin.
                self.waiting.return_all(now)
                self._loop, self.in_use, self.waiting = waiter.loop, 0, WaitingCalls()
            self._refuse_if_unavailable()
            waiter.source = source = self.account.source
            free = self.in_use < self._places and not len(self.waiting) and not self.waiting.holds(waiter.party)
            if free and not source.wait(waiter.costs, now) and self._lacking(waiter.bills) is None:
                source.take(waiter.costs, now)
                source.begin(waiter.costs, now, now)
                waiter.began = now
                self.in_use += 1
                return True
            for bill in waiter.bills:
                bill.owner.now()[0].expect(self)
            self.waiting.push(waiter)
            self._calm = False
            self._admit()
            if not waiter.admitted:
                self.account.call_back()
            return False

    def _lacking(self, bills: Sequence[Bill]) -> Budget | None:
        """Take what a call costs of its budgets, or nothing. Returns one that has too little. Raises BudgetSpent."""
        if not bills:
            return None
        try:
            return take_all(bills, self)
        finally:
            self._later.extend(bill.budget.tell_if_over for bill in bills if bill.budget is not None)

    def _refuse(self, waiter: Waiter) -> None:
        """Raise the reason for which a waiter was woken without being admitted."""
        self._forget(waiter)
        if waiter.refused is not None:
            raise waiter.refused
        with self._lock:
            self._refuse_if_unavailable()
        raise RetryableError(f"function {self.key}: its guard was not coordinated for some time")

    def _refuse_if_unavailable(self) -> None:
        if why := self.account.unavailable:
            raise RetryableError(why)

    def _forget(self, waiter: Waiter) -> None:
        """Remove a waiter. It may have been admitted at the same moment."""
        with self._lock:
            waiter.leave()
            if waiter.admitted:
                self._later.extend(functools.partial(bill.end, good=False, called=False) for bill in waiter.bills)
            if self._loop is waiter.loop:
                self.in_use -= waiter.admitted
                self.waiting.remove(waiter, self.clock())
                self._admit()
        self._do_later()

    def _ask(self, waiter: Waiter) -> None:
        """Ask the breaker, which is the last: after it allows the only test call, that call must be made.

        Raises CircuitOpen.
        """
        if self.learned.closed:
            return
        with self._lock:
            wait = self.learned.ask(now := self.clock())
            if wait and self._loop is waiter.loop:
                self.in_use -= 1
                waiter.source.settle([-cost for cost in waiter.costs], waiter.began, now)
                self._admit()
        if wait:
            for bill in waiter.bills:
                bill.end(good=False)
            self._do_later()
            if self._metrics is not None:
                self._metrics.refusals.inc()
            raise CircuitOpen(f"function {self.key}: too many calls in a row failed", retry_after=wait)

    def _admit(self) -> None:
        """Let waiting calls begin, fairly by caller, job and stream. Call with the lock held."""
        if not len(self.waiting):
            self._calm = True
            return
        if self.account.unavailable:
            while (waiter := self.waiting.first()) is not None:
                waiter.wake()
                self.waiting.drop_first()
            return
        while self.in_use < self._places and (waiter := self.waiting.first()) is not None:
            source, now = self.account.source, self.clock()
            if wait := source.wait(waiter.costs, now):
                if not waiter.delayed and self._metrics is not None:
                    waiter.delayed = True
                    self._metrics.rate_waits.inc()
                if wait < math.inf:
                    waiter.try_after(wait, self.try_again)
                return
            try:
                lacking = self._lacking(waiter.bills)
            except BudgetSpent as error:
                waiter.refused = error
                waiter.wake()
                self.waiting.drop_first()
                continue
            if lacking is not None:
                self.waiting.pass_over(lacking)
                continue
            self.in_use += 1
            self.waiting.admit_first(source, now)

    def _changed(self) -> None:
        """React to a grant, or to the loss of the coordination."""
        self.try_again()
        self._show()

    def _demand(self) -> Demand:
        waiting = int(min(len(self.waiting), max(self.learned.limit - self.in_use, 0)))
        costs = self.waiting.costs or (self.one_call if waiting else ())
        return Demand(self.in_use, waiting, costs)

    def _show(self) -> None:
        if self._metrics is not None:
            self._metrics.show(self._places, closed=self.learned.closed)
