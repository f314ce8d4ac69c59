"""StoredKeys: the keys of a bucket in one call, with the stored state of each."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import STATE, TIME, TIMERS
from remote_udf.segments import KEY, ROWS
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.plan import ProcessPlan
from spark_client.executor.process.segment_batches import Before, empty_lists
from spark_client.executor.process.state.expiry import living
from spark_client.executor.process.state.pages import NEVER
from spark_client.executor.segments.keys import combined, key_codes

__all__ = ["HASH", "HELD", "StoredKeys", "earliest", "page_schema"]

HASH = "hash"
HELD = "held"
"""The column with rows that ORDER BY holds back."""
RELEASED = "released"
"""The column with the time of the last row that ORDER BY released."""


def page_schema(plan: ProcessPlan, *, orders: bool, keeps_released: bool = False) -> pa.Schema:
    """The columns of a page, which has a row per key."""
    segments = plan.segments
    fields = [pa.field(HASH, pa.int64()), segments.field(KEY), segments.field(STATE), segments.field(TIMERS)]
    if orders:
        fields.append(pa.field(HELD, segments.field(ROWS).type))
    return pa.schema([*fields, pa.field(RELEASED, pa.int64())] if keeps_released else fields)


class StoredKeys:
    """Stored keys, followed by new ones. Other code refers to them by their numbers."""

    def __init__(self, stored: pa.Table, keys: pa.StructArray, hashes: Integers) -> None:
        """`keys` and `hashes` are those of rows; `of_row` is then the number of each row's entry."""
        known, schema = stored.num_rows, stored.schema
        before = combined(stored.column(KEY))
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
        self.hashes: Integers = np.concatenate([combined(stored.column(HASH)).to_numpy(), hashes[first_rows]])
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
            self._kept[name] = pa.concat_arrays([combined(stored.column(name)), more])
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
        self._kept[STATE], changed, owners, times = living(self._kept[STATE], times_to_live, now)
        self.changed |= changed
        return owners, times

    def _replace(self, name: str, numbers: Integers, values: pa.Array) -> None:
        place = np.arange(self.count)
        place[numbers] = self.count + np.arange(len(numbers))
        self._kept[name] = pa.concat_arrays([self._kept[name], values]).take(pa.array(place))
        self.changed[numbers] = True

    def earliest(self, held_times: Integers | None = None) -> Integers:
        """The earliest due time of each entry, of a timer or of a held row."""
        times = earliest(self.timers)
        return times if held_times is None else np.minimum(times, held_times)

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


def earliest(timers: pa.ListArray) -> Integers:
    """The earliest time of each list; NEVER of an empty one."""
    found = np.full(len(timers), NEVER, np.int64)
    times = timers.flatten().field(TIME).to_numpy()
    if len(times):
        lengths = _lengths(timers)
        filled = np.flatnonzero(lengths)
        starts = (np.cumsum(lengths) - lengths)[filled]
        found[filled] = np.minimum.reduceat(times, starts)
    return found


def _lengths(lists: pa.ListArray) -> Integers:
    return np.diff(lists.offsets.to_numpy()).astype(np.int64)
