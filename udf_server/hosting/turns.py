"""Turns: whose rows a function's event loop goes on with, when there are more than it can take.

While one job is alone on the loop, or the loop is quick, nobody asks. Once several jobs keep it busy, or one has more
rows than there are places, each worker asks before its next row. So few are let go per turn of the loop that it takes
half a millisecond of CPU time: then what a call has waited for is soon noticed, whoever made the others.
"""

import asyncio
import time
from collections.abc import Callable

from udf_server.base.fairness import FairQueue, Party

__all__ = ["DEFAULT_CALLS", "Turns"]

DEFAULT_CALLS = 10_000
LOOK_SECONDS = 0.005
"""How often the loop's lag is looked at while several jobs share it."""
BUSY_SECONDS = 0.002
"""A loop that is later than this is busy."""
TURN_SECONDS = 0.0005
"""The CPU time that a turn of a busy loop should take."""
QUIET_LOOKS = 40
"""Looks without lag or queue after which nobody needs to ask any more."""
WAITED_COST = 20e-6
"""What a row costs the loop, about, whose call waits; others cost the time they take."""


class Turns:
    """The rows in flight of one function on one event loop; everything happens on that loop.

    A holder is whatever has rows in flight: a worker of a pool, or a batch.
    """

    def __init__(
        self, limit: int = DEFAULT_CALLS, clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        """At most `limit` holders at a time. `cpu_clock` tells the CPU time of the loop's thread."""
        self.busy = False
        """Ask before the next row."""
        self.count = 0
        """Turns of the loop while anything waited."""
        self._limit = limit
        self._clock, self._cpu_clock = clock, cpu_clock
        self._queue: FairQueue[tuple[object, asyncio.Future[None]]] = FairQueue()
        self._works: FairQueue[Callable[[], object]] = FairQueue()
        """What takes the loop longer than the next row of a worker."""
        self._holders: set[object] = set()
        self.pressed = False
        """The loop is shared, and late."""
        self._quiet = 0
        self._per_turn = 64.0
        """How many are let go per turn of the loop, while it is pressed."""
        self._pumping = False
        self._pumped = 0.0
        self._looking = False

    @property
    def waiting(self) -> int:
        """Holders that ask for their turn. From any thread."""
        return len(self._queue)

    def join(self, party: Party) -> None:
        """A stream of the party begins."""
        self._queue.join(party)
        self._watch()

    def enter(self, holder: object) -> bool:
        """Whether the holder may begin at once; it holds a place then. Otherwise it has to ask with `turn`."""
        if self.busy or len(self._holders) >= self._limit:
            return False
        self._holders.add(holder)
        return True

    def leave(self, holder: object) -> None:
        """The holder has no rows in flight any more. Safe to call twice."""
        if holder in self._holders:
            self._holders.remove(holder)
            if self.busy:
                self._pump_soon()

    async def turn(self, party: Party, holder: object, cost: float | None = None) -> None:
        """Gives the holder's place back, if it has one, and returns once it has one again.

        `cost` are the seconds of the loop that its last turn took; None if there was none, or its call waited.
        """
        self._holders.discard(holder)
        if cost is not None:
            self._queue.charge(party, cost - WAITED_COST)
        if self.pressed and len(self._holders) < self._limit and self._queue.overtake(party, WAITED_COST):
            self._holders.add(holder)
            if cost is not None:
                await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._queue.push(party, (holder, future))
        self.busy = True
        self._pump_soon()
        self._watch()
        await future

    @property
    def _shared(self) -> bool:
        """Whether somebody would gain if the loop were quicker: there are several jobs, or more rows than places."""
        return self._queue.groups > 1 or len(self._queue) > 0

    def _watch(self) -> None:
        if not self._looking and self._shared:
            self._looking = True
            self._look_in(self._clock() + LOOK_SECONDS)

    def do(self, party: Party, work: Callable[[], object]) -> None:
        """Does what takes the loop a while, such as converting a batch: at once, or one a turn while it is pressed.

        It must not raise. Work of a stream that ends meanwhile is not done.
        """
        if self.pressed:
            self._works.push(party, work)
            self._pump_soon()
        else:
            work()

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._pumped = self._cpu_clock()
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Once per turn of the loop, while any wait and there is room."""
        self.count += 1
        room = self._limit - len(self._holders)
        if self.pressed:
            # Not by the clock: the loop also waits for the interpreter's lock and for a core, whatever it does.
            now = self._cpu_clock()
            took, self._pumped = now - self._pumped, now
            self._per_turn *= 0.5 if took > TURN_SECONDS else 1.25
            self._per_turn = min(max(self._per_turn, 1.0), 1024.0)
            room = min(room, int(self._per_turn))
        while room > 0 and (found := self._queue.pop(WAITED_COST)) is not None:
            _, (holder, future) = found
            if not future.done():  # its worker was cancelled
                self._holders.add(holder)
                future.set_result(None)
                room -= 1
        self._work()
        self._pumping = False
        if not len(self._queue):
            self.busy = self.pressed
        if len(self._works) or (len(self._queue) and len(self._holders) < self._limit):
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _work(self) -> None:
        """One piece of work, or all of it once the loop is not pressed any more."""
        while (found := self._works.pop(0.0)) is not None:
            party, work = found
            began = self._cpu_clock()
            work()
            spent = self._cpu_clock() - began
            self._works.charge(party, spent)
            self._pumped += spent  # not a measure of how many rows there may be in a turn
            if self.pressed:
                break

    def _look_in(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(due - self._clock(), self._look, due)

    def _look(self, due: float) -> None:
        """Is the loop late, while it is shared?"""
        now = self._clock()
        late = now - due
        if late > BUSY_SECONDS and not self.pressed:
            self.pressed = self.busy = True
        self._quiet = 0 if late > BUSY_SECONDS or len(self._queue) else self._quiet + 1
        if self.pressed and (not self._shared or self._quiet > QUIET_LOOKS):
            self.pressed = False
            self.busy = len(self._queue) > 0
            self._pump_soon()
        self._looking = self._shared
        if self._looking:
            self._look_in(now + LOOK_SECONDS)
