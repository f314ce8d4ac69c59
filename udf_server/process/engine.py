"""Runs one segment of a key: its rows in order, then the timers that the watermark reaches (FLIP-440)."""

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from remote_udf.row_kinds import RowKind
from udf_server.process.context import CallFacts, ProcessContext
from udf_server.process.declaration import ProcessFunction
from udf_server.process.states import KeyState
from udf_server.process.timers import Timer, Timers
from udf_server.values.values import Key

__all__ = ["Emitted", "Engine", "Flush", "Incoming", "Processed", "Segment"]

Incoming = tuple[int, Any, int | None]
"""An input row: the number of its table, the row as the function receives it, and its time."""
Emitted = tuple[int | None, RowKind, int | None, Sequence[Any]]
"""An output row: the number of the input row (None for a timer), its kind, its time, its values."""


@dataclass(slots=True)
class Segment:
    """Rows of one key, with the state and timers before them. Times are in microseconds, `now` is in milliseconds."""

    key: Key
    state: list[Any]
    timers: list[Timer]
    rows: Sequence[Incoming]
    watermarks: list[int | None]
    advance_to: int | None
    now: int
    most_timers: int | None = None
    """The maximum number of timers that fire; None if all due timers fire."""

    @property
    def watermark(self) -> int | None:
        """The lowest watermark of the tables; None until each has one."""
        found = self.watermarks
        return min(found) if found and None not in found else None  # type: ignore[type-var]


@dataclass(slots=True)
class Processed:
    """The result of a segment."""

    state: list[Any]
    timers: list[Timer]
    output: list[Emitted]
    """The rows that were emitted and not flushed."""
    fired: int
    """The number of timers that fired."""
    emitted: int
    """The number of rows that were emitted, including flushed ones."""
    size: int
    """The approximate size of the output in bytes."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The receiver of rows that a segment emits before it ends, once they take `size` bytes."""

    size: int
    rows: Callable[[list[Emitted]], None]
    wait: Callable[[], None]
    available: Callable[[], Awaitable[None]]
    """Like `wait`, for async functions."""


class Engine:
    """Calls a function for segments. Created once per stream and used by many threads, so it keeps no segment."""

    def __init__(
        self, function: ProcessFunction, facts: CallFacts, scalars: Sequence[Any], broadcast_state: Sequence[Any] | None
    ) -> None:
        """`scalars` has a value per scalar argument, `broadcast_state` the stored value of each broadcast entry."""
        self.function, self.facts = function, facts
        self._broadcast = facts.call.broadcast
        self.own = [entry for entry in function.states if entry.broadcast is self._broadcast]
        """The state entries that are stored with the segments."""
        self._is_own = [entry.broadcast is self._broadcast for entry in function.states]
        self._others = [entry for entry in function.states if entry.broadcast is not self._broadcast]
        self.states_last = self._broadcast or not self._others
        """Whether the function receives the same state objects for every row."""
        self._other_stored = list(broadcast_state or [None] * len(self._others))
        values = iter(scalars)
        arguments = [None if argument.table is not None else next(values) for argument in function.arguments]
        self.binding = _BoundEval(function, arguments)
        self._values: set[type] = {GeneratorType}
        """Classes of values returned by `eval` that are known to be iterable and not awaitable."""

    def run(self, segment: Segment, flush: Flush | None = None) -> Processed:
        """Process a segment of a function that is not async. Raises the errors of the function."""
        work, known = _RunningSegment(self, segment, flush, flush.wait if flush is not None else None), self._values
        for produced in work.steps():
            if produced is None:
                continue
            if type(produced) not in known:
                if inspect.isawaitable(produced) or hasattr(produced, "__aiter__"):
                    raise TypeError("eval and on_timer must both be async, or neither")
                known.add(type(produced))
            for value in produced:
                work.collect(value)
        return work.processed()

    async def run_async(self, segment: Segment, flush: Flush | None = None) -> Processed:
        """Process a segment if `eval` or `on_timer` is async. Rows emitted by `collect` do not wait for room."""
        work = _RunningSegment(self, segment, flush)
        available = flush.available if flush is not None else None
        for produced in work.steps():
            if produced is None:
                continue
            if hasattr(produced, "__aiter__"):
                async for value in produced:
                    work.collect(value)
                    if work.flushed and available is not None:
                        await work.made_room(available)
                continue
            values = await produced if inspect.isawaitable(produced) else produced
            for value in values or ():
                work.collect(value)
                if work.flushed and available is not None:
                    await work.made_room(available)
            if work.flushed and available is not None:
                await work.made_room(available)
        return work.processed()

    # Used by _RunningSegment.

    def states(self, own: KeyState, now: int) -> list[Any]:
        """The state entries for the function. While broadcast rows are processed, the state of the key is None."""
        if not self._others:
            return own.values
        others = [None] * len(self._others)
        if not self._broadcast:
            # Created for each call, so that the changes by a call are discarded.
            others = [
                entry.load(stored, now, writable=False)
                for entry, stored in zip(self._others, self._other_stored, strict=True)
            ]
        mine, theirs = iter(own.values), iter(others)
        return [next(mine) if is_own else next(theirs) for is_own in self._is_own]


