"""A model of the process table function `machine`: computes its output with dictionaries and a sorted list."""

import datetime as dt
from collections.abc import Iterable
from typing import Any

__all__ = ["Row", "emitted", "emitted_by_stream"]

Row = tuple[dt.datetime | None, int | None]
"""The time of a row and its value `v`."""


class _Key:
    """The state and timers of a key."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.timers: set[tuple[dt.datetime, bool, str]] = set()
        """Time, whether it has a name, and the name, which is the order in which timers fire."""
        self.emitted: list[tuple[Any, ...]] = []
        self.on_timer = ""
        """The program for timers, which is part of the state."""
        self.clear()

    def clear(self, *names: str) -> None:
        empty = {"total": None, "items": [], "entries": {}, "record": (0, None)}
        self.state.update({name: empty[name] for name in names or empty})
        if not names:
            self.on_timer = ""

    def take(self, program: str, on_timer: str, v: int | None, time: dt.datetime | None) -> None:
        """Process a row."""
        self.on_timer = on_timer
        self.run(program, "row", v, time)

    def run(self, program: str, what: str, v: int | None, time: dt.datetime | None) -> None:
        state, cleared = self.state, list[tuple[str, ...]]()
        for step in program.split(";"):
            verb, *rest = step.split() or [""]
            if verb == "sum":
                state["total"] = (state["total"] or 0) + (v or 0)
            elif verb == "push":
                state["items"] = [*state["items"], v or 0]
            elif verb == "pop":
                state["items"] = state["items"][1:]
            elif verb == "put":
                state["entries"] = {**state["entries"], str(v): v}
            elif verb == "drop":
                state["entries"] = {key: value for key, value in state["entries"].items() if key != "1"}
            elif verb == "note":
                state["record"] = (state["record"][0] + 1, v)
            elif verb == "timer":
                self.timers = {timer for timer in self.timers if timer[1:] != (True, rest[0])}
                self.timers.add((time + dt.timedelta(minutes=int(rest[1])), True, rest[0]))
            elif verb == "tick":
                self.timers.add((time + dt.timedelta(minutes=int(rest[0])), False, ""))
            elif verb == "untimer":
                self.timers = {timer for timer in self.timers if timer[1:] != (True, rest[0])}
            elif verb == "untimers":
                self.timers = set()
            elif verb == "clear":
                cleared.append(tuple(rest))
            elif verb == "emit":
                self._emit(time, what, state["total"], state["items"], state["entries"], *state["record"])
            elif verb == "twice":
                self._emit(time, what, 1, [1], {"a": 1}, 1, None)
                self._emit(time, what, 2, [1, 2], {"a": 1, "b": 2}, 1, v)
        for names in cleared:
            self.clear(*names)

    def fire(self, until: dt.datetime | None = None) -> None:
        """Fire the timers that a watermark reaches; all of them without one."""
        while self.timers and (until is None or min(self.timers)[0] <= until):
            first = min(self.timers)
            self.timers.remove(first)
            self.run(self.on_timer, f"timer {first[2] if first[1] else None}", None, first[0])

    def _emit(self, time: dt.datetime | None, *values: Any) -> None:
        self.emitted.append((*values, *([time] if time else [])))


def emitted(rows: Iterable[Row], program: str, on_timer: str) -> list[tuple[Any, ...]]:
    """The output for the rows of a key, given in order; all timers fire at the end."""
    key = _Key()
    for time, v in rows:
        key.take(program, on_timer, v, time)
    key.fire()
    return key.emitted


def emitted_by_stream(
    files: Iterable[list[tuple[Any, dt.datetime, int | None]]], delay: dt.timedelta, program: str, on_timer: str
) -> list[tuple[Any, ...]]:
    """The output for all keys, with the key first. A file is a micro-batch; timers fire as the watermark advances."""
    keys: dict[Any, _Key] = {}
    watermark: dt.datetime | None = None
    for rows in files:
        for at, time, v in rows:
            keys.setdefault(at, _Key()).take(program, on_timer, v, time)
        latest = max(time for _, time, _ in rows) - delay
        if watermark is None or latest > watermark:
            watermark = latest
            for key in keys.values():
                key.fire(watermark)
    return [(at, *row) for at, key in keys.items() for row in key.emitted]
