"""BucketWork: processes one bucket of keys when rows arrive or the watermark advances.

Timers and rows that the watermark reaches are processed before new rows, because a watermark exists before the rows of
its micro-batch; with `rows_first` the order is reversed. Both are one exchange with the server for all keys.
"""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import TABLE
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.output import OutputRows
from spark_client.executor.process.plan import StatePlan
from spark_client.executor.process.segment_batches import Before, after, segment_batch
from spark_client.executor.process.state.entries import HELD, SWEPT_PAGES, StoredKeys, half_expired, page_schema
from spark_client.executor.process.state.held_rows import HeldRows, order_times
from spark_client.executor.process.state.pages import NEVER, Pages, page_of
from spark_client.executor.segments.cutting import BUNDLE_BYTES

__all__ = ["Arrived", "BucketWork", "Moment"]

Exchange = Callable[[pa.RecordBatch, Sequence[pa.Array]], Iterator[Completed]]
"""Sends segments, given the columns of their keys, and returns the results in pieces."""
Batches = Generator[pa.RecordBatch, None, None]
"""Rows of the result."""


@dataclass(frozen=True)
class Moment:
    """Watermarks in microseconds, None before the first one; `now` in milliseconds."""

    before: int | None
    """The watermark when this bucket was last processed."""
    watermark: int | None
    now: int

    @property
    def advanced(self) -> bool:
        return self.watermark is not None and (self.before is None or self.watermark > self.before)


@dataclass(frozen=True)
class Arrived:
    """New rows of a bucket in order, with the key and hash of each."""

    rows: pa.StructArray
    keys: pa.StructArray
    hashes: Integers


