"""ProcessContext: information about a call of `eval` or `on_timer`, its timers, and what it emits."""

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import OrderColumn, ProcessCall
from remote_udf.row_kinds import ChangelogMode
from udf_server.process.timers import Timers, from_author, to_author
from udf_server.values.values import Key

__all__ = ["CallFacts", "ProcessContext", "TableSemantics", "TimeContext"]

UNSUPPORTED = "Timers are not supported in the current PTF declaration."
BROADCAST = "Timers are not supported while processing a table with broadcast semantics."


@dataclass(frozen=True)
class TableSemantics:
    """How a table was passed. Columns are given as positions in `data_type`; `time_column` is -1 without on_time."""

    data_type: pa.Schema
    partition_by_columns: tuple[int, ...]
    order_by_columns: tuple[OrderColumn, ...]
    time_column: int
    changelog_mode: ChangelogMode
    upsert_key_columns: tuple[int, ...] = ()
    """The columns that identify a row of a changelog; empty if they are not known."""


@dataclass(frozen=True)
class CallFacts:
    """Information that is the same for all rows of a stream."""

    spec: FunctionSpec
    call: ProcessCall
    entries: tuple[str, ...]
    """Names of state entries that can be cleared."""

    @functools.cached_property
    def timers_refused(self) -> str | None:
        """Why timers cannot be used; None if they can."""
        assert self.spec.process is not None
        if self.call.broadcast:
            return BROADCAST
        return None if self.spec.process.supports_timers else UNSUPPORTED

    @functools.cached_property
    def semantics(self) -> dict[str, TableSemantics]:
        """How each table was passed, by the name of its argument."""
        assert self.spec.process is not None
        return {
            table.name: TableSemantics(
                given.schema, given.partition_by, given.order_by, given.time_column, given.changelog_mode,
                given.upsert_key,
            )
            for table, given in zip(self.spec.process.tables, self.call.tables, strict=True)
        }  # fmt: skip


