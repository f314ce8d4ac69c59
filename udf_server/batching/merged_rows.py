"""MergedRows passes the rows of one stream to the common calls of their function, and sends the outcomes."""

import asyncio
import collections
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from remote_udf.options import OutputMode
from remote_udf.outcomes import RowError
from udf_server.base.context import CallContext
from udf_server.base.threads import SMALL_BYTES
from udf_server.batching.dynamic_batcher import DynamicBatcher, batcher_of
from udf_server.batching.row_queue import Part, Slice
from udf_server.runners.outputs import Taken
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.selection import Indexes, rows_without_null

__all__ = ["MergedRows"]


class MergedRows(Runner):
    """The rows of one stream. Use it on the server's event loop; `began` and `row_context` on any thread."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._ordered = setup.options.output_mode is OutputMode.ORDERED
        self._arrived: collections.deque[InputBatch] = collections.deque()
        self._reading = False
        self.closed = False
        self.calling = 0
        """Number of rows in calls."""
        self._batcher: DynamicBatcher = batcher_of(setup)
        self._batcher.join(self)

    def feed(self, batch: InputBatch) -> None:
        if self.closed:
            return
        if self._arrived or self._reading or (batch.data is not None and len(batch.data) > SMALL_BYTES):
            self._arrived.append(batch)
            if not self._reading:
                self._reading = True
                self.setup.spawn(self._read_all())
        else:
            self._push(batch, self.setup.arguments.columns(batch))

    async def _read_all(self) -> None:
        """Read large batches beside the event loop, one after the other."""
        while self._arrived:
            batch = self._arrived.popleft()
            read = functools.partial(self.setup.arguments.columns, batch)
            columns = await asyncio.get_running_loop().run_in_executor(None, read)
            if self.closed:
                return
            self._push(batch, columns)
        self._reading = False

    def _push(self, batch: InputBatch, columns: list[pa.Array]) -> None:
        indexes: Indexes | None = None
        if (selection := batch.selection) is not None:
            if selection.dropped:
                return
            indexes = selection.called
        elif (indexes := rows_without_null(self.function.spec, columns)) is not None:
            self._send_skipped(batch, np.delete(np.arange(batch.rows), indexes))
        rows = batch.rows
        if indexes is not None:
            places, rows = pa.array(indexes), len(indexes)
            columns = [column.take(places) for column in columns]
        if rows:
            part = Part(self, batch, columns, indexes, rows, self.timeout_of(batch), self.setup.clock())
            self._batcher.push(self, part)

    def tick(self) -> None:
        self._batcher.check(self.setup.clock())

    def drop_waiting(self) -> None:
        self._batcher.drop(self)

    def cancel(self) -> None:
        if not self.closed:
            self.closed = True
            self._arrived.clear()
            self._batcher.leave(self)

    def settle(
        self, part: Part, rows: "range | Indexes", values: pa.Array, errors: Mapping[int, RowError],
        calls: int, retries: int,
    ) -> None:  # fmt: skip
        """Send the outcomes of some rows of a part, in ascending order."""
        self.calling -= len(rows)
        try:
            positions: range | Indexes = rows
            if part.indexes is not None:
                positions = part.indexes[rows.start : rows.stop] if isinstance(rows, range) else part.indexes[rows]
            self._send(part.batch, positions, values, errors, calls, retries)
        except Exception as error:
            self.setup.fail(error)

    def _send(
        self, batch: InputBatch, positions: "range | Indexes", values: pa.Array,
        errors: Mapping[int, RowError], calls: int = 0, retries: int = 0, *, skipped: bool = False,
    ) -> None:  # fmt: skip
        consecutive = not self._ordered or isinstance(positions, range)
        edges = () if consecutive else np.flatnonzero(np.diff(positions) != 1) + 1
        starts = [0, *edges, len(positions)]
        for start, end in itertools.pairwise(starts):
            mine = errors
            if len(starts) > 2:
                mine = {row - start: error for row, error in errors.items() if start <= row < end}
            first = int(positions[start]) if self._ordered else 0
            mask = np.ones(end - start, np.bool_) if skipped else None
            taken = Taken(first, values.slice(start, end - start), mine, {}, calls, retries, mask)
            calls = retries = 0
            rows = None if self._ordered else _moved(positions[start:end], batch.first_row)
            for output in self.setup.writer.write_pieces(batch.first_row, taken, rows):
                self.setup.emit(output)
        if not self._batcher.holds_up(self) and not self.setup.room.when_free(
            functools.partial(self.setup.post, self._go_on)
        ):
            self._batcher.hold_up(self)

    def _send_skipped(self, batch: InputBatch, positions: Indexes) -> None:
        if len(positions):
            self._send(batch, positions, pa.nulls(len(positions), self.function.spec.result), {}, skipped=True)

    def _go_on(self) -> None:
        """Continue after the client has read results."""
        if not self.closed:
            self._batcher.go_on(self)

    def retried(self, part: Part, row: int, attempts: int, error: BaseException) -> None:
        """Record that rows of a part are called again."""
        first = part.batch.first_row
        self.setup.retried(first, first + self._position(part, row), attempts, error)

    def began(self, piece: Slice) -> None:
        """Record that this thread or task calls the function for some rows."""
        self.setup.began(piece.part.batch.first_row)

    def row_context(self, part: Part, row: int, attempt: int, deadline: float) -> CallContext:
        """The context of a row of a part."""
        position = part.batch.first_row + self._position(part, row)
        return self.setup.call_context(position, 1, attempt, deadline, part.columns, row)

    def _position(self, part: Part, row: int) -> int:
        return row if part.indexes is None else int(part.indexes[row])


def _moved(rows: "range | Indexes", by: int) -> Sequence[int]:
    if isinstance(rows, range):
        return range(rows.start + by, rows.stop + by)
    return cast("list[int]", (rows + by).tolist())
