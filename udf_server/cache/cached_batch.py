"""CachedBatch holds the outcomes of one batch, from the cache or from calls, until BatchAnswers sends them."""

import asyncio
import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from remote_udf.options import OutputMode
from remote_udf.outcomes import RowError
from udf_server.runners.outputs import Mask, Output, OutputWriter, Taken, error_bytes
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.selection import Indexes, Selection

__all__ = ["BatchAnswers", "BatchOwner", "CachedBatch", "RowWait"]


class BatchOwner(Protocol):
    """What a batch's runner does for the rows of other batches."""

    policy: tuple[object, ...]
    """The options and budgets that lead to an error: a row gets the error of a call only if its own are the same."""

    def share(
        self, batch: "CachedBatch", rows: Sequence[int], values: pa.Array, errors: Mapping[int, RowError]
    ) -> None:
        """Set the outcomes of rows that waited for equal rows."""

    def inherit(self, batch: "CachedBatch", rows: Sequence[int]) -> None:
        """Call rows that waited for another row, which has no outcome for them."""

    def call_now(self, batch: "CachedBatch", key: bytes) -> None:
        """Call the row of this key if it waits for another server, because rows that wait for it cannot wait longer."""

    def is_stuck(self, other: object) -> bool:
        """Whether rows of `other` should not wait for this stream: its client does not read, so nothing is called."""


@dataclass(slots=True)
class RowWait:
    """A row waits for the outcome of an equal row."""

    since: float
    owner: "CachedBatch | None" = None
    """The batch whose call the row waited for at the last check."""
    began: float | None = None
    """The first check at which that call was running; None before."""


class CachedBatch:
    """The rows of one batch by index. Use it on the server's event loop."""

    def __init__(
        self, runner: BatchOwner, batch: InputBatch, columns: Sequence[pa.Array], keys: Sequence[bytes | None]
    ) -> None:
        self.runner, self.batch, self.columns = runner, batch, columns
        self.keys = np.fromiter(keys, object, len(keys))
        """The key of each row; None for a row without one."""
        self._unkeyed = None if None not in keys else np.array([key is None for key in keys], np.bool_)
        self.selections: list[Selection] = []
        """The rows that were passed on to be called."""
        self.waits: dict[int, RowWait] = {}
        """Rows that wait for the call of an equal row."""
        self.elsewhere: dict[bytes, int] = {}
        """Rows, by their key, that another server may be calling."""
        self.until: float | None = None
        """Until when its rows wait for the cache, if they must not be called without it."""
        self.useless: dict[bytes, bytes] = {}
        """The beginnings, by key, of entries that are too old or damaged."""
        self.open = np.ones(batch.rows, np.bool_)
        """True for the rows without an outcome."""
        self.left = batch.rows
        """Number of rows without an outcome."""
        self.held = 0
        """Approximate bytes of the outcomes that were not sent."""
        self._rows: list[Indexes] = []
        self._values: list[pa.Array] = []
        self._errors: dict[int, RowError] = {}
        self._skipped: set[int] = set()
        self._counts: collections.Counter[str] = collections.Counter()

    def keys_of(self, rows: "Indexes | Sequence[int]") -> list[bytes]:
        """The keys of rows that have one, in their order."""
        return self.keys[rows].tolist()

    def split(self, rows: Indexes) -> tuple[Indexes, Indexes]:
        """The rows that have a key, and the others."""
        if self._unkeyed is None:
            return rows, rows[:0]
        without = self._unkeyed[rows]
        return rows[~without], rows[without]

    def selected(self, rows: Indexes) -> InputBatch:
        """A batch that has these rows called."""
        selection = Selection(self.columns, rows)
        self.selections.append(selection)
        return dataclasses.replace(self.batch, data=None, selection=selection)

    @property
    def running(self) -> Indexes:
        """The rows whose call has begun and that have no outcome."""
        begun = [np.array(selection.begun, np.int64) for selection in self.selections]
        rows = np.concatenate([np.zeros(0, np.int64), *begun])
        return rows[self.open[rows]]

    def settle(self, rows: Indexes, values: pa.Array, errors: Mapping[int, RowError]) -> int:
        """Set the outcomes of rows that have none, as `BatchAnswers.settle`. Returns the bytes that `held` has more."""
        self.open[rows] = False
        self.left -= len(rows)
        self._rows.append(rows)
        self._values.append(values)
        self._errors.update(errors)
        added = values.nbytes + sum(map(error_bytes, errors.values()))
        self.held += added
        return added

    def skip(self, skipped: Mask, result: pa.DataType) -> int:
        """Set the outcome null for rows that are not called because an argument is null. Returns what `settle` does."""
        rows = np.flatnonzero(skipped)
        self._skipped.update(rows.tolist())
        return self.settle(rows, pa.nulls(len(rows), result), {})

    def count(self, *, calls: int = 0, retries: int = 0, hits: int = 0, misses: int = 0, shared: int = 0) -> None:
        """Add to the counts that the next output reports."""
        self._counts.update(calls=calls, retries=retries, hits=hits, misses=misses, shared=shared)

    def outputs(self, writer: OutputWriter, *, ordered: bool) -> Iterator[Output]:
        """The Results of the outcomes that were not sent. With ordered output, one for each run of consecutive rows."""
        if not self._rows:
            return
        rows, values = np.concatenate(self._rows), pa.concat_arrays(self._values)
        self._rows, self._values, self.held = [], [], 0
        if ordered and np.any(np.diff(rows) != 1):
            order = np.argsort(rows)
            rows, values = rows[order], values.take(pa.array(order))
        edges = np.flatnonzero(np.diff(rows) != 1) + 1 if ordered else ()
        starts = [0, *edges, len(rows)]
        for start, end in itertools.pairwise(starts):
            yield from self._write(writer, rows[start:end], values.slice(start, end - start), ordered=ordered)

    def _write(self, writer: OutputWriter, rows: Indexes, values: pa.Array, *, ordered: bool) -> Iterator[Output]:
        indexes = rows.tolist()
        errors, skipped = {}, None
        if self._errors:
            errors = {place: self._errors.pop(row) for place, row in enumerate(indexes) if row in self._errors}
        if self._skipped:
            skipped = np.fromiter((row in self._skipped for row in indexes), np.bool_, len(indexes))
        counts, self._counts = self._counts, collections.Counter()
        taken = Taken(
            indexes[0] if ordered else 0, values, errors, {}, counts["calls"], counts["retries"], skipped,
            (counts["hits"], counts["misses"], counts["shared"]),
        )  # fmt: skip
        first = self.batch.first_row
        yield from writer.write_pieces(first, taken, None if ordered else [first + row for row in indexes])


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
