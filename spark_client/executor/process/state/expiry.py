"""Removes what has reached its time-to-live from stored state, and tells when more of it will.

The server does not return expired state to the function, but it sees only keys that have rows or timers. So a page
leaves expired values out whenever it is written, and pages of which half has expired are loaded for that. See
`udf_server.process.states` for the stored form: with a time-to-live each value, element and item is a struct with the
time when it was written.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.state.pages import NEVER

__all__ = ["SWEPT_PAGES", "half_expired", "living"]

SWEPT_PAGES = 32
"""The maximum number of pages of a bucket that one micro-batch loads because of expired state: a megabyte."""
WRITTEN = "written"
Flags = npt.NDArray[np.bool_]


def living(
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
        place = np.full(len(column), -1, np.int64)
        place[owner[alive]] = np.flatnonzero(alive)
        return values.take(pa.array(place, mask=place < 0))
    counts = np.bincount(owner[alive], minlength=len(column))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32), mask=np.append(counts == 0, False))
    left = values.filter(pa.array(alive))
    if pa.types.is_map(column.type):
        return pa.MapArray.from_arrays(offsets, left.field("key"), left.field("item"), type=column.type)
    return pa.ListArray.from_arrays(offsets, left, type=column.type)


def _integers(column: pa.Array) -> Integers:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
