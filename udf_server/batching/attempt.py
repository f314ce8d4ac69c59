"""Attempt is one call of a function for rows of several streams, on a thread or on the function's event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from remote_udf.threads import Threads
from udf_server.base.call_scope import NO_CALL, CallScope, current_scope
from udf_server.base.fairness import Party
from udf_server.base.token import Token
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.runners.pool import GRACE_SECONDS
from udf_server.runners.returned import Returned

__all__ = ["Attempt", "Gate"]


class Gate:
    """Lets as many threads pass at once as a function has instances. The others wait, with a call that is ready."""

    def __init__(self, instances: int, threads: Threads) -> None:
        self._free = instances
        self._changed = threads.condition()

    def enter(self) -> None:
        with self._changed:
            while not self._free:
                self._changed.wait()
            self._free -= 1

    def leave(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()


class Attempt:
    """One call. `done` gets its answer exactly once, on the server's event loop, unless it is cancelled.

    Call the methods on the server's event loop.
    """

    def __init__(
        self, hosted: HostedFunction, evaluate: Callable[[], "Returned | Awaitable[Returned]"],
        done: Callable[["Attempt", Returned | None, BaseException | None], None], party: Party,
        post: Callable[..., None], spawn: Callable[[Coroutine[Any, Any, None]], object], clock: Callable[[], float],
        freed: Callable[[], object], gate: Gate,
    ) -> None:  # fmt: skip
        """`evaluate` calls the function where it runs. The party is closed when the attempt has ended.

        `freed` is called if the attempt is cancelled. On a thread, the function is called once the gate is open.
        """
        self._freed, self._gate = freed, gate
        self._hosted, self._evaluate, self._done = hosted, evaluate, done
        self._party, self._post, self._spawn, self._clock = party, post, spawn, clock
        self.began = 0.0
        """When the function was called; 0.0 before."""
        self.told = 0.0
        """When the coroutine was cancelled because of its deadline; 0.0 if it was not."""
        self._answered = False
        """Whether its loop has reacted to that cancellation."""
        self.overdue = False
        """Whether the call was given up because of its deadline."""
        self._open = Token()
        """Whoever takes it ends the attempt."""
        self._entered = Token(there=False)
        """Whoever takes it, once the thread has passed the gate, leaves the gate."""
        self._task: asyncio.Task[None] | None = None
        self._executor: LoopExecutor | None = None
        self._posted = 0.0
        self._queued = False

    def start(self) -> None:
        if self._hosted.function.is_async:
            self._start_on_loop()
        else:
            self._hosted.thread_executor.submit(self._party, self._job)

    def cancel(self) -> None:
        """Cancel the call if it can be cancelled. Its answer is dropped."""
        if not self._open.take():
            return
        if self._executor is not None:
            self._executor.post(self._cancel_task)
        if self._executor is not None or not self.began:
            self._party.close()
        self._freed()

    def check(self, now: float, deadline: float, patience: float) -> None:
        """Give up the call if it is overdue. `patience` is the time that a loop may take to begin it."""
        if not self._open:
            return
        if not self.began:
            if self._executor is not None and self._is_blocked(now, patience):
                self._posted = now
                self._spawn(self._leave_executor(self._executor))
        elif now <= deadline:
            return
        elif self._executor is None:
            if self._claim_overdue():
                self._leave_gate()
                self._give_up(self._hosted.thread_executor.write_off)
        elif not self.told:
            self.told = now
            self._executor.post(self._cancel_task)
            self._executor.post(setattr, self, "_answered", True)
        elif now - self.told > GRACE_SECONDS and self._claim_overdue():
            if not self._answered:
                self._spawn(self._leave_executor(self._executor))
            self._give_up(self._hosted.write_off_call if self._answered else lambda: None)

    def _give_up(self, write_off: Callable[[], object]) -> None:
        try:
            write_off()
        except Exception as error:
            self._done(self, None, error)
        else:
            self._done(self, None, TimeoutError())

    def _claim_overdue(self) -> bool:
        # It is set before the claim: a thread that ends in between must know that it is written off.
        self.overdue = True
        self.overdue = self._open.take()
        return self.overdue

    def _leave_gate(self) -> None:
        """Leave the gate once. Safe to call from any thread."""
        if self._entered.take():
            self._gate.leave()

    def _job(self) -> bool:
        kept = True
        self._gate.enter()
        self._entered.put()
        if self._open:
            self.began = self._clock()
            current_scope.set(CallScope(self._party))
            try:
                answer: tuple[Returned | None, BaseException | None] = cast("Returned", self._evaluate()), None
            except BaseException as error:
                answer = None, error
            self._leave_gate()
            if self._open.take():
                self._post(self._done, self, *answer)
            else:
                kept = not self.overdue
            del answer
            current_scope.set(NO_CALL)
        self._leave_gate()
        self._party.close()
        return kept

    def _start_on_loop(self) -> None:
        self._executor, self._posted, self._queued = self._hosted.loop_executor, self._clock(), False
        self._executor.post(self._create_task, self._executor)

    def _create_task(self, executor: LoopExecutor) -> None:
        if self._open and self._executor is executor:
            self._queued = True
            self._task = asyncio.get_running_loop().create_task(self._run(executor))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, executor: LoopExecutor) -> None:
        turns = executor.turns
        current_scope.set(CallScope(self._party))
        turns.join(self._party)
        try:
            if not turns.enter(self):
                await turns.turn(self._party, self)
            if not self._open or self._executor is not executor:
                return
            self.began = self._clock()
            try:
                answer: tuple[Returned | None, BaseException | None] = (
                    await cast("Awaitable[Returned]", self._evaluate()), None
                )  # fmt: skip
            except BaseException as error:
                answer = None, error
            if self._open.take():
                self._post(self._done, self, *answer)
            del answer
        finally:
            turns.leave(self)
            if self._executor is executor:
                self._party.close()

    def _is_blocked(self, now: float, patience: float) -> bool:
        if self._hosted.running_executor is not self._executor:
            return True
        return not self._queued and now > self._posted + patience + GRACE_SECONDS

    async def _leave_executor(self, executor: LoopExecutor) -> None:
        """Replace a loop that the function blocks. If this call has not begun there, it begins on the new loop."""
        try:
            self._hosted.replace_loop_executor(executor)
            await self._hosted.open()
        except Exception as error:
            if self._open.take():
                self._done(self, None, error)
            return
        if self._open and not self.began and self._executor is executor:
            self._start_on_loop()
