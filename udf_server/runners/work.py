"""BatchWork is the call of a vectorized function for one batch, whose outcomes are sent after it or while it runs."""

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from udf_server.runners.calling import WrongResult
from udf_server.runners.hosted_call import HostedCall
from udf_server.runners.isolation import Outcomes
from udf_server.runners.outputs import Output, OutputWriter, Taken
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.selection import Indexes

__all__ = ["Abandoned", "BatchWork", "Emission"]


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
        self.batch, self._timeout = batch, timeout
        self.lock = threading.Lock()
        """Held while outcomes are taken or given up."""
        self._stop, self._room = stop, setup.room
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
    def deadline(self) -> float:
        """Deadline of its rows. Valid once the work has begun."""
        return self.began + self._timeout

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
        begin, first, end = self.batch.first_row, placed.first, placed.first + len(placed.values)
        if self.batch.selection is not None and self.called is not None:
            return [begin + index for index in self.called[first:end].tolist()]
        return range(begin + first, begin + end)

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


class Abandoned(BaseException):
    """The call was given up or its stream has ended. A function that catches Exception does not catch this."""


class Emission:
    """The results of one call, which may be larger than memory, so they are sent while it runs.

    Rows are consecutive ones of a batch, counted from the first row of the call. Every method raises Abandoned if the
    results are not wanted any more.
    """

    def __init__(
        self, work: BatchWork, first: int, writer: OutputWriter, deliver: Callable[[list[Output]], None]
    ) -> None:
        """`deliver` takes outputs in order, from any thread."""
        self._work, self._first = work, first
        self._writer, self._deliver = writer, deliver
        self.part_bytes = writer.piece_bytes
        """The approximate number of bytes to send together."""
        with work.lock:
            work.outcomes.restart(first)

    def part(self, row: int, output: pa.StructArray, value: Callable[[pa.StructArray], pa.Array]) -> None:
        """Send rows emitted for one row of the call. `value` turns some of them into a value of the result type.

        Raises WrongResult if an emitted row is too large for a message.
        """
        place = self._first + row
        with self._work.lock:
            self._require_wanted()
            number = self._work.outcomes.parts.get(place, 0) + 1
            batch = self._work.batch.first_row
            made = self._writer.write_part(batch, batch + place, number, value(output))
            if made is not None:
                self._work.outcomes.parts[place] = number
                self._deliver([made])
                return
        if len(output) == 1:
            why = f"an emitted row takes {output.nbytes} bytes; a message holds {self._writer.limit}"
            raise WrongResult(ErrorCode.RESULT_TOO_LARGE, why)
        half = len(output) // 2
        self.part(row, output.slice(0, half), value)
        self.part(row, output.slice(half), value)

    def settle(self, values: pa.Array) -> None:
        """Send the outcomes of the next rows of the call, which are final, and those of all rows before the call."""
        work = self._work
        with work.lock:
            self._require_wanted()
            outcomes = work.outcomes
            outcomes.settle(max(outcomes.sent, self._first), values, {}, 1)
            self._deliver(self._writer.write(work.batch.first_row, outcomes.take()))

    def wait(self) -> None:
        """Block until the client has read enough of the sent results."""
        self._work.wait()
        self._require_wanted()

    async def available(self) -> None:
        """Do the same as `wait` on an event loop."""
        await self._work.available()
        self._require_wanted()

    def _require_wanted(self) -> None:
        if self._work.abandoned:
            raise Abandoned
