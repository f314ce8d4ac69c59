"""RowQueue holds the rows that wait for a common call, and takes them round robin by caller, then by stream."""

import collections
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from udf_server.runners.runner import InputBatch

__all__ = ["Part", "RowQueue", "Slice", "fair_shares"]


SPARE_PARTS = 64
"""A queue keeps at most this number of parts without waiting rows, and as many as it has parts with waiting rows."""


class Part:
    """The rows of one batch that are called. Rows are counted from the first of them."""

    __slots__ = ("arrived", "batch", "columns", "indexes", "row_bytes", "rows", "stream", "timeout", "waiting")

    def __init__(
        self, stream: Any, batch: InputBatch, columns: Sequence[pa.Array], indexes: "np.ndarray[Any, Any] | None",
        rows: int, timeout: float, arrived: float,
    ) -> None:  # fmt: skip
        """`indexes` has the positions of the rows in the batch; None for all."""
        self.stream, self.batch, self.columns, self.indexes = stream, batch, columns, indexes
        self.rows = self.waiting = rows
        self.timeout, self.arrived = timeout, arrived
        self.row_bytes = max(sum(column.nbytes for column in columns) // max(rows, 1), 1)


class Slice:
    """Consecutive rows of a part, from `start` to before `end`."""

    __slots__ = ("end", "part", "start")

    def __init__(self, part: Part, start: int, end: int) -> None:
        self.part, self.start, self.end = part, start, end

    def __len__(self) -> int:
        return self.end - self.start


class _Waiting:
    """The waiting rows of one stream."""

    __slots__ = ("rows", "slices")

    def __init__(self) -> None:
        self.slices: collections.deque[Slice] = collections.deque()
        self.rows = 0


class RowQueue:
    """The waiting rows of all streams. Use it on one thread. The streams bound what they push."""

    def __init__(self) -> None:
        self._callers: dict[str, dict[Any, _Waiting]] = {}
        """By caller, then by stream, those that were served least recently first."""
        self._parts: collections.deque[Part] = collections.deque()
        """In the order of their arrival. Some may have no waiting rows any more."""
        self._most_parts = SPARE_PARTS
        self.rows = 0
        self.bytes = 0

    def push(self, caller: str, part: Part) -> None:
        """Add the rows of a part."""
        waiting = self._callers.setdefault(caller, {}).setdefault(part.stream, _Waiting())
        waiting.slices.append(Slice(part, 0, part.rows))
        waiting.rows += part.rows
        if len(self._parts) >= self._most_parts:
            self._remove_done()
        self._parts.append(part)
        self.rows += part.rows
        self.bytes += part.rows * part.row_bytes

    def drop(self, caller: str, stream: Any) -> None:
        """Remove the rows of a stream. Safe to call twice."""
        waiting = self._callers.get(caller, {}).pop(stream, None)
        if waiting is not None:
            for each in waiting.slices:
                self._count(each)
            if not self._callers[caller]:
                del self._callers[caller]
        self._remove_done()

    def _remove_done(self) -> None:
        """Remove the parts without waiting rows, which would keep their streams and arguments in memory."""
        self._parts = collections.deque(part for part in self._parts if part.waiting)
        self._most_parts = 2 * len(self._parts) + SPARE_PARTS

    def oldest(self, held_up: Collection[Any]) -> float | None:
        """When the row that waits longest has arrived, of the streams that are not held up; None without such rows."""
        return next((part.arrived for part in self._parts if part.waiting and part.stream not in held_up), None)

    def waiting(self, caller: str, stream: Any) -> int:
        """Number of waiting rows of a stream."""
        found = self._callers.get(caller, {}).get(stream)
        return found.rows if found is not None else 0

    def take(self, most_rows: int, most_bytes: int, *, mix_callers: bool, held_up: Collection[Any]) -> list[Slice]:
        """Remove rows for one call, at least one row if a stream that is not held up has rows.

        Callers get equal shares, and so do the streams of a caller. A share that is not used is shared by the others.
        """
        ready: dict[str, dict[Any, int]] = {}
        for caller, streams in self._callers.items():
            if rows := {stream: each.rows for stream, each in streams.items() if stream not in held_up}:
                ready[caller] = rows
                if not mix_callers:
                    break
        taken: list[Slice] = []
        left = most_bytes
        shares = fair_shares([sum(rows.values()) for rows in ready.values()], most_rows)
        for (caller, rows), share in zip(ready.items(), shares, strict=True):
            streams = self._callers[caller]
            for stream, count in zip(rows, fair_shares(list(rows.values()), share), strict=True):
                if count:
                    left = self._take(streams, stream, count, left, taken)
            if share:
                served = self._callers.pop(caller)
                if served:
                    self._callers[caller] = served
        self.rows -= sum([piece.end - piece.start for piece in taken])
        self.bytes -= most_bytes - left
        while self._parts and not self._parts[0].waiting:
            self._parts.popleft()
        return taken

    def _take(self, streams: dict[Any, _Waiting], stream: Any, rows: int, left: int, taken: list[Slice]) -> int:
        """Take rows of one stream, which is served last from then on. Returns the bytes that are left."""
        waiting = streams.pop(stream)
        slices, before = waiting.slices, rows
        while rows and slices:
            first = slices[0]
            part, start = first.part, first.start
            end, row_bytes = start + rows if start + rows < first.end else first.end, part.row_bytes
            if (end - start) * row_bytes > left:
                end = start + max(left // row_bytes, 0 if taken else 1)
                if end == start:
                    break
            if end == first.end:
                taken.append(slices.popleft())
            else:
                first.start = end
                taken.append(Slice(part, start, end))
            if (selection := part.batch.selection) is not None:
                selection.take(end)
            count = end - start
            part.waiting -= count
            rows -= count
            left -= count * row_bytes
        waiting.rows -= before - rows
        if slices:
            streams[stream] = waiting
        return left

    def _count(self, gone: Slice) -> None:
        gone.part.waiting -= len(gone)
        self.rows -= len(gone)
        self.bytes -= len(gone) * gone.part.row_bytes


def fair_shares(wants: Sequence[int], total: int) -> list[int]:
    """Divide `total` such that nobody gets more than wanted, and nobody gets less than another who wants more."""
    if sum(wants) <= total:
        return list(wants)
    least, more = divmod(total, len(wants))
    if min(wants) > least:
        return [least + 1] * more + [least] * (len(wants) - more)
    shares = [0] * len(wants)
    open_ = [place for place, want in enumerate(wants) if want]
    while open_ and total:
        each = max(total // len(open_), 1)
        for place in open_:
            given = min(each, wants[place] - shares[place], total)
            shares[place] += given
            total -= given
        open_ = [place for place in open_ if shares[place] < wants[place]]
    return shares
