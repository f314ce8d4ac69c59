"""ProcessTableHarness: drives a process table function step by step, without a server and without Spark."""

import asyncio
import dataclasses
import datetime
import functools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidCall
from remote_udf.process_calls import OUTPUT, STATE, TIMERS
from remote_udf.process_planning import TableGiven, output_fields, plan_process_call
from remote_udf.result_columns import resolved
from remote_udf.row_kinds import RowKind
from remote_udf.table_arguments import ArgumentTrait
from udf_server.declaring.hooks import FunctionContext
from udf_server.process.base import ProcessTableFunction, Row
from udf_server.process.context import ProcessContext
from udf_server.process.declaration import ProcessFunction, declare_process
from udf_server.process.timers import from_author
from udf_server.stores.opening import KeyValueStores
from udf_server.testing.segments import SegmentSteps
from udf_server.testing.steps import Arrived, Kept, StateEntries
from udf_server.testing.tables import SortBuffer, table
from udf_server.values.values import Key, codec_for_type

__all__ = ["PendingTimer", "ProcessTableHarness"]

END_OF_TIME = 2**63 - 1


@dataclass(frozen=True)
class PendingTimer:
    """A timer of a key. `name` is None for an unnamed timer; `time` is in milliseconds since 1970."""

    key: Key
    name: str | None
    time: int


