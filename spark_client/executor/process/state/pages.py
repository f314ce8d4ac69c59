"""Pages: the keys of one bucket in pieces that are read and written as one.

Every access to Spark's state store from Python is a round trip, so one per key would cost more than all the
rest. A page has the state and timers of as many keys as fit its size; the number of pages grows with the
bucket by linear hashing (Litwin 1980), which splits some pages and leaves the others alone.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState

__all__ = ["NEVER", "Pages", "page_of", "parents"]

PAGE_BYTES = 32 << 10
"""Of a page on average. Half of what a page takes is written without need where few keys of it change."""
NEVER = 2**63 - 1
Integers = npt.NDArray[np.int64]


class Pages:
    """The pages of a bucket, in a map state. `count` and `total` (their bytes) are remembered by the caller."""

    def __init__(self, state: MapState, schema: pa.Schema, count: int, total: int) -> None:
        self._state = state
        self._schema = schema
        self.count = count
        self.total = total
        self._loaded: dict[int, bytes] = {}

    def grow(self) -> Iterable[int]:
        """Makes as many pages as the bucket has grown to; gives back those that must be loaded and written for it."""
        wanted = -(-self.total // PAGE_BYTES)
        if wanted <= self.count:
            return ()
        split = parents(self.count, wanted)
        self.count = wanted
        return split

    def load(self, pages: Iterable[int]) -> pa.Table:
        """The keys of these pages, each page once."""
        batches = []
        for page in pages:
            if page in self._loaded:
                continue
            row = self._state.getValue((page,))
            self._loaded[page] = b"" if row is None else bytes(row[0])
            if row is not None:
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(self._loaded[page]), self._schema))
        return pa.Table.from_batches(batches, schema=self._schema)

    def store(self, keys: pa.Table, places: Integers, written: Iterable[int]) -> None:
        """Writes pages. `keys` has all keys of loaded pages, `places` their pages; what is equal is not written."""
        order = np.argsort(places, kind="stable")
        ordered, sorted_places = keys.take(pa.array(order)).combine_chunks(), places[order]
        for page in written:
            first, last = np.searchsorted(sorted_places, [page, page + 1])
            before = self._loaded.get(page, b"")
            data = b""
            if last > first:
                (batch,) = ordered.slice(first, last - first).to_batches()
                data = batch.serialize().to_pybytes()
            if data == before:
                continue
            if data:
                self._state.updateValue((int(page),), (data,))
            else:
                self._state.removeKey((int(page),))
            self._loaded[page] = data
            self.total += len(data) - len(before)


def page_of(hashes: Integers, count: int) -> Integers:
    """The page of each key, by the lower half of its hash."""
    bits = max(count - 1, 0).bit_length()
    low = (hashes & 0xFFFFFFFF).astype(np.int64)
    place = low & ((1 << bits) - 1)
    return np.where(place < count, place, place & ((1 << max(bits - 1, 0)) - 1))


def parents(count: int, wanted: int) -> set[int]:
    """The pages out of `count` whose keys go to other pages when there are `wanted`."""
    found = set()
    for page in range(count, wanted):
        while page >= count:
            page -= 1 << (page.bit_length() - 1)
        found.add(page)
    return found
