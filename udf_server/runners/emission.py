"""Emission: results that leave while their call still runs, for functions that may give more than memory holds."""

from collections.abc import Callable

import pyarrow as pa

from remote_udf.errors import ErrorCode
from udf_server.runners.outputs import Output, OutputWriter
from udf_server.runners.returned import WrongResult
from udf_server.runners.work import Work

__all__ = ["Abandoned", "Emission"]


class Abandoned(BaseException):
    """The call was given up or its stream has ended. Not an Exception, so that the function does not go on."""


class Emission:
    """Of one call for consecutive rows of a batch. Rows are counted from the first of the call.

    Every method raises Abandoned once nobody waits for the results.
    """

    def __init__(self, work: Work, first: int, writer: OutputWriter, deliver: Callable[[list[Output]], None]) -> None:
        """`deliver` takes outputs in order, from any thread."""
        self._work = work
        self._first = first
        self._writer = writer
        self._deliver = deliver
        self.part_bytes = writer.piece_bytes
        """What should leave at once has about this many bytes."""
        with work.lock:
            work.outcomes.restart(first)

    def part(self, row: int, output: pa.StructArray, value: Callable[[pa.StructArray], pa.Array]) -> None:
        """Sends rows that were emitted for one row of the call. `value` makes a value of the result of some of them.

        Raises WrongResult for an emitted row that is too large for a message.
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
        """Sends the outcomes of the next rows of the call, which are final, and of all rows before it."""
        work = self._work
        with work.lock:
            self._require_wanted()
            outcomes = work.outcomes
            outcomes.settle(max(outcomes.sent, self._first), values, {}, 1)
            self._deliver(self._writer.write(work.first_row, outcomes.take()))

    def wait(self) -> None:
        """Blocks until the client has taken enough of what was sent."""
        self._work.wait()
        self._require_wanted()

    async def available(self) -> None:
        """The same on an event loop."""
        await self._work.available()
        self._require_wanted()

    def _require_wanted(self) -> None:
        if self._work.abandoned:
            raise Abandoned
