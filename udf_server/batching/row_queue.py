"""RowQueue holds the rows that wait for a common call. Each call has rows of all callers, by their shares."""

import bisect
import collections
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from remote_udf.outcomes import RowError
from udf_server.base.context import CallContext
from udf_server.base.fairness import Party, Priority
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.selection import Indexes

__all__ = ["CallerRows", "MergedStream", "Part", "RowQueue", "Slice", "caller_shares", "fair_shares"]


SPARE_PARTS = 64
"""A queue keeps at most this number of parts without waiting rows, and as many as it has parts with waiting rows."""


class MergedStream(Protocol):
    """A stream whose rows wait here. `began` and `row_context` may be called on any thread."""

    setup: RunnerSetup
    closed: bool
    calling: int
    """Number of rows in calls."""

    def began(self, piece: "Slice") -> None:
        """Record that this thread or task calls the function for some rows."""

    def retried(self, part: "Part", row: int, attempts: int, error: BaseException) -> None:
        """Record that rows of a part are called again."""

    def row_context(self, part: "Part", row: int, attempt: int, deadline: float) -> CallContext:
        """The context of a row of a part."""

    def settle(
        self, part: "Part", rows: "range | Indexes", values: pa.Array, errors: Mapping[int, RowError],
        calls: int, retries: int,
    ) -> None:  # fmt: skip
        """Send the outcomes of some rows of a part, in ascending order."""


class Part:
    """The rows of one batch that are called. Rows are counted from the first of them."""

    __slots__ = ("arrived", "batch", "columns", "indexes", "rows", "stream", "timeout", "waiting", "waiting_bytes")

    def __init__(
        self, stream: MergedStream, batch: InputBatch, columns: Sequence[pa.Array], indexes: Indexes | None,
        rows: int, timeout: float, arrived: float,
    ) -> None:  # fmt: skip
        """`indexes` has the positions of the rows in the batch; None for all."""
        self.stream, self.batch, self.columns, self.indexes = stream, batch, columns, indexes
        self.rows = self.waiting = rows
        self.timeout, self.arrived = timeout, arrived
        self.waiting_bytes = self.size(0, rows)

    def size(self, start: int, end: int) -> int:
        """The bytes of the arguments of consecutive rows."""
        return sum(column.slice(start, end - start).nbytes for column in self.columns)

    def fitting(self, start: int, end: int, most: int) -> int:
        """The end of as many of these rows as have at most that many bytes. Rows differ in size."""
        return start + bisect.bisect_right(range(1, end - start + 1), most, key=lambda n: self.size(start, start + n))


class Slice:
    """Consecutive rows of a part, from `start` to before `end`."""

    __slots__ = ("end", "part", "start")

    def __init__(self, part: Part, start: int, end: int) -> None:
        self.part, self.start, self.end = part, start, end

    def __len__(self) -> int:
        return self.end - self.start


class CallerRows:
    """The streams of one caller that have waiting rows."""

    __slots__ = ("owed", "priority", "share", "streams")

    def __init__(self, party: Party) -> None:
        self.share, self.priority = party.share, party.priority
        self.streams: dict[MergedStream, _Waiting] = {}
        """Those that were served least recently first."""
        self.owed = 0.0
        """Rows that it should have got and has not, because a call has whole rows; or, if negative, the opposite."""


class _Waiting:
    """The waiting rows of one stream."""

    __slots__ = ("bytes", "rows", "slices")

    def __init__(self) -> None:
        self.slices: collections.deque[Slice] = collections.deque()
        self.rows = self.bytes = 0


