"""ProcessContext: what `eval` and `on_timer` know of their call, and their timers."""

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import OrderColumn, ProcessCall
from remote_udf.table_arguments import ChangelogMode
from udf_server.process.timers import Timers
from udf_server.process.times import from_author, to_author

__all__ = ["CallFacts", "ProcessContext", "TableSemantics", "TimeContext"]

UNSUPPORTED = "Timers are not supported in the current PTF declaration."
BROADCAST = "Timers are not supported while processing a table with broadcast semantics."


@dataclass(frozen=True)
class TableSemantics:
    """A table as it was passed. Columns are positions in `data_type`; `time_column` is -1 without on_time."""

    data_type: pa.Schema
    partition_by_columns: tuple[int, ...]
    order_by_columns: tuple[OrderColumn, ...]
    time_column: int
    changelog_mode: ChangelogMode
    upsert_key_columns: tuple[int, ...] = ()
    """What tells the rows of a changelog apart; empty if that is not known."""


@dataclass(frozen=True)
class CallFacts:
    """What is the same for all rows of a stream."""

    spec: FunctionSpec
    call: ProcessCall
    entries: tuple[str, ...]
    """Names of state entries that can be cleared."""

    @functools.cached_property
    def timers_refused(self) -> str | None:
        """Why there can be no timers; None if there can."""
        assert self.spec.process is not None
        if self.call.broadcast:
            return BROADCAST
        return None if self.spec.process.supports_timers else UNSUPPORTED

    @functools.cached_property
    def semantics(self) -> dict[str, TableSemantics]:
        """By table argument."""
        assert self.spec.process is not None
        return {
            table.name: TableSemantics(
                given.schema,
                given.partition_by,
                given.order_by,
                given.time_column,
                given.changelog_mode,
                given.upsert_key,
            )
            for table, given in zip(self.spec.process.tables, self.call.tables, strict=True)
        }


