"""HostedCall is a call of a function for many rows: where it runs, and how it ends if the function does not return."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine

from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.fairness import Party
from udf_server.base.threads import Token
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.runners.pool import GRACE_SECONDS

__all__ = ["HostedCall"]


class HostedCall(ABC):
    """One call on the function's event loop, after `post`, or on one of its threads, which its owner starts.

    Whoever takes `open` ends it: the thread or task that calls, or the check of its deadline. Call the methods on the
    server's event loop, unless they say otherwise.
    """

    def __init__(
        self, hosted: HostedFunction, party: Party, clock: Callable[[], float],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> None:  # fmt: skip
        """The call has its turns on the event loop by its party. `spawn` runs a coroutine on the server's loop."""
        self.hosted, self.party, self.clock = hosted, party, clock
        self._spawn = spawn
        self.open = Token()
        self.began = 0.0
        """When the function was called; 0.0 before."""
        self.told = 0.0
        """When the coroutine was cancelled because of its deadline; 0.0 if it was not."""
        self._answered = False
        """Whether its loop has reacted to that cancellation."""
        self._executor: LoopExecutor | None = None
        """The loop on which it runs; None on a thread."""
        self._posted = 0.0
        """When it was passed to its loop."""
        self._queued = False
        """Whether its loop has taken it. It begins when it has its turn."""
        self._task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the call should begin. Safe to read on any thread."""
        return bool(self.open)

    @abstractmethod
    def run(self) -> Coroutine[None, None, None]:
        """Call the function, on its event loop, and end the call."""

    def left_loop(self) -> None:  # noqa: B027 - not every call holds something there
        """Release what the call holds on its loop, where this runs."""

    @abstractmethod
    def take(self) -> bool:
        """Take `open` because the deadline has passed. Returns False if the call has ended by itself meanwhile."""

    @abstractmethod
    def leave_thread(self) -> None:
        """Release what the thread of the call holds, because it is written off."""

    @abstractmethod
    def given_up(self, error: Exception | None) -> None:
        """End the call, which was taken. `error` says why nothing can take the place of what it blocks."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Report that the function has no event loop on which the call could begin."""

    def post(self) -> None:
        """Begin on the function's event loop once the call has its turn there."""
        self._executor, self._posted, self._queued = self.hosted.loop_executor, self.clock(), False
        self._executor.post(self._create_task, self._executor)

    def cancel_task(self) -> None:
        """Cancel the call if it is on a loop."""
        if self._executor is not None:
            self._executor.post(self._cancel_task)

    def check(self, now: float, deadline: float, patience: float) -> None:
        """Give up the call if it is overdue. `patience` is the time that a loop may take to take it."""
        executor = self._executor
        if not self.open:
            return
        if not self.began:
            if executor is not None and self._is_blocked(executor, now, patience):
                # A call of another stream blocks the loop.
                self._posted = now
                self._spawn(self._leave(executor))
        elif now <= deadline:
            return
        elif executor is None:
            if self.take():
                self.leave_thread()
                self._give_up(self.hosted.thread_executor.write_off)
        elif not self.told:
            self.told = now
            executor.post(self._cancel_task)
            executor.post(setattr, self, "_answered", True)
        elif now - self.told > GRACE_SECONDS and self.take():
            if self._answered:
                self._give_up(self.hosted.write_off_call)
            else:
                self._spawn(self._leave(executor))
                self.given_up(None)

    def _is_blocked(self, executor: LoopExecutor, now: float, patience: float) -> bool:
        """Whether this or another call has found that the loop is blocked."""
        if self.hosted.running_executor is not executor:
            return True
        return not self._queued and now > self._posted + patience + GRACE_SECONDS

    def _give_up(self, write_off: Callable[[], object]) -> None:
        try:
            write_off()
        except Exception as error:
            self.given_up(error)
        else:
            self.given_up(None)

    async def _leave(self, executor: LoopExecutor) -> None:
        """Replace a loop that the function blocks. If the call has not begun there, it begins on the new one."""
        try:
            self.hosted.replace_loop_executor(executor)
            await self.hosted.open()
        except Exception as error:
            self.failed(error)
            return
        if self.wanted and not self.began and self._executor is executor:
            self.post()

    # The methods below run on the function's event loop.

    def _create_task(self, executor: LoopExecutor) -> None:
        if self.wanted and self._executor is executor:
            self._queued = True
            self._task = asyncio.get_running_loop().create_task(self._run_in_turn(executor))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run_in_turn(self, executor: LoopExecutor) -> None:
        turns = executor.turns
        current_scope.set(CallScope(self.party))
        turns.join(self.party)
        try:
            if not turns.enter(self):
                await turns.turn(self.party, self)
            if self.wanted and self._executor is executor:
                await self.run()
        finally:
            turns.leave(self)
            if self._executor is executor:
                self.left_loop()
