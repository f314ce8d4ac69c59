"""A waiter is one call that waits for its guard: a task on a function's event loop, or a thread."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from udf_server.guards.limits import Limits

__all__ = ["TaskWaiter", "ThreadWaiter", "Waiter"]

TIMER_SECONDS = (0.001, 1.0)
"""Shortest and longest time after which the first waiter tries again."""


class Waiter(ABC):
    """The guard uses it with its lock held."""

    def __init__(self, costs: Sequence[float]) -> None:
        self.costs = costs
        self.admitted = False
        self.taken = 0.0
        """When it was admitted."""
        self.source: Limits
        """The limits that it took from, if a guard has admitted it."""
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


class TaskWaiter(Waiter):
    """A call on an event loop."""

    def __init__(self, costs: Sequence[float]) -> None:
        super().__init__(costs)
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self._due = 0.0
        self._try: asyncio.TimerHandle | None = None

    @property
    def gone(self) -> bool:
        # A cancelled row has left before its task runs.
        return self._gone or self.future.cancelled()

    def wake(self) -> None:
        self._post(self._resolve)

    def try_after(self, seconds: float, retry: Callable[[], None]) -> None:
        shortest, longest = TIMER_SECONDS
        self._post(self._try_at, self._loop.time() + min(max(seconds, shortest), longest), retry)

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
    """A call on a thread, which tries again itself."""

    def __init__(self, costs: Sequence[float]) -> None:
        super().__init__(costs)
        self.event = threading.Event()

    def wake(self) -> None:
        self.event.set()

    def try_after(self, seconds: float, retry: Callable[[], None]) -> None:
        pass