class ProcessContext:
    """What a function knows of its call. The same object for all calls of one segment; do not keep it."""

    __slots__ = (
        "_collect", "_facts", "_key", "_kind", "_name", "_refused", "_table_watermark", "_time_context", "_timers",
        "_watermark", "cleared", "row_time",
    )  # fmt: skip

    def __init__(self, facts: CallFacts, key: tuple[Any, ...], timers: Timers, collect: Callable[[Any], None]) -> None:
        self._facts = facts
        self._key = key
        self._timers = timers
        self._collect = collect
        self._refused = facts.timers_refused
        self.row_time: int | None = None
        """Of the row or the timer, in microseconds; for the server, not for authors."""
        self._watermark: int | None = None
        self._table_watermark: int | None = None
        self._name: str | None = None
        self._kind: type = int
        self._time_context = TimeContext(self, int)
        self.cleared: set[str] = set()
        """State entries to be cleared when the call returns."""

    def begin(
        self, time: int | None, watermark: int | None, table_watermark: int | None, timer: str | None = None
    ) -> None:
        """A call begins; for the server, not for authors."""
        self.row_time, self._watermark, self._table_watermark, self._name = time, watermark, table_watermark, timer

    def end(self) -> None:
        """The segment is done; for the server, not for authors."""
        del self._collect, self._time_context

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of PARTITION BY; empty without."""
        return self._key

    @property
    def changelog_mode(self) -> ChangelogMode:
        """Of the result."""
        signature = self._facts.spec.process
        assert signature is not None
        return signature.changelog_mode

    @property
    def current_timer(self) -> str | None:
        """In `on_timer`: the name of the timer; None for one without a name."""
        return self._name

    def collect(self, value: Any) -> None:
        """Emits a row, as `yield` does."""
        self._collect(value)

    def table_semantics_for(self, argument: str) -> TableSemantics:
        """How a table was passed. Raises ValueError for a name that is no table argument."""
        semantics = self._facts.semantics
        if argument not in semantics:
            raise ValueError(f"Unknown table argument {argument!r}: there are {', '.join(semantics) or 'none'}")
        return semantics[argument]

    def time_context(self, kind: type = datetime.datetime) -> "TimeContext":
        """Times and timers: `int` for milliseconds since 1970, `datetime` for aware datetimes in UTC."""
        if kind not in (int, datetime.datetime):
            raise TypeError(f"time_context takes int or datetime, not {kind!r}")
        if kind is not self._kind:
            self._kind, self._time_context = kind, TimeContext(self, kind)
        return self._time_context

    @property
    def time(self) -> datetime.datetime | None:
        """The row's time, which is None without on_time, or the timer's."""
        found: datetime.datetime | None = to_author(self.row_time, datetime.datetime)
        return found

    def read_watermark(self, kind: type) -> Any:
        """The least of all tables; for TimeContext."""
        return to_author(self._watermark, kind)

    def read_table_watermark(self, kind: type) -> Any:
        """That of the row's table; for TimeContext."""
        return to_author(self._table_watermark, kind)

    def register_on_time(self, name_or_time: Any, time: Any = None) -> None:
        """Sets a timer: `register_on_time("timeout", time)`, which replaces the one of that name, or without a name.

        It fires once, when the watermark reaches its time; a time that has passed, with the next watermark.
        """
        if self._refused is not None:
            raise ValueError(self._refused)
        if time is None:
            self._timers.register(None, from_author(name_or_time))
        elif not isinstance(name_or_time, str):
            raise TypeError(f"the name of a timer is text, not {name_or_time!r}")
        else:
            self._timers.register(name_or_time, from_author(time))

    def clear_timer(self, name_or_time: Any) -> None:
        """Forgets the timer of a name, or the one without a name at a time. No error if there is none."""
        if isinstance(name_or_time, str):
            self.timers().clear(name_or_time)
        else:
            self.timers().clear_at(from_author(name_or_time))

    def clear_all_timers(self) -> None:
        """Forgets the key's timers; while a broadcast row is processed there are none, and nothing happens."""
        if not self._facts.call.broadcast:
            self._timers.clear_all()

    def clear_state(self, name: str) -> None:
        """Empties a state entry when the call returns, whatever else the call does to it. Raises ValueError."""
        if name not in self._facts.entries:
            known = ", ".join(self._facts.entries)
            raise ValueError(f"Unknown state entry {name!r}: there are {known or 'none'}")
        self.cleared.add(name)

    def clear_all_state(self) -> None:
        """Empties all state of the key when the call returns; while a broadcast row is processed, broadcast state."""
        self.cleared.update(self._facts.entries)

    def clear_all(self) -> None:
        """Empties all state and forgets all timers of the key."""
        self.clear_all_state()
        self.clear_all_timers()

    def timers(self) -> Timers:
        """Pending timers of the key. Raises ValueError where there can be none."""
        if self._refused is not None:
            raise ValueError(self._refused)
        return self._timers


class TimeContext:
    """Times of a call in one representation; timers take any."""

    __slots__ = ("_context", "_kind")

    def __init__(self, context: ProcessContext, kind: type) -> None:
        self._context = context
        self._kind = kind

    def time(self) -> Any:
        """The row's time, None without on_time; in `on_timer` the timer's."""
        return to_author(self._context.row_time, self._kind)

    def current_watermark(self) -> Any:
        """The least of all tables; None until each has had one."""
        return self._context.read_watermark(self._kind)

    def table_watermark(self) -> Any:
        """That of the table whose row this is; None in `on_timer`."""
        return self._context.read_table_watermark(self._kind)

    def register_on_time(self, name_or_time: Any, time: Any = None) -> None:
        """See ProcessContext."""
        self._context.register_on_time(name_or_time, time)

    def clear_timer(self, name_or_time: Any) -> None:
        """See ProcessContext."""
        self._context.clear_timer(name_or_time)

    def clear_all_timers(self) -> None:
        """See ProcessContext."""
        self._context.clear_all_timers()
