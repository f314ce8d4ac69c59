"""Waiters are calls that wait for their limits, on tasks of event loops and on threads alike.

How a call takes from its limits is written once, as steps: a generator without I/O that yields the waiter for which it
waits. `on_loop` and `on_thread` run them.
"""

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from udf_server.base.call_scope import NotCalled, WaitCancelled, WaitTimeout, current_scope
from udf_server.base.errors import BudgetSpent
from udf_server.limits.guard_account import GuardAccount
from udf_server.limits.stream_budget import Bill

__all__ = ["Steps", "TaskWaiter", "ThreadWaiter", "Waiter", "on_loop", "on_thread"]

TIMER_SECONDS = (0.001, 1.0)
"""Shortest and longest time after which the first waiter tries again."""
T = TypeVar("T")


class Waiter(ABC):
    """What a call asks for, and what it has got. The limiter uses it with its lock held."""

    loop: asyncio.AbstractEventLoop | None = None
    """The loop of a call on an event loop."""

    def __init__(self, costs: Sequence[float] = (), bills: Sequence[Bill] = ()) -> None:
        """The call takes these costs of rates, and these of its budgets."""
        self.costs, self.bills, self.party = costs, bills, current_scope.get().party
        self.refused: BudgetSpent | None = None
        """Why it never begins."""
        self.admitted = False
        self.taken = self.began = 0.0
        """When it was admitted, and when it began."""
        self.source: GuardAccount
        """The account that it took units from, if it was admitted."""
        self._gone = False
        self.delayed = False
        """Whether its wait for a rate was counted."""

    @property
    def gone(self) -> bool:
        """Whether the call waits no more."""
        return self._gone

    def leave(self) -> None:
        """Wait no more."""
        self._gone = True

    def admit(self, now: float) -> None:
        """Let the call begin."""
        self.admitted, self.taken = True, now
        self.wake()

    @abstractmethod
    def wake(self) -> None:
        """Let the call look whether it may begin."""

    @abstractmethod
    def try_after(self, seconds: float, retry: Callable[[], None]) -> None:
        """Call `retry`, without the lock, after the time."""


Steps = Generator[Waiter, None, T]
"""Yields what a call waits for, and returns what it has taken. NotCalled is thrown in if its time is over."""


class TaskWaiter(Waiter):
    """A call on an event loop."""

    def __init__(self, costs: Sequence[float] = (), bills: Sequence[Bill] = ()) -> None:
        super().__init__(costs, bills)
        self.loop = self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        """What its task waits for; None until it waits."""
        self._due = 0.0
        self._try: asyncio.TimerHandle | None = None

    @property
    def gone(self) -> bool:
        # A cancelled row has left before its task runs.
        return self._gone or (self._future is not None and self._future.cancelled())

    @property
    def future(self) -> asyncio.Future[None]:
        """What its task waits for. Use it on the loop."""
        if self._future is None:  # a call that begins at once needs none
            self._future = self._loop.create_future()
        return self._future

    def wake(self) -> None:
        self._post(self._resolve)

    def try_after(self, seconds: float, retry: Callable[[], None]) -> None:
        self._post(self._try_at, self._loop.time() + _in_bounds(seconds), retry)

    def _try_at(self, due: float, retry: Callable[[], None]) -> None:
        # Each call that ends looks at the first waiter, which must not get one timer more each time.
        if self._try is not None:
            if self._due <= due:
                return
            self._try.cancel()
        self._due, self._try = due, self._loop.call_at(due, self._try_now, retry)

    def _try_now(self, retry: Callable[[], None]) -> None:
        self._try = None
        retry()

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - documented, for this purpose
                callback(*arguments)
            else:
                self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed
            self.leave()

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ThreadWaiter(Waiter):
    """A call on a thread, which sleeps until something happens or is due."""

    def __init__(self, costs: Sequence[float] = (), bills: Sequence[Bill] = ()) -> None:
        super().__init__(costs, bills)
        self.woken = False
        self._changed = threading.Event()
        self._due = math.inf
        self._retry: Callable[[], None] | None = None

    def wake(self) -> None:
        self.woken = True
        self._changed.set()

    def try_after(self, seconds: float, retry: Callable[[], None]) -> None:
        self._due, self._retry = min(self._due, time.monotonic() + _in_bounds(seconds)), retry
        self._changed.set()

    def wait(self, clock: Callable[[], float]) -> bool:
        """Wait until the call is woken. Returns False after its deadline, or after the end of its stream."""
        scope = current_scope.get()
        with scope.party.watched(self._changed.set):
            while not self.woken:
                left = scope.deadline - clock()
                if left <= 0 or scope.party.closed:
                    return False
                if self._retry is not None and self._due <= time.monotonic():
                    retry, self._retry, self._due = self._retry, None, math.inf
                    retry()
                    continue
                left = min(left, self._due - time.monotonic())
                self._changed.wait(min(max(left, 0.0), threading.TIMEOUT_MAX))
                self._changed.clear()
        return True


async def on_loop(steps: Steps[T]) -> T:
    """Run the steps in this task. Raises WaitCancelled if it is cancelled while it waits."""
    try:
        waiter, late = next(steps), False
        while True:
            assert isinstance(waiter, TaskWaiter)
            try:
                await waiter.future
            except asyncio.CancelledError:
                late = True
            waiter = steps.throw(WaitCancelled()) if late else next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def on_thread(steps: Steps[T], clock: Callable[[], float], what: str) -> T:
    """Run the steps on this thread. Raises WaitTimeout, which says `what` is waited for, after the deadline."""
    try:
        waiter = next(steps)
        while True:
            assert isinstance(waiter, ThreadWaiter)
            in_time = waiter.wait(clock)
            late: NotCalled = WaitTimeout(f"{what} did not allow the call before its deadline")
            waiter = next(steps) if in_time else steps.throw(late)
    except StopIteration as end:
        result: T = end.value
        return result


def _in_bounds(seconds: float) -> float:
    shortest, longest = TIMER_SECONDS
    return min(max(seconds, shortest), longest)
