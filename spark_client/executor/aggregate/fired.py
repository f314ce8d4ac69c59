"""Windows of a bucket of keys on a stream that fire early or late: state in, changes and new state out.

All windows of a bucket have the same last millisecond. When a window fires, the
values are compared: the first value gives +I, a changed one -U and +U, no remaining rows -D, an equal one nothing.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from remote_udf.row_kinds import RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField, list_of
from spark_client.base.identifiers import hidden
from spark_client.executor.aggregate.bundles import signs
from spark_client.executor.aggregate.firing import FiredWindow, FirePlan, Firing, loaded_windows, saved_windows
from spark_client.executor.aggregate.segment_columns import (
    RowsByKey,
    group_by_key,
    packed_groups,
    rows_column,
    segment_call,
    structs,
)
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.policy import check_policy
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.packed_batches import read, written
from spark_client.executor.stream.runtime import RUNTIME

__all__ = ["BUCKET", "LAST", "OVER", "PACKED", "FiredBucket", "Step", "fired", "packed_windows"]

LAST, OVER, BUCKET, PACKED = (hidden(name) for name in ("last", "over", "bucket", "rows"))
"""The columns by which Spark groups: a window's last millisecond, the time when it ends, the bucket, and the rows."""


@dataclasses.dataclass(frozen=True)
class Step:
    """The watermark and the clock in milliseconds; `last` is the last millisecond of the windows."""

    last: int
    watermark: int
    now: int


class FiredBucket:
    """Created from saved state, or None. Call `changes` once, then read `saved`."""

    def __init__(self, plan: FirePlan, saved: bytes | None) -> None:
        self._plan = plan
        self._keys: list[pa.Array] = []
        self._windows: list[FiredWindow] = []
        self._out: list[tuple[RowKind, int, list[object]]] = []
        if saved:
            self._keys, self._windows = loaded_windows(plan, saved)

    def changes(self, step: Step, rows: pa.Table | None) -> pa.Table | None:
        """Apply time and rows, and return the changes. Rows follow the watermark, so late rows are dropped."""
        plan = self._plan
        for index, window in enumerate(self._windows):
            if window.firing.time_passed(plan.options, step.last, step.watermark, step.now):
                self._fire(index)
        if self.is_over(step):
            self._windows, kept = [], self._keys
            return self._emitted(kept)
        if rows is not None and rows.num_rows:
            for index in self._accept(rows):
                if self._windows[index].firing.rows_came(plan.options, step.last, step.watermark, step.now):
                    self._fire(index)
        return self._emitted(self._keys)

    def is_over(self, step: Step) -> bool:
        """Whether further rows would be late, so that the state can be removed."""
        return step.watermark >= step.last + self._plan.options.lateness

    @property
    def saved(self) -> bytes | None:
        """The state to save; None if there is none."""
        return saved_windows(self._plan, self._keys, self._windows) if self._windows else None

    def _accept(self, rows: pa.Table) -> list[int]:
        """Add rows to the windows of their keys, and return the positions of these windows."""
        plan = self._plan
        grouping = group_by_key([rows.column(key) for key in plan.keys], rows.num_rows)
        firsts = pa.array(grouping.first_rows())
        new = [rows.column(key).combine_chunks().take(firsts) for key in plan.keys]
        places = self._places(new, grouping.segments)
        windows = [self._windows[place] for place in places]
        kinds = None if plan.kinds is None else rows.column(plan.kinds)
        added = np.ones(rows.num_rows, np.int64) if kinds is None else signs(kinds)
        for window, count in zip(windows, grouping.sums(added), strict=True):
            window.count += int(count)
        self._apply_remotes(rows, grouping, new, windows, kinds)
        self._apply_runnings(rows, grouping, windows, added)
        return places

    def _places(self, new: Sequence[pa.Array], count: int) -> list[int]:
        """The position of the window of each key; missing windows are created."""
        plan, before = self._plan, len(self._windows)
        if not before:
            self._keys, codes = list(new), np.arange(count)
        else:
            both = [pa.chunked_array([old, more.cast(old.type)]) for old, more in zip(self._keys, new, strict=True)]
            together = group_by_key(both, before + count)
            # Sorted by their first rows, so existing windows keep their positions.
            firsts = together.first_rows()
            order = np.argsort(firsts)
            codes = np.argsort(order)[together.codes[before:]]
            self._keys = [each.combine_chunks().take(pa.array(firsts[order])) for each in both]
        for _ in range(int(codes.max(initial=-1)) + 1 - before):
            remotes, runnings = len(plan.remotes), len(plan.runnings)
            values: list[object] = [None] * len(plan.shown)
            self._windows.append(FiredWindow(0, [None] * remotes, [None] * runnings, values, None, Firing()))
        return codes.tolist()

    def _apply_remotes(
        self, rows: pa.Table, grouping: RowsByKey, keys: list[pa.Array], windows: Sequence[FiredWindow],
        kinds: pa.ChunkedArray | None,
    ) -> None:  # fmt: skip
        """Make one call per function, with the rows and the accumulators of all keys."""
        plan = self._plan
        if not plan.remotes:
            return
        columns, names, calls = [structs(keys, plan.key_names, grouping.segments)], [KEY], []
        for number, source in enumerate(plan.remotes):
            assert source.call.spec.accumulator is not None
            before = [window.accumulators[number] for window in windows]
            lists = [[] if each is None else [each] for each in before]
            columns.append(pa.array(lists, list_of(source.call.spec.accumulator)))
            columns.append(rows_column(source, rows, grouping, kinds))
            names += [f"{number}a", f"{number}r"]
            applied = (AppliedField.ACCUMULATOR, AppliedField.FINAL_VALUE)
            call = dataclasses.replace(source.call, applied=applied)
            calls.append(segment_call(call, {ACCUMULATORS: 2 * number + 1, ROWS: 2 * number + 2}))
        with closing(RowEngine(calls, RUNTIME, ordered=True, merging=False)) as engine:
            completed = engine.exchange(pa.RecordBatch.from_arrays(columns, names=names))
            engine.finish()
        for number, source in enumerate(plan.remotes):
            check_policy(source.call, completed.errors[number], keys, plan.key_names)
            accumulators, values = (each.to_pylist() for each in completed.values[number].flatten())
            at = plan.shown.index((True, number))
            for window, accumulator, value in zip(windows, accumulators, values, strict=True):
                window.accumulators[number] = accumulator
                window.values[at] = value

    def _apply_runnings(
        self, rows: pa.Table, grouping: RowsByKey, windows: Sequence[FiredWindow], added: Integers
    ) -> None:
        order = np.arange(rows.num_rows) if grouping.order is None else grouping.order
        bounds = list(zip(grouping.offsets[:-1], grouping.offsets[1:], strict=True))
        in_order = added[order].tolist()
        for number, running in enumerate(self._plan.runnings):
            values: list[object] = [None] * rows.num_rows
            if running.column is not None:
                values = rows.column(running.column).take(pa.array(order)).to_pylist()
            at = self._plan.shown.index((False, number))
            for window, (start, end) in zip(windows, bounds, strict=True):
                window.states[number] = running.added(window.states[number], values[start:end], in_order[start:end])
                window.values[at] = running.value(window.states[number])

    def _fire(self, index: int) -> None:
        window = self._windows[index]
        if window.count == 0:
            if window.emitted is not None:
                self._out.append((RowKind.DELETE, index, window.emitted))
            window.emitted = None
        elif window.emitted is None:
            # A copy, because later rows of this micro-batch change the values of the window.
            window.emitted = list(window.values)
            self._out.append((RowKind.INSERT, index, window.emitted))
        elif not _same(window.emitted, window.values):
            before, window.emitted = window.emitted, list(window.values)
            self._out.append((RowKind.UPDATE_BEFORE, index, before))
            self._out.append((RowKind.UPDATE_AFTER, index, window.emitted))

    def _emitted(self, keys: Sequence[pa.Array]) -> pa.Table | None:
        if not self._out:
            return None
        at = pa.array([index for _, index, _ in self._out])
        columns = [pa.array([kind.value for kind, _, _ in self._out]), *(key.take(at) for key in keys)]
        for number, type_ in enumerate(self._plan.value_types):
            columns.append(pa.array([values[number] for _, _, values in self._out], type_))
        return pa.table(columns, names=list(self._plan.names))


