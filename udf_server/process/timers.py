"""Times of process table functions: microseconds internally, milliseconds or datetimes for authors; and timers."""

import datetime
import heapq
from collections.abc import Iterable
from typing import Any

__all__ = ["MAX_TIME", "Timer", "Timers", "from_author", "to_author"]

MAX_TIME = 2**63 - 1
"""The watermark after the end of a bounded input, in every unit."""
_LARGEST = MAX_TIME // 1000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST = datetime.datetime.min.replace(tzinfo=datetime.UTC)
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def to_author(time: int | None, kind: type) -> Any:
    """Convert a time to milliseconds (int) or an aware datetime in UTC, which has the years 1 to 9999 only."""
    if time is None:
        return None
    if kind is int:
        return MAX_TIME if time == MAX_TIME else time // 1000
    try:
        return _EPOCH + datetime.timedelta(microseconds=time)
    except OverflowError:
        # The watermark at the end of a bounded input, for example.
        return _LAST if time > 0 else _FIRST


def from_author(time: str | int | datetime.datetime) -> int:
    """Convert milliseconds since 1970, or a datetime (in UTC if without a zone), to microseconds. Raises TypeError."""
    if type(time) is int and -_LARGEST <= time <= _LARGEST:
        return time * 1000
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if not isinstance(time, int) or isinstance(time, bool):
        raise TypeError(f"a time is milliseconds since 1970 or a datetime, not {time!r}")
    # Times that do not fit into 64 bits as microseconds become the end of time.
    return max(min(time * 1000, MAX_TIME), -MAX_TIME)


Timer = tuple[str | None, int]
"""Name and time in microseconds."""


class Timers:
    """Pending timers. They fire in the order of their times; at the same time, the unnamed first, then by name."""

    __slots__ = ("_heap", "_named", "_unnamed")

    def __init__(self, pending: Iterable[Timer] = ()) -> None:
        self._named: dict[str, int] = {}
        self._unnamed: set[int] = set()
        self._heap: list[tuple[int, bool, str]] | None = None
        """The timers that may fire, while timers fire; some of them may have been cleared."""
        for name, time in pending:
            self.register(name, time)

    def register(self, name: str | None, time: int) -> None:
        if name is None:
            self._unnamed.add(time)
        else:
            self._named[name] = time
        if self._heap is not None:
            heapq.heappush(self._heap, (time, name is not None, name or ""))

    def clear(self, name: str) -> None:
        """Delete a named timer, if it exists."""
        self._named.pop(name, None)

    def clear_at(self, time: int) -> None:
        """Delete the unnamed timer at this time, if it exists."""
        self._unnamed.discard(time)

    def clear_all(self) -> None:
        self._named.clear()
        self._unnamed.clear()

    def begin(self) -> None:
        """Prepare for firing timers."""
        self._heap = [(time, True, name) for name, time in self._named.items()]
        self._heap += [(time, False, "") for time in self._unnamed]
        heapq.heapify(self._heap)

    def next_due(self, watermark: int) -> Timer | None:
        """Remove and return the next timer with a time up to the watermark; None if there is none."""
        assert self._heap is not None
        while self._heap and self._heap[0][0] <= watermark:
            time, is_named, name = heapq.heappop(self._heap)
            if is_named:
                if self._named.get(name) == time:
                    del self._named[name]
                    return name, time
            elif time in self._unnamed:
                self._unnamed.remove(time)
                return None, time
        return None

    def end(self) -> None:
        self._heap = None

    def __bool__(self) -> bool:
        return bool(self._named or self._unnamed)

    def pending(self) -> list[Timer]:
        """The timers in the order in which they would fire."""
        if not self:
            return []
        unnamed: list[Timer] = [(None, time) for time in self._unnamed]
        return sorted(
            [*unnamed, *self._named.items()], key=lambda timer: (timer[1], timer[0] is not None, timer[0] or "")
        )
