"""A model of window aggregates over a stream of changes: dictionaries, and the watermark of each micro-batch."""

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from tests.differential.windows import Windows

__all__ = ["Emit", "fired", "windows_of"]

EPOCH = dt.datetime(1970, 1, 1)
MILLISECOND = dt.timedelta(milliseconds=1)
Emit = tuple[bool, dt.timedelta | None]
"""Whether windows fire early, and the allowed lateness if they fire late; both in every micro-batch with rows."""


def windows_of(windows: Windows, time: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """The bounds of all windows that contain a time."""
    size, step, offset = (dt.timedelta(minutes=each) for each in (windows.size, windows.step, windows.offset))
    every = step if windows.kind == "HOP" else size
    first = EPOCH + offset + (time - EPOCH - offset) // every * every
    if windows.kind == "CUMULATE":
        ends = [first + step * (number + 1) for number in range(size // step)]
        yield from ((first, end) for end in ends if end > time)
        return
    while first + size > time:
        yield first, first + size
        first -= every


class _Window:
    def __init__(self) -> None:
        self.rows: list[tuple[int | None, int]] = []
        self.emitted: tuple[Any, ...] | None = None
        self.on_time = False

    def values(self, shown: Sequence[int]) -> tuple[Any, ...]:
        known = [(v, sign) for v, sign in self.rows if v is not None]
        count = sum(sign for _, sign in known)
        left = [v for v in {v for v, _ in known} if sum(sign for other, sign in known if other == v) > 0]
        total = sum(v * sign for v, sign in known) if count else None
        every = (total, count, max(left, default=None), len(left))
        return tuple(every[number] for number in shown)

    def fire(self, shown: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        if not sum(sign for _, sign in self.rows):
            if self.emitted is not None:
                yield "-D", *self.emitted
            self.emitted = None
            return
        before, self.emitted = self.emitted, self.values(shown)
        if before is None:
            yield "+I", *self.emitted
        elif before != self.emitted:
            yield "-U", *before
            yield "+U", *self.emitted


def fired(
    files: Sequence[Sequence[tuple[Any, ...]]], delay: dt.timedelta, windows: Windows, emit: Emit,
    shown: Sequence[int],
) -> list[tuple[Any, ...]]:  # fmt: skip
    """The changes of all windows and keys: kind, start, end, key, values. Rows are (id, k, v, time[, kind]).

    `shown` has the numbers of the values: the sum, the number of values, their maximum, the number of different ones.
    """
    early, lateness = emit
    out: list[tuple[Any, ...]] = []
    open_: dict[tuple[Any, ...], _Window] = {}
    watermark = EPOCH
    for rows in [*files, []]:
        out += _passed(open_, watermark, lateness, shown)
        touched: dict[tuple[Any, ...], None] = {}
        for _, k, v, time, *kind in rows:
            for start, end in windows_of(windows, time):
                if watermark < end - MILLISECOND + (lateness or dt.timedelta()):
                    key = (start, end, k)
                    sign = -1 if kind in (["-U"], ["-D"]) else 1
                    open_.setdefault(key, _Window()).rows.append((v, sign))
                    touched[key] = None
        for key in touched:
            window, ended = open_[key], watermark >= key[1] - MILLISECOND
            fires = early if not ended else (lateness is not None or not window.on_time)
            window.on_time |= ended
            out += [(change[0], *key, *change[1:]) for change in window.fire(shown)] if fires else []
        watermark = max([watermark, *(row[3] - delay for row in rows)])
    return out


def _passed(
    open_: dict[tuple[Any, ...], _Window], watermark: dt.datetime, lateness: dt.timedelta | None,
    shown: Sequence[int],
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """The changes that the watermark causes; windows that are over are removed."""
    for key, window in list(open_.items()):
        last = key[1] - MILLISECOND
        if not window.on_time and watermark >= last:
            window.on_time = True
            yield from ((change[0], *key, *change[1:]) for change in window.fire(shown))
        if watermark >= last + (lateness or dt.timedelta()):
            del open_[key]
