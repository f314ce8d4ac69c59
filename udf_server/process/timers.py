"""Timers of one key: named timers, which a later registration replaces, and one unnamed timer per time."""

import heapq
from collections.abc import Iterable

__all__ = ["Timer", "Timers"]

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
