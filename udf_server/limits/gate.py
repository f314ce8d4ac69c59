"""Gate decides when calls of a guarded function may begin, and lets those that wait begin in fair order."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence

from udf_server.base.attempts import NotCalled
from udf_server.base.call_scope import current_scope
from udf_server.base.errors import CircuitOpen, RetryableError
from udf_server.base.spending import Spending
from udf_server.limits.breaker import ADAPTIVE_MOST, WORKED, AdaptiveLimit, Breaker, CallOutcome
from udf_server.limits.guard_metrics import GuardMetrics
from udf_server.limits.local_limits import Demand, Limits, LocalLimits
from udf_server.limits.queue import NewWaiter, Steps, Waiter, WaitingCalls
from udf_server.limits.settings import GuardSettings
from udf_server.limits.shared_limits import SharedLimits

__all__ = ["Gate"]

log = logging.getLogger(__name__)

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
        self.sharing = (
            SharedLimits(key, settings, self._lock, self._demand, self._changed, clock)
            if shared and settings.has_sums
            else None
        )
        """The limits that processes share; None if there are none, or if they are those of this process."""
        self.limits: Limits = self.sharing or LocalLimits(settings, clock)
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
        self._in_use = 0
        self._calm = True
        """Whether surely no call waits. Then a call need not look at the queue."""
        self._shown: tuple[float, bool] = (-1.0, False)
        """What the metrics show: the number of calls that may run at once, and whether the breaker is closed."""
        self._show()

    @property
    def closed(self) -> bool:
        """Whether the breaker is closed, so that calls are made."""
        return self._breaker is None or self._breaker.closed

    @property
    def _places(self) -> float:
        """Number of calls that may run at once."""
        places = self.limits.places
        return places if self._adaptive is None else min(self._adaptive.limit, places)

    def is_full(self) -> bool:
        """Whether calls wait."""
        return len(self._waiting) > 0

    def takes_at_once(self, costs: Sequence[float], now: float, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Take a place and tokens for a call, as nearly every call can. If this returns False, `enter` decides."""
        self._lock.acquire()
        try:
            if not self._calm or self._loop is not loop or (self._breaker is not None and not self._breaker.closed):
                return False
            if self._adaptive is not None and self._in_use >= self._adaptive.limit:
                return False
            if not self.limits.take_at_once(costs, self._in_use, now):
                return False
            self._in_use += 1
            return True
        finally:
            self._lock.release()

    def enter(
        self, costs: Sequence[float], began: float, loop: asyncio.AbstractEventLoop | None, make: NewWaiter
    ) -> Steps[tuple[float, Limits]]:
        """The steps of a call until it may begin. They return when it begins, and the limits that it took from.

        `began` is when `takes_at_once` was asked; `loop` is that of the call, or None for a thread. Raises CircuitOpen,
        or RetryableError.
        """
        waiter, source = self._take(costs, make, loop)
        if waiter is not None:
            try:
                yield waiter
            except NotCalled:
                self._forget(waiter, loop)
                raise
            if not waiter.admitted:
                self._refuse(waiter, loop)
            began, source = self._begin(waiter), waiter.source
        self._ask(costs, began, source, loop)
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
            self.limits.left(self._in_use)
            if outcome is not None:
                opened = self._learn(outcome, in_time)
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
            self._breaker.succeeded(0.0 if self._breaker.closed else self._clock())
            return False
        return self._breaker.failed(self._clock())

    def _take(
        self, costs: Sequence[float], make: NewWaiter, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[Waiter | None, Limits]:
        """Take a place and tokens, or queue for them. Returns None or a waiter, and where the tokens were taken."""
        with self._lock:
            if self._loop is not loop:
                # The calls that were admitted on a loop that blocks may never begin.
                for admitted in list(self._admitted):
                    self._return(admitted)
                self._loop, self._in_use, self._waiting = loop, 0, WaitingCalls()
            self._refuse_if_unavailable()
            free = self._in_use < self._places and not len(self._waiting)
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
        self, costs: Sequence[float], began: float, source: Limits, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Ask the breaker, which is the last: after it allows the only test call, that call must be made.

        Raises CircuitOpen.
        """
        if self._breaker is None or self._breaker.closed:
            return
        with self._lock:
            wait = self._breaker.ask(self._clock())
            if wait:
                self._leave_unused(costs, began, source, loop)
        if wait:
            self._metrics.circuit_refused()
            raise CircuitOpen(f"function {self._key}: too many calls in a row failed", retry_after=wait)

    def _leave_unused(
        self, costs: Sequence[float], began: float, source: Limits, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Return what a call has taken that is not made."""
        if self._loop is loop:
            self._in_use -= 1
            if costs:
                source.settle([-cost for cost in costs], began)
            self._admit()

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
        while self._in_use < self._places and (waiter := self._waiting.first()) is not None:
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
        self._admit()
        self._show()

    def _demand(self) -> Demand:
        waiting = len(self._waiting)
        if self._adaptive is not None:
            waiting = min(waiting, max(self._adaptive.limit - self._in_use, 0))
        costs = self._waiting.costs or (self.one_call if waiting else ())
        return Demand(self._in_use, waiting, costs)

    def _show(self) -> None:
        shown = self._places, self.closed
        if shown != self._shown:  # setting a metric costs as much as the rest of a guarded call
            self._shown = shown
            self._metrics.show(shown[0], closed=shown[1])