class ProcessTableHarness:
    """Drives one call of a process table function: rows, watermarks, the clock, snapshots.

    ```python
    harness = ProcessTableHarness(CountWithTimeout, {"events": table("user string, ts timestamp", partition_by="user")},
                                  on_time="ts")
    harness.row("events", ("Bob", at(0)))
    harness.watermark(at(60))
    assert harness.take() == [("Bob", 1, at(60))]
    ```

    Every step converts values to the types of the wire and back, as on a server. A step raises what the
    function raises. `open` runs at once, `close` with `harness.close()` or at the end of a `with` block.

    The same rows are also processed as in a batch query, where no watermark advances before the last row of a key, and
    all its timers fire after it. `take`, `end_of_input` and the end of a `with` block compare what was emitted, except
    `rowtime` and the order of rows. Only keys that got a row after a watermark can differ and are processed again. A
    test has no batch query, and nothing is compared any more, once it sends a row before the watermark, advances the
    clock, changes state, or sends a row of a broadcast table after those of others.

    Args:
        function: A class, an instance, or a declared process table function.
        tables: For each table argument a `table(...)`, or its columns as DDL.
        on_time: Names of the time columns.
        most_timers: How many timers of a key may fire in one step, before a timer that always sets itself again is
            suspected.
        also_batch: Whether to compare with a batch query. Pass False for a function that is for streams only.
        **scalars: The scalar arguments of the call.

    Raises:
        InvalidCall: The call is not valid for the function.
        DeclarationError: The function is not declared correctly.
    """

    def __init__(
        self, function: ProcessFunction | ProcessTableFunction | type[ProcessTableFunction],
        tables: Mapping[str, TableGiven | str] | None = None, *, on_time: str | Sequence[str] = (),
        most_timers: int = 10_000, also_batch: bool = True, **scalars: Any,
    ) -> None:  # fmt: skip
        self._given = function
        declared = self._declared()
        given = {name: each if isinstance(each, TableGiven) else table(each) for name, each in (tables or {}).items()}
        times = [on_time] if isinstance(on_time, str) else list(on_time)
        self._call = plan_process_call(declared.spec, given, scalars, times)
        spec = resolved(declared.spec, self._call)
        assert spec.process is not None
        self._signature = spec.process
        self._stores = KeyValueStores()
        self._function = self._started(declared)
        self._states = StateEntries(self._function.states)
        self._names = [argument.name for argument in self._signature.tables]
        self._kept = Kept(
            watermarks=[None] * len(self._names), buffers=[SortBuffer(each) for each in self._call.tables]
        )
        self.fired: list[PendingTimer] = []
        """Timers in the order in which they fired."""
        self.output: list[Row] = []
        """All rows emitted so far, with the names and in the order of the result's columns."""
        fields = output_fields(declared.spec, self._call)
        self._fields = fields if self._signature.changelog_mode.is_insert_only else fields[:-1]
        self._segments = SegmentSteps(self._function.spec, self._call, self._fields)
        self._taken = 0
        self._most_timers = most_timers
        self._kept.histories.possible = also_batch and not self._function.takes_store

    def __enter__(self) -> "ProcessTableHarness":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is None:
                self._compare()
        finally:
            self.close()

    def close(self) -> None:
        """Run the `close` hook of the function."""
        asyncio.run(self._function.close())

    @property
    def columns(self) -> pa.Schema:
        """The columns of the result, without the kind of change."""
        return pa.schema(self._fields)

    # Steps.

    def row(self, name: str, values: Any, kind: RowKind | str = RowKind.INSERT) -> None:
        """Send a row of a table.

        Args:
            name: The table argument.
            values: A tuple by position, or a dictionary.
            kind: The kind of change.

        Raises:
            InvalidCall: There is no such table argument, its changelog mode does not have the kind, or the row does
                not have its columns.
        """
        number = self._number(name)
        given, kind = self._call.tables[number], RowKind(kind)
        if kind not in given.changelog_mode.kinds:
            supports = self._signature.tables[number].has(ArgumentTrait.SUPPORT_UPDATES)
            todo = "pass its changelog_mode to table(...)" if supports else "it does not declare SUPPORT_UPDATES"
            raise InvalidCall(
                f"table argument {name!r}: a row is {kind}, but its changes are {given.changelog_mode}; {todo}"
            )
        columns = given.schema.names
        if len(values) != len(columns) or (isinstance(values, dict) and values.keys() != set(columns)):
            found = f"columns {', '.join(map(str, values))}" if isinstance(values, dict) else f"{len(values)} values"
            raise InvalidCall(f"table argument {name!r}: a row has the columns {', '.join(columns)}, got {found}")
        if isinstance(values, dict):
            values = tuple(values[column] for column in columns)
        if kind is RowKind.DELETE and given.changelog_mode.key_only_deletes:
            key = {*given.partition_by, *given.upsert_key}
            values = tuple(value if index in key else None for index, value in enumerate(values))
        codecs = [codec_for_type(each.type) for each in given.schema]
        row = pa.StructArray.from_arrays(
            [codec.encode([value]) for codec, value in zip(codecs, values, strict=True)], fields=list(given.schema)
        )
        if given.order_by:
            self._kept.buffers[number].add(row, kind, self._kept.watermarks[number])
        else:
            self._deliver(number, row, kind)

    def call(self) -> None:
        """Make the only call of a function without tables."""
        self._process((), [], None)

    def watermark(self, time: int | datetime.datetime, table: str | None = None) -> None:
        """Advance the watermark. Rows that ORDER BY held are delivered, then timers fire.

        Args:
            time: Milliseconds since 1970, or a datetime.
            table: The table argument. By default the watermark of every table advances.

        Raises:
            ValueError: The watermark would move backward.
            RuntimeError: More than `most_timers` timers of a key fired.
        """
        to = from_author(time)
        numbers = range(len(self._names)) if table is None else [self._number(table)]
        for number in numbers:
            before = self._kept.watermarks[number]
            if before is not None and to < before:
                raise ValueError(f"Cannot move watermark backward, from {before} to {to} microseconds")
        before_all = self._kept.least()
        buffers = self._kept.buffers
        due = [(number, row, kind) for number in numbers for row, kind in buffers[number].due(to)]
        # The sort is stable: rows of equal time are delivered table by table.
        for number, row, kind in sorted(due, key=lambda each: buffers[each[0]].time_of(each[1])):
            self._deliver(number, row, kind)
        for number in numbers:
            self._kept.watermarks[number] = to
        after = self._kept.least()
        if after is not None and (before_all is None or after > before_all):
            self._fire(after)

    def end_of_input(self) -> None:
        """End all tables: the watermark advances to the end of time, and all timers fire.

        Raises:
            AssertionError: A batch query has other rows.
        """
        self.watermark(END_OF_TIME)
        self._compare(ended=True)

    def advance_clock(self, by: str | int) -> None:
        """Advance the clock of time-to-live by a duration such as "5 s", or by milliseconds."""
        self._kept.histories.possible = False
        self._kept.now += by if isinstance(by, int) else round(parse_seconds(by) * 1000)

    def snapshot(self) -> object:
        """Return state, timers, watermarks, clock and the rows that ORDER BY holds, for `restore`."""
        return self._kept.copied()

    def restore(self, snapshot: object) -> None:
        """Go back to a snapshot, as another process would: a function given as a class gets a new instance.

        The function is closed, and the new one is opened. Emitted rows stay emitted.
        """
        assert isinstance(snapshot, Kept)
        self.close()
        self._kept = snapshot.copied()
        self._function = self._started(self._declared())

    # The results.

    def take(self) -> list[Row]:
        """Return the rows emitted since the last `take`.

        Raises:
            AssertionError: A batch query over the rows so far does not emit all of these rows.
        """
        self._compare()
        taken, self._taken = self.output[self._taken :], len(self.output)
        return taken

    @property
    def current_watermark(self) -> int | None:
        """The least watermark of all tables, in milliseconds since 1970. None until each table has one."""
        least = self._kept.least()
        return None if least is None else _milliseconds(least)

    def pending_timers(self) -> list[PendingTimer]:
        """Return the timers that have not fired, by key, then in the order in which they would fire."""
        return [
            PendingTimer(key, timer["name"], _milliseconds(timer["time"]))
            for key, pending in self._kept.timers.items()
            for timer in pending[0].as_py()
        ]

    def state(self, name: str, key: Hashable = ()) -> Any:
        """Return a state entry as the function would get it now. An empty entry has its defaults."""
        return self._states.load(self._kept, name, _key(key))

    def set_state(self, name: str, value: Any, key: Hashable = ()) -> None:
        """Store a state entry as if a call had left it: a record, a list, a dictionary or a value."""
        self._kept.histories.possible = False
        self._states.store(self._kept, name, _key(key), value)

    def clear_state(self, name: str | None = None, key: Hashable = ()) -> None:
        """Clear one state entry of a key, or all of them."""
        self._kept.histories.possible = False
        self._states.clear(self._kept, name, _key(key))

    def state_keys(self, name: str) -> list[Key]:
        """Return the keys for which the entry is not empty, in the order in which they arrived."""
        return self._states.keys(self._kept, name)

    # How it works.

    def _declared(self) -> ProcessFunction:
        return self._given if isinstance(self._given, ProcessFunction) else declare_process(self._given)

    def _started(self, declared: ProcessFunction) -> ProcessFunction:
        function = declared.in_call(self._call)
        asyncio.run(self._opened(function))
        return function

    async def _opened(self, function: ProcessFunction) -> None:
        spec = function.spec
        store = (await self._stores.open(spec.key)).store if function.takes_store else None
        await function.open(FunctionContext(spec.name, spec.version, store=store))

    def _watching(self, function: ProcessFunction) -> ProcessFunction:
        """The function, wrapped so that each timer that fires is recorded."""
        timer, has_context = function.timer, function.timer_has_context
        if timer is None:
            return function

        def noted(context: ProcessContext, *states: Any) -> Any:
            time = context.time_context(int).time()
            self.fired.append(PendingTimer(context.key, context.current_timer, time))
            return timer(context, *states) if has_context else timer(*states)

        return dataclasses.replace(function, timer=functools.wraps(timer)(noted), timer_has_context=True)

    def _number(self, name: str) -> int:
        if name not in self._names:
            raise InvalidCall(f"no table argument {name!r}, there are {', '.join(self._names)}")
        return self._names.index(name)

    def _deliver(self, number: int, row: pa.StructArray, kind: RowKind) -> None:
        given, argument, kept = self._call.tables[number], self._signature.tables[number], self._kept
        arrived = [(number, row, kind)]
        if argument.is_broadcast:
            kept.histories.begin_broadcast()
            self._process((), arrived, None, broadcast=True)
            for key in list(kept.states) if argument.has(ArgumentTrait.NOTIFY_STATEFUL_SETS) else ():
                self._process(key, arrived, None)
            return
        watermark = kept.watermarks[number]
        if watermark is not None and given.time_column >= 0:
            time = row.field(given.time_column).cast(pa.int64())[0].as_py()
            kept.histories.possible &= time is None or time >= watermark
        key = tuple(row.field(column)[0].as_py() for column in given.partition_by) if argument.has_set_semantics else ()
        self._process(_key(key), arrived, None)

    def _fire(self, watermark: int) -> None:
        """Fire timers one after another, by time, name and key, until none is due. A timer may make another one due."""
        fired: Counter[Key] = Counter()
        while True:
            due = [
                (timer["time"], timer["name"] is not None, timer["name"] or "", repr(key), key)
                for key, pending in self._kept.timers.items()
                for timer in pending[0].as_py()
                if timer["time"] <= watermark
            ]
            if not due:
                return
            time, _, name, _, key = min(due)
            fired[key] += 1
            if fired[key] > self._most_timers:
                raise self._endless(key, name or None, time)
            self._process(key, [], watermark)

    def _endless(self, key: Key, name: str | None, time: int) -> RuntimeError:
        return RuntimeError(
            f"function {self._function.spec.key}: {self._most_timers} timers of the key {key} fired in one step, and "
            f"more are due, the next one {name!r} at {_milliseconds(time)}: a timer that always sets itself again "
            "never ends before the watermark; if it does end, pass a larger most_timers"
        )

    def _compare(self, *, ended: bool = False) -> None:
        self._kept.histories.compare(self._function.spec.key, self._in_batch, ended=ended)

    def _in_batch(self, key: Key, rows: Sequence[Arrived]) -> list[Row]:
        """The rows that a batch query emits from these rows of a key."""
        before = Kept(watermarks=[None] * len(self._names), broadcast=self._kept.broadcast)
        parts = self._segments.run(self._function, before, key, rows, END_OF_TIME, self._most_timers)
        left = parts[TIMERS][0].as_py()
        if left:
            raise self._endless(key, left[0]["name"], left[0]["time"])
        return self._without_time(self._segments.emitted(key, rows, parts[OUTPUT]))

    def _process(
        self, key: Key, arrived: Sequence[Arrived], advance_to: int | None, *, broadcast: bool = False
    ) -> None:
        watched = self._watching(self._function)
        parts = self._segments.run(watched, self._kept, key, arrived, advance_to, 1, broadcast=broadcast)
        if broadcast:
            self._kept.broadcast = parts[STATE]
            return
        if parts[STATE].null_count:
            self._kept.states.pop(key, None)
        else:
            self._kept.states[key] = parts[STATE]
        if len(parts[TIMERS][0].as_py()):
            self._kept.timers[key] = parts[TIMERS]
        else:
            self._kept.timers.pop(key, None)
        rows = self._segments.emitted(key, arrived, parts[OUTPUT])
        self.output += rows
        if self._segments.has_state:
            after_watermark = self._kept.watermarks != [None] * len(self._names)
            self._kept.histories.add(key, arrived, self._without_time(rows), after_watermark=after_watermark)

    def _without_time(self, rows: Sequence[Row]) -> list[Row]:
        """The rows without `rowtime`, which is another one if a row shows what otherwise a timer shows."""
        return [Row(*row[: len(row) - bool(self._call.on_time)], kind=row.kind) for row in rows]


def _key(key: Hashable) -> Key:
    """The key as a tuple. As in Spark, NaN equals NaN: Python compares one object with itself only."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(math.nan if isinstance(part, float) and math.isnan(part) else part for part in parts)


def _milliseconds(time: int) -> int:
    return time if time == END_OF_TIME else time // 1000
