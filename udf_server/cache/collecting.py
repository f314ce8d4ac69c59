"""CollectingWriter takes the place of an OutputWriter: it passes outcomes of calls to the cache, not to the client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from udf_server.runners.outputs import Output, OutputWriter, Taken
from udf_server.runners.room import Room
from udf_server.runners.selection import Indexes
from udf_server.stores.entries import Entries

__all__ = ["Collected", "CollectingWriter"]

Keys = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True, slots=True)
class Collected(Output):
    """Outcomes of rows that were called: `taken` by position, `indexes` of the rows in their batch."""

    taken: Taken = field(kw_only=True)
    indexes: Indexes = field(kw_only=True)
    kept: "Kept" = field(kw_only=True)


class Kept(NamedTuple):
    """The outcomes that are to be kept: values by key, with their entries if the store has entries."""

    keys: Sequence[bytes]
    values: pa.Array
    entries: Sequence[bytes]


class CollectingWriter(OutputWriter):
    """Collects the outcomes of one stream, from any thread. The entries of values are made on that thread."""

    def __init__(
        self, result: pa.DataType, *, max_message_bytes: int, room: Room, entries: Entries | None,
        keys: Callable[[int], Keys | None],
    ) -> None:  # fmt: skip
        """`keys` returns the keys of the batch that starts at a row; None if its outcomes are not kept.

        Without `entries`, values are kept as they are.
        """
        super().__init__(result, ordered=False, max_message_bytes=max_message_bytes, room=room)
        self._entries = entries
        self._keys = keys

    def write(self, batch: int, taken: Taken, rows: Sequence[int] | None = None) -> list[Output]:
        assert rows is not None, "rows are collected as they complete"
        indexes = np.array(rows, np.int64) - batch
        # They outlive the call, whose function may reuse the memory of its array, or return a part of a large one.
        taken = taken._replace(values=pa.concat_arrays([taken.values]))
        collected = Collected(
            b"", batch, len(indexes), 0, {}, taken.values.nbytes, taken.calls, taken.retries, taken=taken,
            indexes=indexes, kept=self._kept(batch, taken, indexes),
        )  # fmt: skip
        return [self._counted(collected)]

    def _kept(self, batch: int, taken: Taken, indexes: Indexes) -> Kept:
        keys = self._keys(batch)
        if keys is None:
            return Kept((), taken.values, ())
        values, mine = taken.values, keys[indexes].tolist()
        if taken.errors or None in mine:
            chosen = [place for place, key in enumerate(mine) if key is not None and place not in taken.errors]
            values, mine = values.take(pa.array(chosen, pa.int64())), [mine[place] for place in chosen]
        return Kept(mine, values, () if self._entries is None else self._entries.of_values(values, mine))
