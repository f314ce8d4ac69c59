"""Work: one batch on its way through a vectorized function."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from udf_server.hosting.lanes import LoopLane
from udf_server.runners.isolation import Outcomes
from udf_server.runners.outputs import Taken
from udf_server.runners.room import Room
from udf_server.runners.runner import InputBatch

__all__ = ["Work"]


class Work:
    """Whoever takes the claim emits the outcomes: the one who calls, or the watch that gives up."""

    def __init__(
        self, batch: InputBatch, timeout: float, outcomes: Outcomes, stop: threading.Event, clock: Callable[[], float],
        room: Room, lent: Callable[[], AbstractContextManager[object]],
    ) -> None:  # fmt: skip
        """While its thread waits for the client, it is in `lent`."""
        self.batch = batch
        self._timeout = timeout
        self.lock = threading.Lock()
        """Held while outcomes are taken or given up."""
        self._stop = stop
        self._clock = clock
        self._room = room
        self._lent = lent
        self._waiting = 0
        self._paused = 0.0
        self.outcomes = outcomes
        """Of the rows that are called."""
        self.results = room.claim()
        """What they take until they are written."""
        self.called: np.ndarray[Any, Any] | None = None
        """Indexes of the rows that are called; None for all of them."""
        self._placed = 0
        """Rows of the batch whose outcomes were taken, where not all are called."""
        self.began = 0.0
        """When the first call began; 0.0 before."""
        self.seconds = 0.0
        """What its calls have taken, once they are over."""
        self.sending = False
        """Its calls are over."""
        self.stopped = False
        """It was given up; whoever calls may leave."""
        self.lane: LoopLane | None = None
        self.posted = 0.0
        """When it was handed to its lane."""
        self.queued = False
        """Its lane has taken it; it begins when it has its turn."""
        self.task: asyncio.Task[None] | None = None
        self.told = 0.0
        """When the coroutine was cancelled for its deadline; 0.0 if it was not."""
        self.answered = False
        """Its loop has reacted to that."""
        self._claim = [None]

    @property
    def first_row(self) -> int:
        """Of the batch, in the stream."""
        return self.batch.first_row

    @property
    def deadline(self) -> float:
        """Of its rows, once it has begun."""
        return self.began + self._timeout

    def too_late(self, seconds: float) -> TimeoutError | None:
        """An error if the deadline would pass within this time."""
        return TimeoutError() if self._clock() + seconds >= self.deadline else None

    @property
    def abandoned(self) -> bool:
        """Nobody waits for its outcomes."""
        return self.stopped or self._stop.is_set()

    @property
    def paused(self) -> bool:
        """It waits for the client to take results, which is not counted against the deadline."""
        return self._waiting > 0

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """It is paused meanwhile."""
        with self.lock:
            self._waiting += 1
            if self._waiting == 1:
                self._paused = self._clock()
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1
                if not self._waiting:
                    self.began += self._clock() - self._paused

    def wait(self) -> None:
        """Blocks until the client has taken enough of what was sent."""
        if self._room.backed_up:
            with self.pausing(), self._lent():
                self._room.wait()

    async def available(self) -> None:
        """The same on an event loop."""
        if self._room.backed_up:
            with self.pausing():
                await self._room.available()

    def claim(self) -> bool:
        """True for the first who asks, from any thread: its calls are over."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        self.seconds, self.sending = self._clock() - self.began, True
        return True

    def placed(self, taken: Taken) -> Taken:
        """Outcomes of rows that are called, in the order in which they were taken, with the rows between that are not.

        Rows then count from the first of the batch.
        """
        called = self.called
        if called is None:
            return taken
        count, start = len(taken.values), self._placed
        end = self.batch.rows if taken.first + count == len(called) else int(called[taken.first + count])
        self._placed = end
        mine = called[taken.first : taken.first + count] - start
        positions = np.full(end - start, -1, np.int64)
        positions[mine] = np.arange(count)
        skipped = positions < 0
        values = taken.values.take(pa.array(positions, mask=skipped))
        errors = {int(mine[index]): error for index, error in taken.errors.items()}
        return taken._replace(first=start, values=values, errors=errors, parts={}, skipped=skipped)
