"""Attempt is one call of a function for rows of several streams, on a thread or on the function's event loop."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import cast

from remote_udf.threads import Threads
from udf_server.base.call_scope import NO_CALL, CallScope, current_scope
from udf_server.base.fairness import Party
from udf_server.base.threads import Token
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.runners.calling import Returned
from udf_server.runners.hosted_call import HostedCall
from udf_server.runners.isolation import Answer

__all__ = ["Attempt", "InstanceGate"]


class InstanceGate:
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


class Attempt(HostedCall):
    """One call. `done` gets its answer exactly once, on the server's event loop, unless it is cancelled.

    Call the methods on the server's event loop.
    """

    def __init__(
        self, hosted: HostedFunction, evaluate: Callable[[], "Returned | Awaitable[Returned]"],
        done: Callable[["Attempt", Returned | None, BaseException | None], None], party: Party,
        post: Callable[..., None], spawn: Callable[[Coroutine[None, None, None]], object], clock: Callable[[], float],
        freed: Callable[[], object], gate: InstanceGate,
    ) -> None:  # fmt: skip
        """`evaluate` calls the function where it runs. The party is closed when the attempt has ended.

        `freed` is called if the attempt is cancelled. On a thread, the function is called once the gate is open.
        """
        super().__init__(hosted, party, clock, spawn)
        self._freed, self._gate = freed, gate
        self._evaluate, self._done, self._post = evaluate, done, post
        self.overdue = False
        """Whether the call was given up because of its deadline."""
        self._entered = Token(there=False)
        """Whoever takes it, once the thread has passed the gate, leaves the gate."""

    def start(self) -> None:
        if self.hosted.function.is_async:
            self.post()
        else:
            self.hosted.thread_executor.submit(self.party, self._job)

    def cancel(self) -> None:
        """Cancel the call if it can be cancelled. Its answer is dropped."""
        if not self.open.take():
            return
        self.cancel_task()
        if self.hosted.function.is_async or not self.began:
            self.party.close()
        self._freed()

    def take(self) -> bool:
        # It is set before the claim: a thread that ends in between must know that it is written off.
        self.overdue = True
        self.overdue = self.open.take()
        return self.overdue

    def leave_thread(self) -> None:
        self._leave_gate()

    def given_up(self, error: Exception | None) -> None:
        self._done(self, None, error or TimeoutError())

    def failed(self, error: Exception) -> None:
        if self.open.take():
            self._done(self, None, error)

    async def run(self) -> None:
        self.began = self.clock()
        try:
            answer: Answer = await cast("Awaitable[Returned]", self._evaluate()), None
        except BaseException as error:
            answer = None, error
        if self.open.take():
            self._post(self._done, self, *answer)
        del answer

    def left_loop(self) -> None:
        self.party.close()

    def _leave_gate(self) -> None:
        """Leave the gate once. Safe to call from any thread."""
        if self._entered.take():
            self._gate.leave()

    def _job(self) -> bool:
        kept = True
        self._gate.enter()
        self._entered.put()
        if self.open:
            self.began = self.clock()
            current_scope.set(CallScope(self.party))
            try:
                answer: Answer = cast("Returned", self._evaluate()), None
            except BaseException as error:
                answer = None, error
            self._leave_gate()
            if self.open.take():
                self._post(self._done, self, *answer)
            else:
                kept = not self.overdue
            del answer
            current_scope.set(NO_CALL)
        self._leave_gate()
        self.party.close()
        return kept
