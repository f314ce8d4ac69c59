"""Turns decide whose rows a function's event loop processes next if there are more than it can process.

While one job is alone on the loop, or the loop is not late, workers do not ask for turns. If several jobs keep it busy,
or a job has more rows than there are places, each worker asks before its next row. The number of workers resumed per
loop iteration is limited so that an iteration takes half a millisecond of CPU time: then the completion of a call is
noticed soon, whatever other streams do.
"""

import asyncio
import time
from collections.abc import Callable

from udf_server.base.fairness import FairQueue, Party

__all__ = ["DEFAULT_CALLS", "Turns"]

DEFAULT_CALLS = 10_000
LOOK_SECONDS = 0.005
BUSY_SECONDS = 0.002
"""If a loop is later than this, it is busy."""
TURN_SECONDS = 0.0005
"""The CPU time that an iteration of a busy loop should take."""
QUIET_LOOKS = 40
"""After this number of measurements without lag or queue, workers need not ask any more."""
WAITED_COST = 20e-6
"""Approximate seconds that a row costs the loop if its call waits. Other rows cost the time that they take."""


class Turns:
    """The rows in flight of one function on one event loop. Use it on that loop, except for `waiting`.

    A holder is an object that has rows in flight: a worker of a pool, or a batch.
    """

    def __init__(
        self, limit: int = DEFAULT_CALLS, clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time, look_seconds: float = LOOK_SECONDS,
    ) -> None:  # fmt: skip
        """`limit` is the maximum number of holders. `cpu_clock` returns the CPU time of the loop's thread.

        While several jobs share the loop, its lag is measured every `look_seconds`.
        """
        self.busy = False
        """Whether a worker must ask before its next row."""
        self._limit = limit
        self._clock, self._cpu_clock, self._look_seconds = clock, cpu_clock, look_seconds
        self._queue: FairQueue[tuple[object, asyncio.Future[None]]] = FairQueue()
        self._works: FairQueue[Callable[[], object]] = FairQueue()
        """Work that takes longer than the next row of a worker."""
        self._holders: set[object] = set()
        self.pressed = False
        """Whether the loop is shared and late."""
        self._quiet = 0
        self._per_turn = 64.0
        """Number of holders resumed per loop iteration while the loop is pressed."""
        self._pumping = False
        self._pumped = 0.0
        self._looking = False

    @property
    def waiting(self) -> int:
        """Number of holders that wait for their turn. Safe to read from any thread."""
        return len(self._queue)

    def join(self, party: Party) -> None:
        """Register a stream of the party that begins."""
        self._queue.join(party)
        self._watch()

    def enter(self, holder: object) -> bool:
        """Whether the holder may begin immediately. If so, it has a place; otherwise it must ask with `turn`.

        A holder that has a place keeps it.
        """
        if holder in self._holders:
            return True
        if self.busy or len(self._holders) >= self._limit:
            return False
        self._holders.add(holder)
        return True

    def leave(self, holder: object) -> None:
        """Return the place of a holder that has no rows in flight any more. Safe to call twice."""
        if holder in self._holders:
            self._holders.remove(holder)
            if self.busy:
                self._pump_soon()

    def forgo(self, party: Party, holder: object) -> None:
        """Return the place of a holder that had its turn and found no row. The party is not charged for that turn."""
        self._queue.charge(party, -WAITED_COST)
        self.leave(holder)

    async def turn(self, party: Party, holder: object, cost: float | None = None) -> None:
        """Return the holder's place, if it has one, and wait until it has a place again.

        `cost` is the loop time in seconds that its last turn took; None if there was none, or if its call waited.
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
        """Whether a faster loop would help another stream: there are several jobs, or more rows than places."""
        return self._queue.groups > 1 or len(self._queue) > 0

    def _watch(self) -> None:
        if not self._looking and self._shared:
            self._looking = True
            self._look_in(self._clock() + self._look_seconds)

    def do(self, party: Party, work: Callable[[], object]) -> None:
        """Do work that takes long, such as converting a batch.

        It is done immediately; while the loop is pressed, one piece is done per iteration. The work must not raise. If
        its stream ends first, it is dropped.
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
        """Resume holders. Runs once per loop iteration while holders wait and there is room."""
        room = self._limit - len(self._holders)
        if self.pressed:
            # CPU time is used because the loop also waits for the interpreter's lock and for a core.
            now = self._cpu_clock()
            took, self._pumped = now - self._pumped, now
            self._per_turn *= 0.5 if took > TURN_SECONDS else 1.25
            self._per_turn = min(max(self._per_turn, 1.0), 1024.0)
            room = min(room, int(self._per_turn))
        while room > 0 and (found := self._queue.pop(WAITED_COST, _is_gone)) is not None:
            _, (holder, future) = found
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
        """Do one piece of work, or all of it if the loop is not pressed any more."""
        while (found := self._works.pop(0.0)) is not None:
            party, work = found
            began = self._cpu_clock()
            work()
            spent = self._cpu_clock() - began
            self._works.charge(party, spent)
            self._pumped += spent  # this time must not affect the number of rows per iteration
            if self.pressed:
                break

    def _look_in(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(due - self._clock(), self._look, due)

    def _look(self, due: float) -> None:
        """Measure whether the loop is late, and set `pressed` and `busy`."""
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
            self._look_in(now + self._look_seconds)


def _is_gone(waiting: "tuple[object, asyncio.Future[None]]") -> bool:
    """Whether the worker that waits was cancelled."""
    return waiting[1].done()