class _BoundEval:
    """Calls of `eval` for the rows of one table: all arguments but the row are bound."""

    def __init__(self, function: ProcessFunction, arguments: Sequence[Any]) -> None:
        """`arguments` has a value per scalar argument, and None for each table."""
        self._code = function.call
        self._has_context = function.eval_has_context
        given = list(zip(function.arguments, arguments, strict=True))
        self._tables = [index for index, (argument, _) in enumerate(given) if argument.table is not None]
        self._names = [argument.name if argument.keyword else None for argument, _ in given]
        self._values = [value for argument, value in given if not argument.keyword]
        self._named = {argument.name: value for argument, value in given if argument.keyword}

    def of_table(self, context: ProcessContext, states: Sequence[Any], table: int) -> Callable[[Any], Any]:
        code, place, named = self._code, self._tables[table], self._named
        name = self._names[place]
        first = (context, *states) if self._has_context else tuple(states)
        if name is not None:
            return lambda row: code(*first, *self._values, **{**named, name: row})
        head, tail = self._values[:place], self._values[place + 1 :]
        if tail:
            return lambda row: code(*first, *head, row, *tail, **named)
        # A partial has no Python frame of its own between the engine and the function.
        return functools.partial(code, *first, *head, **named)

    def alone(self, context: ProcessContext) -> Any:
        """Make the single call of a function without tables."""
        return self._code(*((context,) if self._has_context else ()), *self._values, **self._named)


class _RunningSegment:
    """One segment in flight."""

    def __init__(
        self, engine: Engine, segment: Segment, flush: Flush | None, wait: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._segment = segment
        self._state = KeyState(engine.own, segment.state, segment.now)
        self._timers = Timers(segment.timers)
        self._output: list[Emitted] = []
        self._size = 0
        self._emitted = 0
        self._flush = flush
        self._wait = wait
        self._flush_bytes = flush.size if flush is not None else sys.maxsize
        self._failure: Exception | None = None
        """Why rows could not be flushed. It is kept because the function may catch the exception."""
        self.flushed = False
        """Whether rows were flushed since the last wait for room."""
        self._fired = 0
        self._row: int | None = None
        self._time: int | None = None
        self._read = engine.function.results.read
        self._broadcast = engine.facts.call.broadcast
        self._context = ProcessContext(engine.facts, segment.key, self._timers, self.collect)

    def collect(self, value: Any) -> None:
        if self._broadcast:
            raise ValueError("Collecting rows is not supported while processing a table with broadcast semantics.")
        read = self._read(value)
        if read is not None:
            self._output.append((self._row, read[0], self._time, read[1]))
            self._size += read[2]
            if self._size >= self._flush_bytes:
                self._flush_rows()

    def _flush_rows(self) -> None:
        assert self._flush is not None
        output, self._output, self._size = self._output, [], 0
        self._emitted += len(output)
        try:
            self._flush.rows(output)
        except Exception as error:
            self._failure = error
            raise
        self.flushed = True
        if self._wait is not None:
            self._wait()

    async def made_room(self, available: Callable[[], Awaitable[None]]) -> None:
        """Wait until there is room for more rows."""
        self.flushed = False
        await available()

    def steps(self) -> Iterator[Any]:
        """What each call of the function returns. The caller must process it before the next call."""
        engine, segment, context = self._engine, self._segment, self._context
        watermark, timed, cleared = segment.watermark, engine.facts.call.on_time, context.cleared
        if not engine.facts.call.tables:
            context.begin(None, None, None)
            yield engine.binding.alone(context)
            return
        bound_to: int | None = None
        for index, (table, row, time) in enumerate(segment.rows):
            self._row, self._time = index, time if timed else None
            if table == bound_to:
                context.row_time = time
            else:
                context.begin(time, watermark, segment.watermarks[table])
                call = engine.binding.of_table(context, engine.states(self._state, segment.now), table)
                bound_to = table if engine.states_last else None
            yield call(row)
            if cleared:
                self._clear()
                bound_to = None
        if segment.advance_to is not None and self._timers:
            yield from self._fire(segment.advance_to)

    def _fire(self, watermark: int) -> Iterator[Any]:
        engine, context, timers = self._engine, self._context, self._timers
        function, timed = engine.function, engine.facts.call.on_time
        timers.begin()
        while self._fired != self._segment.most_timers and (due := timers.next_due(watermark)) is not None:
            name, time = due
            self._fired += 1
            if function.timer is None:
                raise NotImplementedError(
                    f"function {function.spec.key} registers timers, but has no method 'on_timer'"
                )
            self._row, self._time = None, time if timed else None
            context.begin(time, watermark, None, name)
            states = engine.states(self._state, self._segment.now)
            yield function.timer(context, *states) if function.timer_has_context else function.timer(*states)
            if context.cleared:
                self._clear()
        timers.end()

    def _clear(self) -> None:
        """Clear the entries that the call has named: broadcast state only while broadcast rows are processed."""
        for index, entry in enumerate(self._engine.own):
            if entry.name in self._context.cleared:
                self._state.clear(index)
        self._context.cleared.clear()

    def processed(self) -> Processed:
        # Otherwise the rows would be in a reference cycle, and the garbage collector rarely runs here.
        self._context.end()
        if self._failure is not None:
            raise self._failure
        emitted = self._emitted + len(self._output)
        return Processed(self._state.stored(), self._timers.pending(), self._output, self._fired, emitted, self._size)