def _same(one: object, other: object) -> bool:
    """Equal values; NaN is equal to itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN


def packed_windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of each window and bucket as one packed batch, in the columns LAST, OVER, BUCKET and PACKED.

    The first three columns of the input batches are LAST, OVER and BUCKET.
    """
    # A window ends at one time, so that need not be compared.
    return packed_groups((LAST, OVER, BUCKET, PACKED), (0, 2), batches)


def fired(plan: FirePlan, last: int, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The changes of one bucket of one window in one micro-batch, if any: a packed batch in the column PACKED.

    `last` is the window's last millisecond. The new state and its timeout are set in Spark's `state`.
    """
    packed_batches = [] if state.hasTimedOut else [bytes(each) for frame in frames for each in frame[PACKED]]
    batches = [batch for each in packed_batches for batch in read(each)]
    step = Step(last, state.getCurrentWatermarkMs(), state.getCurrentProcessingTimeMs())
    saved = bytes(state.get[0]) if state.exists else None
    bucket = FiredBucket(plan, saved)
    changes = bucket.changes(step, pa.Table.from_batches(batches) if batches else None)
    after = bucket.saved
    if after is None:
        if state.exists:
            state.remove()
    else:
        if after != saved:
            state.update((after,))
        if plan.options.needs_clock:
            # With a processing time timeout, Spark does not react to the watermark, which may pass the window at any
            # time.
            state.setTimeoutDuration(1)
        else:
            # Spark fires timeouts that are before the watermark, not those that are equal to it.
            due = last if step.watermark < last else last + plan.options.lateness
            state.setTimeoutTimestamp(due - 1)
    if changes is not None:
        yield pd.DataFrame({PACKED: [written(changes.to_batches())]})
