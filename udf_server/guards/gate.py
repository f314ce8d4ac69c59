"""Gate decides when calls of a guarded function may begin, and lets those that wait begin in fair order."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from udf_server.base.attempts import WaitCancelled, WaitTimeout
from udf_server.base.call_scope import current_scope
from udf_server.base.errors import CircuitOpen, RetryableError
from udf_server.base.spending import Spending
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.limits import Demand, Limits, LocalLimits
from udf_server.guards.outcomes import WORKED, CallOutcome
from udf_server.guards.settings import GuardSettings
from udf_server.guards.shared_limits import SharedLimits
from udf_server.guards.waiting import TaskWaiter, ThreadWaiter, Waiter
from udf_server.guards.waiting_calls import WaitingCalls

__all__ = ["Gate"]

log = logging.getLogger(__name__)

WaiterT = TypeVar("WaiterT", bound=Waiter)
POLL_SECONDS = 0.05
"""How often a thread that waits checks whether its stream has ended."""
ANSWER_SECONDS = 1.0
"""How long a call may wait for other processes to answer whether it may test a service whose circuit is open."""
PAUSE_MOST_SECONDS = 3_600.0
"""Longest pause of a rate that a service can ask for."""


class Gate:
    """The limits of one guard, and the calls that run or wait. Any thread or loop may use it.

    For a call ask `takes_at_once`, which nearly always allows it, and otherwise `enter`, which waits. Call `leave`
    after each call that began.
    """

    def __init__(
        self, key: str, settings: GuardSettings, metrics: GuardMetrics, clock: Callable[[], float], *, shared: bool
    ) -> None:
        self._key, self._settings, self._metrics, self._clock = key, settings, metrics, clock
        self._lock = threading.Lock()
        """Held only for short operations: calls run on several threads and loops. For each call it is acquired and
        released explicitly, which takes half as long as `with`."""
        self.sharing = SharedLimits(key, settings, self._lock, self._demand, self._changed, clock) if shared else None
        """The limits that processes share; None if the limits are those of this process."""
        self.limits: Limits = self.sharing or LocalLimits(settings, clock)
        self.one_call: Sequence[float] = (1.0,) * len(settings.rate)
        """What a call takes of each rate if all rates count calls."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose calls are counted. If a blocked loop is replaced, its calls are not counted any more."""
        self._waiting = WaitingCalls()
        self._admitted: dict[Waiter, None] = {}
        """The calls on this loop that were admitted with costs and have not begun yet."""
        self._tester: Waiter | None = None
        """The call that waits until other processes have answered whether it may test the service."""
        self._in_use = 0
        self._calm = True
        """Whether surely no call waits. Then a call need not look at the queue."""
        self._shown: tuple[float, bool] = (-1.0, False)
        """What the metrics show: the number of calls that may run at once, and whether the breaker is closed."""
        self._show()

    def is_full(self) -> bool:
        """Whether calls wait."""
        return len(self._waiting) > 0

    def takes_at_once(self, costs: Sequence[float], now: float, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Take a place and tokens for a call, as nearly every call can. If this returns False, `enter` decides."""
        self._lock.acquire()
        try:
            if self._calm and self._loop is loop and self.limits.take_at_once(costs, self._in_use, now):
                self._in_use += 1
                return True
            return False
        finally:
            self._lock.release()

    async def enter(
        self, costs: Sequence[float], began: float, loop: asyncio.AbstractEventLoop
    ) -> tuple[float, Limits]:
        """Wait until the call may begin. Returns when it begins, and the limits that it took from.

        `began` is when `takes_at_once` was asked. Raises CircuitOpen, or RetryableError.
        """
        waiter, source = self._take(costs, TaskWaiter, loop)
        if waiter is not None:
            try:
                await waiter.future
            except asyncio.CancelledError:
                self._forget(waiter, loop)
                raise WaitCancelled from None
            if not waiter.admitted:
                self._refuse(waiter, loop)
            began, source = self._begin(waiter), waiter.source
        if not self.limits.closed and (waiter := self._ask(costs, TaskWaiter, began, source, loop)):
            began = await self._hear(waiter, loop)
        return began, source

    def enter_on_thread(self, costs: Sequence[float], began: float) -> tuple[float, Limits]:
        """Wait as `enter` does. Raises TimeoutError too, after the deadline or the end of the stream."""
        waiter, source = self._take(costs, ThreadWaiter, None)
        if waiter is not None:
            scope = current_scope.get()
            party, deadline = scope.party, scope.deadline
            while not waiter.event.wait(min(POLL_SECONDS, max(deadline - self._clock(), 0.0))):
                if self._clock() >= deadline or party.closed:
                    self._forget(waiter, None)
                    raise WaitTimeout(f"function {self._key}: the guard did not allow the call before its deadline")
                self._retry()
            if not waiter.admitted:
                self._refuse(waiter, None)
            began, source = self._begin(waiter), waiter.source
        if not self.limits.closed and (waiter := self._ask(costs, ThreadWaiter, began, source, None)):
            began = self._hear_on_thread(waiter)
        return began, source

    def leave(
        self,
        outcome: CallOutcome | None,
        began: float,
        costs: Sequence[float],
        source: Limits,
        spending: Spending | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        """Record a call that has ended. Its outcome is None if it was cancelled for a reason of its client."""
        goal, opened = self._settings.latency_goal, False
        in_time = goal is None or self._clock() - began <= goal
        self._lock.acquire()
        try:
            if self._loop is not loop:
                return
            if outcome is WORKED:  # as nearly every call
                opened = self.limits.ended(True, in_time, self._in_use)
            elif outcome is not None:
                opened = self.limits.ended(outcome.went_well, in_time and not outcome.overloaded, self._in_use)
                if outcome.retry_after and self._settings.rate:
                    self.limits.pause(min(outcome.retry_after, PAUSE_MOST_SECONDS))
            if spending is not None and spending.amounts:
                rates = self._settings.rate
                spent = ((spending.amounts.get(rate.unit), cost) for rate, cost in zip(rates, costs, strict=True))
                source.settle([0.0 if actual is None else actual - cost for actual, cost in spent], began)
            self._in_use -= 1
            if not self._calm:
                self._admit()
        finally:
            self._lock.release()
        if opened:
            log.warning("circuit opened", extra={"function": self._key})
        if outcome is not WORKED or self._settings.adaptive or not self._shown[1]:
            self._show()

    def _take(
        self, costs: Sequence[float], make: Callable[[Sequence[float]], WaiterT], loop: asyncio.AbstractEventLoop | None
    ) -> tuple[WaiterT | None, Limits]:
        """Take a place and tokens, or queue for them. Returns None or a waiter, and where the tokens were taken."""
        with self._lock:
            if self._loop is not loop:
                # The calls that were admitted on a loop that blocks may never begin.
                for admitted in list(self._admitted):
                    self._return(admitted)
                self._loop, self._in_use, self._waiting = loop, 0, WaitingCalls()
            self._refuse_if_unavailable()
            free = self._in_use < self.limits.places and not len(self._waiting)
            source = self.limits.source
            if free and not source.take(costs):
                source.begin(costs, self._clock() if costs else 0.0)
                self._in_use += 1
                return None, source
            waiter = make(costs)
            self._waiting.push(current_scope.get().party, waiter)
            self._calm = False
            self._admit()
            if not waiter.admitted:
                self.limits.starved()
            return waiter, source

    def _begin(self, waiter: Waiter) -> float:
        began = self._clock()
        if waiter.costs:
            with self._lock:
                if waiter in self._admitted:
                    del self._admitted[waiter]
                    waiter.source.begin(waiter.costs, waiter.taken)
                else:  # its loop was replaced, and what it took was returned
                    waiter.source.settle(waiter.costs, began)
        return began

    def _return(self, waiter: Waiter) -> None:
        """Return what an admitted call took, unless it has begun or that was done before."""
        if waiter in self._admitted:
            del self._admitted[waiter]
            began = self._clock()
            waiter.source.begin(waiter.costs, waiter.taken)
            waiter.source.settle([-cost for cost in waiter.costs], began)

    def _refuse(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None) -> None:
        """Raise the reason for which a waiter was woken without being admitted."""
        self._forget(waiter, loop)
        with self._lock:
            self._refuse_if_unavailable()
        raise RetryableError(f"function {self._key}: its guard was not coordinated for some time")

    def _refuse_if_unavailable(self) -> None:
        if why := self.limits.unavailable:
            raise RetryableError(
                f"function {self._key}: its guard is not coordinated: {why}; calls go on when it answers, or at once "
                "with the setting without-coordination = 'fail-open' of the guard"
            )

    def _forget(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None) -> None:
        """Remove a waiter. It may have been admitted at the same moment."""
        party = current_scope.get().party
        with self._lock:
            waiter.leave()
            if self._loop is loop:
                if waiter.admitted:
                    self._return(waiter)
                    self._in_use -= 1
                    self._waiting.give_back(party)
                else:
                    self._waiting.remove(party, waiter)
                self._admit()

    def _ask(
        self,
        costs: Sequence[float],
        make: Callable[[Sequence[float]], WaiterT],
        began: float,
        source: Limits,
        loop: asyncio.AbstractEventLoop | None,
    ) -> WaiterT | None:
        """Ask the breaker, which is the last: after it allows the only test call, that call must be made.

        Returns None if the call may be made, or a waiter that is woken when other processes have answered. One call at
        a time waits for that. Raises CircuitOpen.
        """
        with self._lock:
            wait = self.limits.ask()
            if not wait:
                return None
            if self._tester is None and self.limits.asking:
                self._tester = waiter = make(costs)
                waiter.taken, waiter.source = began, source
                return waiter
            self._leave_unused(costs, began, source, loop)
        raise self._circuit_open(wait)

    async def _hear(self, waiter: TaskWaiter, loop: asyncio.AbstractEventLoop) -> float:
        """Wait for the answer of other processes. Returns the time at which the call begins. Raises CircuitOpen."""
        try:
            await asyncio.wait([waiter.future], timeout=ANSWER_SECONDS)
        except asyncio.CancelledError:
            with self._lock:
                self._tester = None if self._tester is waiter else self._tester
                self._leave_unused(waiter.costs, waiter.taken, waiter.source, loop)
            raise WaitCancelled from None
        return self._ask_again(waiter, loop)

    def _hear_on_thread(self, waiter: ThreadWaiter) -> float:
        waiter.event.wait(min(ANSWER_SECONDS, max(current_scope.get().deadline - self._clock(), 0.0)))
        return self._ask_again(waiter, None)

    def _ask_again(self, waiter: Waiter, loop: asyncio.AbstractEventLoop | None) -> float:
        with self._lock:
            self._tester = None if self._tester is waiter else self._tester
            wait = self.limits.ask()
            if not wait:
                began = self._clock()
                waiter.source.begin(waiter.costs, waiter.taken)  # perhaps it begins late
                return began
            self._leave_unused(waiter.costs, waiter.taken, waiter.source, loop)
        raise self._circuit_open(wait)

    def _leave_unused(
        self, costs: Sequence[float], began: float, source: Limits, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Return what a call has taken that is not made."""
        if self._loop is loop:
            self._in_use -= 1
            if costs:
                source.settle([-cost for cost in costs], began)
            self._admit()

    def _circuit_open(self, wait: float) -> CircuitOpen:
        self._metrics.circuit_refused()
        return CircuitOpen(f"function {self._key}: too many calls in a row failed", retry_after=wait)

    def _admit(self) -> None:
        """Let waiting calls begin, fairly by caller, job and stream. Call with the lock held."""
        if not len(self._waiting):
            self._calm = True
            return
        if self.limits.unavailable:
            while (waiter := self._waiting.first()) is not None:
                waiter.wake()
                self._waiting.drop_first()
            return
        while self._in_use < self.limits.places and (waiter := self._waiting.first()) is not None:
            source = self.limits.source
            if wait := source.take(waiter.costs):
                if not waiter.delayed:
                    waiter.delayed = True
                    self._metrics.rate_waited()
                if wait < math.inf:
                    waiter.try_after(wait, self._retry)
                return
            self._in_use += 1
            self._waiting.begin_first()
            if waiter.costs:
                self._admitted[waiter] = None
            waiter.source = source
            waiter.admit(self._clock())

    def _retry(self) -> None:
        with self._lock:
            self._admit()

    def _changed(self) -> None:
        """React to a grant, or to the loss of the coordination. Called with the lock held."""
        if self._tester is not None and not self.limits.asking:
            self._tester.wake()
            self._tester = None
        self._admit()
        self._show()

    def _demand(self) -> Demand:
        waiting = len(self._waiting)
        costs = self._waiting.costs or (self.one_call if waiting else ())
        return Demand(self._in_use, waiting, costs)

    def _show(self) -> None:
        shown = self.limits.places, self.limits.closed
        if shown != self._shown:  # setting a metric costs as much as the rest of a guarded call
            self._shown = shown
            self._metrics.show(shown[0], closed=shown[1])
