"""Emission sends results while their call still runs, for functions whose output may be larger than memory."""

from collections.abc import Callable

import pyarrow as pa

from remote_udf.errors import ErrorCode
from udf_server.runners.calling import WrongResult
from udf_server.runners.outputs import Output, OutputWriter
from udf_server.runners.work import BatchWork

__all__ = ["Abandoned", "Emission"]


class Abandoned(BaseException):
    """Raised if the call was given up or its stream has ended.

    It is not an Exception, so that a function that catches Exception does not continue.
    """


class Emission:
    """The results of one call for consecutive rows of a batch. Rows are counted from the first row of the call.

    Every method raises Abandoned if the results are not wanted any more.
    """

    def __init__(
        self, work: BatchWork, first: int, writer: OutputWriter, deliver: Callable[[list[Output]], None]
    ) -> None:
        """`deliver` takes outputs in order, from any thread."""
        self._work = work
        self._first = first
        self._writer = writer
        self._deliver = deliver
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
            batch = self._work.first_row
            made = self._writer.write_part(batch, batch + place, number, value(output))
            if made is not None:
                self._work.outcomes.parts[place] = number
                self._deliver([made])
                return
        if len(output) == 1:
            raise WrongResult(
                ErrorCode.RESULT_TOO_LARGE,
                f"an emitted row takes {output.nbytes} bytes; a message holds {self._writer.limit}",
            )
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
            self._deliver(self._writer.write(work.first_row, outcomes.take()))

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