class BucketWork:
    """One bucket in one micro-batch."""

    def __init__(
        self, plan: StatePlan, pages: Pages, due: Integers, expiry: Integers, moment: Moment, size: int,
        exchange: Exchange,
    ) -> None:  # fmt: skip
        """For each page, `due` has its earliest due time, `expiry` when half of it has expired.

        `size` bounds the rows of an exchange.
        """
        self._plan = plan
        self._pages = pages
        self.due = due
        self.expiry = expiry
        self._moment = moment
        self._size = size
        self._exchange = exchange
        self.dropped = 0
        """How many rows ORDER BY could not put in their place."""
        self._schema = page_schema(plan)

    def run(self, arrived: Arrived) -> Batches:
        """Yield the rows of the result. Changed pages are written after the last row."""
        moment = self._moment
        grown = set(self._pages.grow())
        count = len(self.due)
        wanted = set(page_of(arrived.hashes, count).tolist()) | grown
        if moment.watermark is not None and moment.advanced:
            wanted |= set(np.flatnonzero(self.due <= moment.watermark).tolist())
        wanted |= set(np.flatnonzero(self.expiry <= moment.now)[:SWEPT_PAGES].tolist())
        entries = StoredKeys(self._pages.load(sorted(wanted)), arrived.keys, arrived.hashes)
        held = yield from self._work(entries, arrived)
        held_times = None
        if held is not None:
            lists, held_times = held.lists(entries.count)
            entries.hold(lists.cast(self._schema.field(HELD).type))
        self._write(entries, wanted, grown, count, held_times)

    def _work(self, entries: StoredKeys, arrived: Arrived) -> Generator[pa.RecordBatch, None, HeldRows | None]:
        moment, process, orders = self._moment, self._plan.plan.process, self._plan.orders
        rows, of_row = arrived.rows, entries.of_row
        held = HeldRows.of(process, entries.held) if orders else None
        if held is not None:
            ordered = np.isin(
                rows.field(TABLE).to_numpy(zero_copy_only=False),
                [i for i, t in enumerate(process.tables) if t.order_by],
            )
            times = order_times(process, rows)
            if self._plan.rows_first:
                kept = ordered & (times >= entries.released[of_row])
            else:
                # Rows at Spark's watermark are not late.
                kept = ordered & (times >= (-NEVER if moment.watermark is None else moment.watermark))
            self.dropped = int(np.count_nonzero(ordered & ~kept))
            more = (rows.filter(pa.array(kept)), of_row[kept])
            entries.changed[of_row[kept]] = True
            rows, of_row = rows.filter(pa.array(~ordered)), of_row[~ordered]
            if self._plan.rows_first:
                held = held.with_rows(*more)
        if self._plan.rows_first:
            released, numbers, held = self._released(entries, held, rows)
            rows, of_row = pa.concat_arrays([rows, released]), np.concatenate([of_row, numbers])
            yield from self._rows(entries, rows, of_row, moment.before, advance=moment.advanced)
            return held
        if moment.advanced:
            released, numbers, held = self._released(entries, held, rows)
            yield from self._rows(entries, released, numbers, moment.before, advance=True)
        yield from self._rows(entries, rows, of_row, moment.watermark, advance=False)
        return held if held is None else held.with_rows(*more)

    def _released(
        self, entries: StoredKeys, held: HeldRows | None, like: pa.StructArray
    ) -> tuple[pa.StructArray, Integers, HeldRows | None]:
        """The rows that this watermark releases, with their entries, and the rows that are still held."""
        watermark = self._moment.watermark
        if held is None or watermark is None:
            return like.slice(0, 0), np.zeros(0, np.int64), held
        if self._plan.keeps_released:
            entries.release(*held.due_times(watermark))
        return held.due(watermark)

    def _rows(
        self, entries: StoredKeys, rows: pa.StructArray, of_row: Integers, seen: int | None, *, advance: bool
    ) -> Batches:
        """Process rows and, if `advance`, the timers that the watermark reaches, with a segment for each entry."""
        watermark = self._moment.watermark
        numbers = np.unique(of_row)
        if advance and watermark is not None:
            numbers = np.union1d(numbers, np.flatnonzero(entries.earliest() <= watermark))
        if not len(numbers):
            return
        order = np.argsort(of_row, kind="stable")
        if len(of_row) and not np.array_equal(order, np.arange(len(order))):
            rows, of_row = rows.take(pa.array(order)), of_row[order]
        starts = np.searchsorted(of_row, numbers)
        stops = np.searchsorted(of_row, numbers, side="right")
        limit = max(1, min(self._size, int(BUNDLE_BYTES / max(rows.nbytes / max(len(rows), 1), 1e-9))))
        for first, last in _bundles(starts, stops, limit):
            begin, end = int(starts[first]), int(stops[last - 1])
            to = watermark if advance else None
            if last - first == 1 and end - begin > limit:
                # A key with more rows than a bundle is processed in parts, each with the state of the previous part.
                cuts = [*range(begin, end, limit), end]
                for one, two in itertools.pairwise(cuts):
                    part, so_far = rows.slice(one, two - one), np.zeros(1, np.int64)
                    yield from self._send(entries, numbers[first:last], part, so_far, seen, to if two == end else None)
            else:
                part = rows.slice(begin, end - begin)
                yield from self._send(entries, numbers[first:last], part, starts[first:last] - begin, seen, to)

    def _send(
        self, entries: StoredKeys, numbers: Integers, rows: pa.StructArray, starts: Integers, seen: int | None,
        advance_to: int | None,
    ) -> Batches:  # fmt: skip
        plan, keys = self._plan.plan, entries.keys_of(numbers)
        batch = segment_batch(
            plan, keys, rows, starts, entries.before(numbers), now=self._moment.now, advance_to=advance_to,
            watermark=seen,
        )  # fmt: skip
        columns = keys.flatten()
        output = OutputRows(plan, columns, starts, rows.field("0") if plan.process.tables else None)
        left = []
        for completed in self._exchange(batch, columns):
            left.append(after(completed.values[0]))
            yield from output.batches(completed)
        entries.update(
            numbers,
            Before(pa.concat_arrays([each.state for each in left]), pa.concat_arrays([each.timers for each in left])),
        )

    def _write(
        self, entries: StoredKeys, loaded: set[int], grown: set[int], count: int, held_times: Integers | None
    ) -> None:
        pages = self._pages
        owners, times = entries.expire(self._plan.times_to_live, self._moment.now)
        kept, numbers = entries.table(self._schema)
        places = page_of(entries.hashes, pages.count)
        changed = set(places[entries.changed].tolist())
        if grown:
            changed |= grown | set(range(count, pages.count))
            more = np.full(pages.count - count, NEVER, np.int64)
            self.due, self.expiry = np.concatenate([self.due, more]), np.concatenate([self.expiry, more])
            loaded = loaded | changed
        pages.store(kept, places[numbers], sorted(changed))
        self.due[sorted(loaded)] = NEVER
        np.minimum.at(self.due, places[numbers], entries.earliest(held_times)[numbers])
        at = sorted(loaded)
        self.expiry[at] = half_expired(places[owners], times, pages.count)[at]


def _bundles(starts: Integers, stops: Integers, limit: int) -> list[tuple[int, int]]:
    """Ranges of segments with at most this many rows; a segment with more rows is in its own range."""
    bundles, first = [], 0
    while first < len(starts):
        last = max(int(np.searchsorted(stops, starts[first] + limit, side="right")), first + 1)
        bundles.append((first, last))
        first = last
    return bundles
