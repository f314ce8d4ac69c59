"""StoredKeys: the keys of a bucket in one call, with the stored state of each that has not expired.

The server does not return expired state to the function, but it sees only keys that have rows or timers. So a page
leaves expired values out whenever it is written, and pages of which half has expired are loaded for that. See
`udf_server.process.states` for the stored form: with a time-to-live each value, element and item is a struct with the
time when it was written.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.process_calls import STATE, TIME, TIMERS
from remote_udf.segments import KEY, ROWS
from spark_client.executor.engine.pieces import Integers, at_rows
from spark_client.executor.process.plan import StatePlan
from spark_client.executor.process.segment_batches import Before, empty_lists
from spark_client.executor.process.state.pages import NEVER
from spark_client.executor.segments.keys import key_codes

__all__ = ["HELD", "SWEPT_PAGES", "StoredKeys", "half_expired", "page_schema"]

HASH = "hash"
HELD = "held"
"""The column with rows that ORDER BY holds back."""
RELEASED = "released"
"""The column with the time of the last row that ORDER BY released."""
SWEPT_PAGES = 32
"""The maximum number of pages of a bucket that one micro-batch loads because of expired state: a megabyte."""
WRITTEN = "written"
Flags = npt.NDArray[np.bool_]


def page_schema(plan: StatePlan) -> pa.Schema:
    """The columns of a page, which has a row per key."""
    segments = plan.plan.segments
    fields = [pa.field(HASH, pa.int64()), segments.field(KEY), segments.field(STATE), segments.field(TIMERS)]
    if plan.orders:
        fields.append(pa.field(HELD, segments.field(ROWS).type))
    return pa.schema([*fields, pa.field(RELEASED, pa.int64())] if plan.keeps_released else fields)


class StoredKeys:
    """Stored keys, followed by new ones. Other code refers to them by their numbers."""

    def __init__(self, stored: pa.Table, keys: pa.StructArray, hashes: Integers) -> None:
        """`keys` and `hashes` are those of rows; `of_row` is then the number of each row's entry."""
        known, schema = stored.num_rows, stored.schema
        before = stored.column(KEY).combine_chunks()
        both = [pa.chunked_array([one, two]) for one, two in zip(before.flatten(), keys.flatten(), strict=True)]
        codes, count = key_codes(both, known + len(keys))
        number = np.full(count, -1, np.int64)
        number[codes[:known]] = np.arange(known)
        of_row = codes[known:]
        fresh = np.flatnonzero(number[of_row] < 0)
        # In order of arrival, so that results do not depend on the hashes of keys.
        first_rows = fresh[np.sort(np.unique(of_row[fresh], return_index=True)[1])]
        new = of_row[first_rows]
        number[new] = known + np.arange(len(new))
        self.of_row: Integers = number[of_row]
        self.count = known + len(new)
        taken = pa.array(first_rows)
        self.hashes: Integers = np.concatenate([stored.column(HASH).to_numpy(), hashes[first_rows]])
        self.keys = pa.concat_arrays([before, keys.take(taken)])
        self._kept: dict[str, pa.Array] = {}
        for name in (STATE, TIMERS, HELD, RELEASED):
            if name not in schema.names:
                continue
            type_ = schema.field(name).type
            if name == RELEASED:
                more = pa.array(np.full(len(new), -NEVER))
            else:
                more = pa.nulls(len(new), type_) if name == STATE else empty_lists(len(new), type_)
            self._kept[name] = pa.concat_arrays([stored.column(name).combine_chunks(), more])
        self.changed = np.zeros(self.count, np.bool_)

    @property
    def timers(self) -> pa.ListArray:
        return self._kept[TIMERS]

    @property
    def held(self) -> pa.ListArray:
        return self._kept[HELD]

    def keys_of(self, numbers: Integers) -> pa.StructArray:
        return self.keys.take(pa.array(numbers))

    def before(self, numbers: Integers) -> Before:
        """State and timers of these entries."""
        wanted = pa.array(numbers)
        return Before(self._kept[STATE].take(wanted), self._kept[TIMERS].take(wanted))

    def update(self, numbers: Integers, after: Before) -> None:
        """Replace state and timers of these entries after they were processed."""
        self._replace(STATE, numbers, after.state)
        self._replace(TIMERS, numbers, after.timers)

    @property
    def released(self) -> Integers:
        """The time of the last row of each entry that ORDER BY released."""
        return np.asarray(self._kept[RELEASED].to_numpy())

    def release(self, times: Integers, numbers: Integers) -> None:
        """Note that rows with these times were released, each of the entry of this number."""
        released = self.released.copy()
        np.maximum.at(released, numbers, times)
        self._kept[RELEASED] = pa.array(released)

    def hold(self, held: pa.ListArray) -> None:
        """Replace the held rows of all entries."""
        self._kept[HELD] = held

    def expire(self, times_to_live: Sequence[int | None], now: int) -> tuple[Integers, Integers]:
        """Remove what has expired. Return what will expire: the entry of each value, and the time in milliseconds."""
        self._kept[STATE], changed, owners, times = _living(self._kept[STATE], times_to_live, now)
        self.changed |= changed
        return owners, times

    def _replace(self, name: str, numbers: Integers, values: pa.Array) -> None:
        place = np.arange(self.count)
        place[numbers] = self.count + np.arange(len(numbers))
        self._kept[name] = pa.concat_arrays([self._kept[name], values]).take(pa.array(place))
        self.changed[numbers] = True

    def earliest(self, held_times: Integers | None = None) -> Integers:
        """The earliest due time of each entry, of a timer or of a held row; NEVER if it has none."""
        found = np.full(self.count, NEVER, np.int64)
        times = self.timers.flatten().field(TIME).to_numpy()
        if len(times):
            lengths = _lengths(self.timers)
            filled = np.flatnonzero(lengths)
            found[filled] = np.minimum.reduceat(times, (np.cumsum(lengths) - lengths)[filled])
        return found if held_times is None else np.minimum(found, held_times)

    def table(self, schema: pa.Schema) -> tuple[pa.Table, Integers]:
        """The entries to store, in the columns of pages, and their numbers."""
        alive = self._kept[STATE].is_valid().to_numpy(zero_copy_only=False) | (_lengths(self.timers) > 0)
        if HELD in self._kept:
            alive |= _lengths(self.held) > 0
        numbers = np.flatnonzero(alive)
        columns: Sequence[pa.Array] = [
            pa.array(self.hashes), self.keys, *(self._kept[name] for name in schema.names if name in self._kept)
        ]  # fmt: skip
        return pa.Table.from_arrays(list(columns), schema=schema).take(pa.array(numbers)), numbers


