"""Work holds the state of one batch while a vectorized function processes it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from udf_server.base.token import Token
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.runners.isolation import Outcomes
from udf_server.runners.outputs import Taken
from udf_server.runners.room import Room
from udf_server.runners.runner import InputBatch

__all__ = ["Work"]


class Work:
    """One batch. The first to claim it emits the outcomes: the thread or task that calls, or the deadline check."""

    def __init__(
        self, batch: InputBatch, timeout: float, outcomes: Outcomes, stop: threading.Event, clock: Callable[[], float],
        room: Room, lent: Callable[[], AbstractContextManager[object]],
    ) -> None:  # fmt: skip
        """While its thread waits for the client, the context `lent` is entered."""
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
        """Outcomes of the rows that are called."""
        self.results = room.claim()
        """The bytes of the outcomes until they are written."""
        self.called: np.ndarray[Any, Any] | None = None
        """Indexes of the rows that are called; None for all of them."""
        self._placed = 0
        """Number of rows of the batch whose outcomes were taken, if not all rows are called."""
        self.began = 0.0
        """When the first call began; 0.0 before."""
        self.seconds = 0.0
        """Time that its calls took, set after the last call."""
        self.sending = False
        """Whether its calls have ended."""
        self.sent = False
        """Whether all of its outcomes were sent by the thread or task that called the function."""
        self.stopped = False
        """Whether it was given up, so that no more calls are needed."""
        self.executor: LoopExecutor | None = None
        self.posted = 0.0
        """When it was passed to its executor."""
        self.queued = False
        """Whether its executor has taken it. It begins when it has its turn."""
        self.task: asyncio.Task[None] | None = None
        self.told = 0.0
        """When the coroutine was cancelled because of its deadline; 0.0 if it was not."""
        self.answered = False
        """Whether its loop has reacted to that cancellation."""
        self._claim = Token()

    @property
    def first_row(self) -> int:
        """Position of the batch's first row in the stream."""
        return self.batch.first_row

    @property
    def deadline(self) -> float:
        """Deadline of its rows. Valid once the work has begun."""
        return self.began + self._timeout

    def too_late(self, seconds: float) -> TimeoutError | None:
        """An error if the deadline passes within this time."""
        return TimeoutError() if self._clock() + seconds >= self.deadline else None

    @property
    def abandoned(self) -> bool:
        """Whether its outcomes are not wanted any more."""
        return self.stopped or self._stop.is_set()

    @property
    def paused(self) -> bool:
        """Whether it waits for the client to read results. That time does not count against the deadline."""
        return self._waiting > 0

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Mark the work as paused within the block, and move its deadline by that time."""
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
        """Block until the client has read enough of the sent results."""
        if self._room.backed_up:
            with self.pausing(), self._lent():
                self._room.wait()

    async def available(self) -> None:
        """Do the same as `wait` on an event loop."""
        if self._room.backed_up:
            with self.pausing():
                await self._room.available()

    def claim(self) -> bool:
        """Mark the calls as ended. Returns True for the first call only. Safe to call from any thread."""
        if not self._claim.take():
            return False
        self.seconds, self.sending = self._clock() - self.began, True
        return True

    def positions(self, placed: Taken) -> Sequence[int]:
        """The positions in the stream of rows that `placed` returned."""
        first, end = placed.first, placed.first + len(placed.values)
        if self.batch.selection is not None and self.called is not None:
            return [self.first_row + index for index in self.called[first:end].tolist()]
        return range(self.first_row + first, self.first_row + end)

    def placed(self, taken: Taken) -> Taken:
        """Add the rows that are not called to outcomes of rows that are. Pass outcomes in the order they were taken.

        Rows outside the selection of the batch are not added.
        The positions in the result count from the first row of the batch.
        """
        called = self.called
        if called is None or self.batch.selection is not None:
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