class RowQueue:
    """The waiting rows of all streams. Use it on one thread. The streams bound what they push."""

    def __init__(self) -> None:
        self._callers: dict[str, CallerRows] = {}
        """Those that were served least recently first."""
        self._parts: collections.deque[Part] = collections.deque()
        """In the order of their arrival. Some may have no waiting rows any more."""
        self._most_parts = SPARE_PARTS
        self.rows = 0
        self.bytes = 0

    def push(self, party: Party, part: Part) -> None:
        """Add the rows of a part. The streams of a caller have parties with the same share and priority."""
        caller = self._callers.get(party.caller)
        if caller is None:
            caller = self._callers[party.caller] = CallerRows(party)
        waiting = caller.streams.setdefault(part.stream, _Waiting())
        waiting.slices.append(Slice(part, 0, part.rows))
        waiting.rows += part.rows
        waiting.bytes += part.waiting_bytes
        if len(self._parts) >= self._most_parts:
            self._remove_done()
        self._parts.append(part)
        self.rows += part.rows
        self.bytes += part.waiting_bytes

    def drop(self, party: Party, stream: MergedStream) -> None:
        """Remove the rows of a stream. Safe to call twice."""
        caller = self._callers.get(party.caller)
        if caller is not None and (waiting := caller.streams.pop(stream, None)) is not None:
            self.rows -= waiting.rows
            self.bytes -= waiting.bytes
            for each in waiting.slices:
                each.part.waiting = 0
            if not caller.streams:
                del self._callers[party.caller]
        self._remove_done()

    def _remove_done(self) -> None:
        """Remove the parts without waiting rows, which would keep their streams and arguments in memory."""
        self._parts = collections.deque(part for part in self._parts if part.waiting)
        self._most_parts = 2 * len(self._parts) + SPARE_PARTS

    def oldest(self, held_up: Collection[MergedStream]) -> float | None:
        """When the row that waits longest has arrived, of the streams that are not held up; None without such rows."""
        return next((part.arrived for part in self._parts if part.waiting and part.stream not in held_up), None)

    def waiting(self, party: Party, stream: MergedStream) -> int:
        """Number of waiting rows of a stream."""
        caller = self._callers.get(party.caller)
        found = caller.streams.get(stream) if caller is not None else None
        return found.rows if found is not None else 0

    def take(
        self, most_rows: int, most_bytes: int, *, mix_callers: bool, held_up: Collection[MergedStream]
    ) -> list[Slice]:
        """Remove rows for one call, at least one row if a stream that is not held up has rows.

        Callers get rows by their shares, those of a higher priority first, and the streams of a caller get equal
        shares. A share that is not used is shared by the others.
        """
        ready: dict[str, dict[MergedStream, int]] = {}
        for name, caller in self._callers.items():
            if rows := {stream: each.rows for stream, each in caller.streams.items() if stream not in held_up}:
                ready[name] = rows
        if not mix_callers and len(ready) > 1:
            ready = self._next_of(ready)
        taken: list[Slice] = []
        left = most_bytes
        several = [self._callers[name].streams[stream] for name, rows in ready.items() for stream in rows]
        if len(several) > 1 and (found := sum([each.bytes for each in several])) > most_bytes:
            # Otherwise the first streams would take all the bytes.
            most_rows = min(most_rows, max(most_bytes * sum([each.rows for each in several]) // found, 1))
        callers = [self._callers[name] for name in ready]
        shares = caller_shares(callers, [sum(rows.values()) for rows in ready.values()], most_rows)
        for (name, rows), share in zip(ready.items(), shares, strict=True):
            streams, before = self._callers[name].streams, len(taken)
            for stream, count in zip(rows, fair_shares(list(rows.values()), share), strict=True):
                if count:
                    left = self._take(streams, stream, count, left, taken)
            if len(taken) > before:
                served = self._callers.pop(name)
                if served.streams:
                    self._callers[name] = served
        self.rows -= sum([piece.end - piece.start for piece in taken])
        while self._parts and not self._parts[0].waiting:
            self._parts.popleft()
        return taken

    def _next_of(self, ready: dict[str, dict[MergedStream, int]]) -> dict[str, dict[MergedStream, int]]:
        """The caller whose rows are called alone: of the highest priority, the one that is owed the most calls."""
        callers = {name: self._callers[name] for name in ready}
        highest = next(each for each in Priority if any(caller.priority is each for caller in callers.values()))
        callers = {name: caller for name, caller in callers.items() if caller.priority is highest}
        total = sum(caller.share for caller in callers.values())
        for caller in callers.values():
            caller.owed += caller.share / total
        chosen = max(callers, key=lambda name: callers[name].owed)
        callers[chosen].owed -= 1.0
        return {chosen: ready[chosen]}

    def _take(
        self, streams: dict[MergedStream, _Waiting], stream: MergedStream, rows: int, left: int, taken: list[Slice]
    ) -> int:
        """Take rows of one stream, which is served last from then on if one fits. Returns the bytes that are left."""
        waiting = streams[stream]
        slices, before = waiting.slices, rows
        while rows and slices:
            first = slices[0]
            part, start = first.part, first.start
            end, size = start + rows if start + rows < first.end else first.end, part.waiting_bytes
            if size > left:
                end = max(part.fitting(start, end, left), start + (0 if taken else 1))
                if end == start:
                    break
            rest = 0
            if end < first.end:
                size, rest = part.size(start, end), part.size(end, first.end)
            self.bytes += rest - part.waiting_bytes
            waiting.bytes += rest - part.waiting_bytes
            part.waiting_bytes = rest
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
            left -= size
        if rows < before:
            waiting.rows -= before - rows
            del streams[stream]
            if slices:
                streams[stream] = waiting
        return left


def caller_shares(callers: Sequence[CallerRows], wants: Sequence[int], total: int) -> list[int]:
    """Divide `total` rows by priority, then by share, such that nobody gets more than wanted.

    A fraction of a row is owed until the next time, so that shares are exact over many calls.
    """
    if sum(wants) <= total:
        return list(wants)
    given = [0] * len(callers)
    for priority in Priority:
        places = [place for place, caller in enumerate(callers) if caller.priority is priority]
        if (wanted := sum(wants[place] for place in places)) <= total:
            for place in places:
                given[place], callers[place].owed = wants[place], 0.0
            total -= wanted
            continue
        _divide({place: wants[place] for place in places}, callers, total, given)
        break  # nothing is left for lower priorities
    return given


def _divide(wants: dict[int, int], callers: Sequence[CallerRows], total: int, given: list[int]) -> None:
    """Divide `total` rows between these callers, who want more than that, by share."""
    exact: dict[int, float] = {}
    left, open_ = float(total), dict(wants)
    while open_:
        each = left / sum(callers[place].share for place in open_)
        modest = [place for place, want in open_.items() if want <= each * callers[place].share]
        if not modest:
            exact |= {place: each * callers[place].share for place in open_}
            break
        for place in modest:  # whoever wants less than its share leaves the rest to the others
            exact[place] = open_.pop(place)
            left -= exact[place]
    for place, rows in exact.items():
        exact[place] = due = rows + callers[place].owed
        given[place] = min(max(math.floor(due), 0), wants[place])
    missing = total - sum(given[place] for place in wants)
    while missing:
        step = 1 if missing > 0 else -1
        for place in sorted(wants, key=lambda place: step * (given[place] - exact[place])):
            if missing and (given[place] < wants[place] if step > 0 else given[place] > 0):
                given[place] += step
                missing -= step
    for place, due in exact.items():
        callers[place].owed = min(max(due - given[place], -1.0), 1.0) if given[place] < wants[place] else 0.0


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