def _lengths(lists: pa.ListArray) -> Integers:
    return np.diff(lists.offsets.to_numpy()).astype(np.int64)


def _living(
    state: pa.StructArray, times_to_live: Sequence[int | None], now: int
) -> tuple[pa.StructArray, Flags, Integers, Integers]:
    """The state of keys without what has expired at `now`, and which keys have changed.

    Then, for each value that is left and will expire, the position of its key and the time. Times are in milliseconds.
    """
    changed = np.zeros(len(state), np.bool_)
    columns, owners, times = state.flatten(), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for place, ttl in enumerate(times_to_live):
        if ttl is None:
            continue
        values, owner, written = _timed(columns[place])
        alive = now - written < ttl
        owners.append(owner[alive])
        times.append(written[alive] + ttl)
        if not alive.all():
            changed[owner[~alive]] = True
            columns[place] = _kept(columns[place], values, owner, alive)
    if changed.any():
        empty = np.logical_and.reduce([column.is_null().to_numpy(zero_copy_only=False) for column in columns])
        state = pa.StructArray.from_arrays(columns, fields=list(state.type), mask=pa.array(empty))
    return state, changed, np.concatenate(owners), np.concatenate(times)


def half_expired(pages: Integers, times: Integers, count: int) -> Integers:
    """For each of `count` pages, when half of its values will have expired; NEVER if it has none that will.

    So each time a page is loaded and written, at least half of it is removed.
    """
    found = np.full(count, NEVER, np.int64)
    order = np.lexsort((times, pages))
    present, starts, lengths = np.unique(pages[order], return_index=True, return_counts=True)
    found[present] = times[order][starts + (lengths - 1) // 2]
    return found


def _timed(column: pa.Array) -> tuple[pa.Array, Integers, Integers]:
    """The values of an entry that have a time, the position of the key of each, and when it was written."""
    if pa.types.is_struct(column.type):
        owner = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        values = column.take(pa.array(owner))
        return values, owner, _integers(values.field(WRITTEN))
    lengths = np.diff(column.offsets.to_numpy()).astype(np.int64)
    owner = np.repeat(np.arange(len(column)), lengths)
    first, last = (column.offsets[at].as_py() for at in (0, len(column)))
    if pa.types.is_map(column.type):
        parts = [column.keys.slice(first, last - first), column.items.slice(first, last - first)]
        return pa.StructArray.from_arrays(parts, ["key", "item"]), owner, _integers(parts[1].field(WRITTEN))
    values = column.values.slice(first, last - first)
    return values, owner, _integers(values.field(WRITTEN))


def _kept(column: pa.Array, values: pa.Array, owner: Integers, alive: Flags) -> pa.Array:
    """The column with these values only. A key without any has null, as after `clear`."""
    if pa.types.is_struct(column.type):
        return at_rows(values.filter(pa.array(alive)), owner[alive], len(column))
    counts = np.bincount(owner[alive], minlength=len(column))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), mask=np.append(counts == 0, False))
    left = values.filter(pa.array(alive))
    if pa.types.is_map(column.type):
        return pa.MapArray.from_arrays(offsets, left.field("key"), left.field("item"), type=column.type)
    return pa.ListArray.from_arrays(offsets, left, type=column.type)


def _integers(column: pa.Array) -> Integers:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
