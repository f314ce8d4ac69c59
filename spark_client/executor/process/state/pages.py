"""Pages: groups of keys of one bucket, each of which is read and written as a whole.

Every access to Spark's state store from Python is a round trip, so one access per key would cost more than everything
else. A page has the state and timers of as many keys as fit its size. The number of pages grows with the bucket by
linear hashing (Litwin 1980), which splits some pages and does not change the others.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState

from spark_client.executor.engine.pieces import Integers

__all__ = ["NEVER", "Pages", "page_of", "parents"]

PAGE_BYTES = 32 << 10
"""The average size of a page. If few keys of a page change, the whole page is still written."""
NEVER = 2**63 - 1


class Pages:
    """The pages of a bucket, in a map state. The caller stores `count` and `total`, which is their size in bytes."""

    def __init__(self, state: MapState, schema: pa.Schema, count: int, total: int) -> None:
        self._state = state
        self._schema = schema
        self.count = count
        self.total = total
        self._loaded: dict[int, bytes] = {}

    def grow(self) -> Iterable[int]:
        """Add pages if the bucket has grown. Return the pages that are split, which must be loaded and written."""
        wanted = -(-self.total // PAGE_BYTES)
        if wanted <= self.count:
            return ()
        split = parents(self.count, wanted)
        self.count = wanted
        return split

    def load(self, pages: Iterable[int]) -> pa.Table:
        """Load the keys of these pages, each page once."""
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
        """Write changed pages. `keys` has all keys of loaded pages, `places` their pages."""
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
    """The pages, of `count`, from which keys move to new pages when there are `wanted` pages."""
    found = set()
    for page in range(count, wanted):
        while page >= count:
            page -= 1 << (page.bit_length() - 1)
        found.add(page)
    return found