class ProcessContext:
    """The context of a call. All calls for one segment get the same object; do not keep it."""

    __slots__ = (
        "_collect", "_facts", "_key", "_kind", "_name", "_time_context", "_timers", "cleared", "row_time",
        "table_watermark", "watermark",
    )  # fmt: skip

    def __init__(self, facts: CallFacts, key: Key, timers: Timers, collect: Callable[[Any], None]) -> None:
        self._facts = facts
        self._key = key
        self._timers = timers
        self._collect = collect
        self.row_time: int | None = None
        self.watermark: int | None = None
        self.table_watermark: int | None = None
        """The time of the row or the timer, and the watermarks of all tables and of the row's table, in microseconds.
        For the server only."""
        self._name: str | None = None
        self._kind: type = int
        self._time_context = TimeContext(self, int)
        self.cleared: set[str] = set()
        """State entries to be cleared when the call returns."""

    def begin(
        self, time: int | None, watermark: int | None, table_watermark: int | None, timer: str | None = None
    ) -> None:
        """Begin a call. For the server only."""
        self.row_time, self.watermark, self.table_watermark, self._name = time, watermark, table_watermark, timer

    def end(self) -> None:
        """End the segment. For the server only."""
        del self._collect, self._time_context

    @property
    def key(self) -> Key:
        """The values of PARTITION BY; empty if there is none."""
        return self._key

    @property
    def changelog_mode(self) -> ChangelogMode:
        """The changelog mode of the result."""
        signature = self._facts.spec.process
        assert signature is not None
        return signature.changelog_mode

    @property
    def current_timer(self) -> str | None:
        """In `on_timer`, the name of the timer; None for an unnamed timer."""
        return self._name

    def collect(self, value: Any) -> None:
        """Emit a row, as `yield` does."""
        self._collect(value)

    def table_semantics_for(self, argument: str) -> TableSemantics:
        """Return how a table was passed. Raises ValueError if there is no table argument of this name."""
        semantics = self._facts.semantics
        if argument not in semantics:
            raise ValueError(f"Unknown table argument {argument!r}: there are {', '.join(semantics) or 'none'}")
        return semantics[argument]

    def time_context(self, kind: type = datetime.datetime) -> "TimeContext":
        """Return a view of times and timers.

        Args:
            kind: `int` for milliseconds since 1970, or `datetime` for aware datetimes in UTC. A time that datetimes do
                not have, such as the watermark after the end of a bounded input, is the last or the first of them.

        Raises:
            TypeError: `kind` is another type.
        """
        if kind not in (int, datetime.datetime):
            raise TypeError(f"time_context takes int or datetime, not {kind!r}")
        if kind is not self._kind:
            self._kind, self._time_context = kind, TimeContext(self, kind)
        return self._time_context

    @property
    def time(self) -> datetime.datetime | None:
        """The time of the row, None without on_time. In `on_timer`, the time of the timer."""
        found: datetime.datetime | None = to_author(self.row_time, datetime.datetime)
        return found

    def register_on_time(
        self, name_or_time: str | int | datetime.datetime, time: int | datetime.datetime | None = None
    ) -> None:
        """Register a timer, named as in `register_on_time("timeout", time)`, or unnamed as in `register_on_time(time)`.

        A named timer replaces the timer of that name. A timer fires once, when the watermark reaches its time. If the
        time has passed, it fires with the next watermark.

        Args:
            name_or_time: The name, or the time of an unnamed timer.
            time: Milliseconds since 1970, or a datetime. A datetime without a zone is in UTC.

        Raises:
            ValueError: The call cannot have timers.
            TypeError: The name or the time has another type.
        """
        timers = self.timers()
        if time is None:
            timers.register(None, from_author(name_or_time))
        elif not isinstance(name_or_time, str):
            raise TypeError(f"the name of a timer is text, not {name_or_time!r}")
        else:
            timers.register(name_or_time, from_author(time))

    def clear_timer(self, name_or_time: str | int | datetime.datetime) -> None:
        """Delete the timer of a name, or the unnamed timer at a time, if it exists.

        Raises ValueError if the call cannot have timers.
        """
        if isinstance(name_or_time, str):
            self.timers().clear(name_or_time)
        else:
            self.timers().clear_at(from_author(name_or_time))

    def clear_all_timers(self) -> None:
        """Delete all timers of the key. Has no effect while a row of a broadcast table is processed."""
        if not self._facts.call.broadcast:
            self._timers.clear_all()

    def clear_state(self, name: str) -> None:
        """Clear a state entry when the call returns, even if the call changes it.

        Raises ValueError if there is no state entry of this name.
        """
        if name not in self._facts.entries:
            known = ", ".join(self._facts.entries)
            raise ValueError(f"Unknown state entry {name!r}: there are {known or 'none'}")
        self.cleared.add(name)

    def clear_all_state(self) -> None:
        """Clear all state of the key when the call returns; for a row of a broadcast table, all broadcast state."""
        self.cleared.update(self._facts.entries)

    def clear_all(self) -> None:
        """Clear all state and delete all timers of the key."""
        self.clear_all_state()
        self.clear_all_timers()

    def timers(self) -> Timers:
        """The pending timers of the key. Raises ValueError if the call cannot have timers."""
        if (refused := self._facts.timers_refused) is not None:
            raise ValueError(refused)
        return self._timers


class TimeContext:
    """The times of a call, as integers or datetimes. Timers accept both."""

    __slots__ = ("_context", "_kind")

    def __init__(self, context: ProcessContext, kind: type) -> None:
        self._context = context
        self._kind = kind

    def time(self) -> Any:
        """Return the time of the row, None without on_time. In `on_timer`, the time of the timer."""
        return to_author(self._context.row_time, self._kind)

    def current_watermark(self) -> Any:
        """Return the least watermark of all tables. None until each table has one."""
        return to_author(self._context.watermark, self._kind)

    def table_watermark(self) -> Any:
        """Return the watermark of the table that the row belongs to. None in `on_timer`."""
        return to_author(self._context.table_watermark, self._kind)

    def register_on_time(
        self, name_or_time: str | int | datetime.datetime, time: int | datetime.datetime | None = None
    ) -> None:
        """Register a timer, as `ProcessContext.register_on_time` does."""
        self._context.register_on_time(name_or_time, time)

    def clear_timer(self, name_or_time: str | int | datetime.datetime) -> None:
        """Delete a timer, as `ProcessContext.clear_timer` does."""
        self._context.clear_timer(name_or_time)

    def clear_all_timers(self) -> None:
        """Delete all timers of the key, as `ProcessContext.clear_all_timers` does."""
        self._context.clear_all_timers()
