"""BatchWork is the call of a vectorized function for one batch of a stream, with its outcomes until they are sent."""

import contextlib
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from udf_server.runners.hosted_call import HostedCall
from udf_server.runners.isolation import Outcomes
from udf_server.runners.outputs import Taken
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.selection import Indexes

__all__ = ["BatchWork"]


class WorkOwner(Protocol):
    """What begins the work of a stream and sends its outcomes."""

    async def run(self, work: "BatchWork") -> None:
        """Call the function for the batch on the event loop that runs this."""

    def remove(self, work: "BatchWork") -> None:
        """Count the work no more among those that run."""

    def leave_thread(self) -> None:
        """Count one thread less."""

    def send_aside(self, work: "BatchWork") -> None:
        """Send the outcomes of work that was given up."""


class BatchWork(HostedCall):
    """One batch. The first to claim it emits the outcomes: the thread or task that calls, or the deadline check."""

    def __init__(
        self, setup: RunnerSetup, owner: WorkOwner, batch: InputBatch, timeout: float, stop: threading.Event
    ) -> None:
        super().__init__(setup.hosted, setup.party, setup.clock, setup.spawn)
        self._setup, self._owner = setup, owner
        self.batch = batch
        self._timeout = timeout
        self.lock = threading.Lock()
        """Held while outcomes are taken or given up."""
        self._stop = stop
        self._room = setup.room
        self._waiting = 0
        self._paused = 0.0
        self.outcomes = Outcomes(batch.rows, setup.function.result)
        """Outcomes of the rows that are called."""
        self.results = self._room.claim()
        """The bytes of the outcomes until they are written."""
        self.called: Indexes | None = None
        """Indexes of the rows that are called; None for all of them."""
        self._placed = 0
        """Number of rows of the batch whose outcomes were taken, if not all rows are called."""
        self.seconds = 0.0
        """Time that its calls took, set after the last call."""
        self.sent = False
        """Whether all of its outcomes were sent by the thread or task that called the function."""
        self.stopped = False
        """Whether it was given up, so that no more calls are needed."""

    def run(self) -> Coroutine[None, None, None]:
        return self._owner.run(self)

    @property
    def wanted(self) -> bool:
        return not self._stop.is_set()

    def take(self) -> bool:
        if not self.claim():
            return False
        with self.lock:
            self.stopped = True
            # The call may still return and write to the original.
            self.outcomes = self.outcomes.copied()
        self._owner.remove(self)
        return True

    def leave_thread(self) -> None:
        self._owner.leave_thread()

    def given_up(self, error: Exception | None) -> None:
        """Time out the rows without an outcome."""
        self.outcomes.fail_rest(self._setup.timeout_error(1))
        if error is None:
            self._owner.send_aside(self)
        else:
            self._setup.fail(error)

    def failed(self, error: Exception) -> None:
        self._setup.fail(error)

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
        return TimeoutError() if self.clock() + seconds >= self.deadline else None

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
                self._paused = self.clock()
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1
                if not self._waiting:
                    self.began += self.clock() - self._paused

    def wait(self) -> None:
        """Block until the client has read enough of the sent results."""
        if self._room.backed_up:
            with self.pausing(), self.hosted.thread_executor.lent():
                self._room.wait()

    async def available(self) -> None:
        """Do the same as `wait` on an event loop."""
        if self._room.backed_up:
            with self.pausing():
                await self._room.available()

    def claim(self) -> bool:
        """Mark the calls as ended. Returns True for the first call only. Safe to call from any thread."""
        if not self.open.take():
            return False
        self.seconds = self.clock() - self.began
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
