"""BatchAnswers sends the outcomes of the batches of one stream: at once, or when the rows before them have theirs."""

import asyncio
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.options import OutputMode
from remote_udf.outcomes import RowError
from udf_server.cache.cached_batch import CachedBatch
from udf_server.runners.outputs import Mask
from udf_server.runners.runner import RunnerSetup
from udf_server.runners.selection import Indexes

__all__ = ["BatchAnswers"]


class BatchAnswers:
    """The batches with rows that have no outcome or were not sent. Use it on the server's event loop."""

    def __init__(self, setup: RunnerSetup) -> None:
        self._setup = setup
        self._ordered = setup.options.output_mode is OutputMode.ORDERED
        self._claim = setup.room.claim()
        """The bytes of the outcomes that are held here."""
        self.batches: dict[int, CachedBatch] = {}
        """By their first row."""
        self.closed = False

    def add(self, batch: CachedBatch, skipped: Mask | None) -> None:
        """Add a batch. Rows that are skipped, because an argument is null, have their outcome already."""
        self.batches[batch.batch.first_row] = batch
        if skipped is not None:
            self._claim.add(batch.skip(skipped, self._setup.function.spec.result))
            if not batch.left:
                self._send(batch)

    def settle(self, batch: CachedBatch, rows: Indexes, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Set the outcomes of those rows that have none, and send what should be sent now.

        Args:
            batch: The batch of the rows.
            rows: Distinct indexes of rows.
            values: Their values; null for a row with an error.
            errors: Errors by the index of the row.
        """
        if self.closed or not len(rows):
            return
        still = batch.open[rows]
        if not still.all():
            # A row that was called although it waited may have got an outcome meanwhile.
            places = np.flatnonzero(still)
            rows, values = rows[places], values.take(pa.array(places))
            errors = {row: error for row, error in errors.items() if batch.open[row]}
            if not len(rows):
                return
        self._claim.add(batch.settle(rows, values, errors))
        if not batch.left or not self._ordered:
            self._send(batch)
        elif self._claim.held >= self._setup.writer.piece_bytes or self._setup.room.full:
            self.send_held()

    def fail(self, batch: CachedBatch, errors: Mapping[int, RowError]) -> None:
        """Set errors, by the index of the row, of those rows that have no outcome."""
        rows = np.fromiter(errors, np.int64, len(errors))
        self.settle(batch, rows, pa.nulls(len(errors), self._setup.function.spec.result), errors)

    def send_held(self) -> None:
        """Send all outcomes, because the room that they take is needed."""
        for batch in list(self.batches.values()):
            self._send(batch)

    async def until_free(self) -> None:
        """Wait until the client has read enough results."""
        while self._setup.room.full and not self.closed:
            self.send_held()
            freed = asyncio.Event()
            if not self._setup.room.when_free(functools.partial(self._setup.post, freed.set)):
                await freed.wait()

    def close(self) -> Sequence[CachedBatch]:
        """Send nothing more. Returns the batches with rows that have no outcome. Safe to call twice."""
        self.closed = True
        self._claim.release()
        batches, self.batches = self.batches, {}
        return list(batches.values())

    def _send(self, batch: CachedBatch) -> None:
        held = batch.held
        if not batch.left:
            self.batches.pop(batch.batch.first_row, None)
        for output in batch.outputs(self._setup.writer, ordered=self._ordered):
            self._setup.emit(output)
        self._claim.add(-held)
