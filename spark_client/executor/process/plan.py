"""Plans of process table functions: what a task needs to send rows of tables, or to keep state on a stream."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from remote_udf.process_calls import ProcessCall, segments_schema
from remote_udf.segments import KEY
from remote_udf.types import spelled
from spark_client.base.calls import ProcessTableCall
from spark_client.base.errors import StateMismatch
from spark_client.executor.stored_state import differs

__all__ = ["OutputSource", "ProcessPlan", "StatePlan"]

FORMAT, WITH_RELEASED = 1, 2
"""The version of the format of pages and of their description; that of pages with the times of released rows."""
KEY_COLUMNS = "columns of the key"
"""By table. Descriptions of older versions do not have them, and get them with the next micro-batch."""
TIME_ZONE = "time zone of windows"


class OutputSource(Enum):
    """The source of a column of the result."""

    KEY = auto()
    THROUGH = auto()
    """A column of the input row."""
    VALUE = auto()
    """A column of the function's result."""
    TIME = auto()
    ROW_KIND = auto()


@dataclass(frozen=True)
class ProcessPlan:
    """Positions of columns in the input. `table`, `row_kind` and `time` may be missing.

    `rows` has the struct column of each table, which is null in rows of other tables. `output` has the source of each
    column of the result, and its position there. If `by_key` is false, the table has row semantics, and rows may be
    divided anywhere. If `bounded`, the input ends, and all timers fire then.
    """

    call: ProcessTableCall
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    table: int | None
    row_kind: int | None
    time: int | None
    rows: tuple[int, ...]
    output: tuple[tuple[OutputSource, int], ...]
    schema: pa.Schema
    by_key: bool = True
    bounded: bool = True

    @property
    def process(self) -> ProcessCall:
        assert self.call.process is not None
        return self.call.process

    @functools.cached_property
    def segments(self) -> pa.Schema:
        """The columns of segments."""
        return segments_schema(self.call.spec, self.process)


@dataclass(frozen=True)
class StatePlan:
    """A call with state. `hash` is the column with the hash of the key.

    If `rows_first`, the rows of a micro-batch are processed before its watermark: they are the output of another
    function, whose timers were fired by that watermark, and must not be late. Otherwise the watermark is processed
    first, because it existed before the rows. Without a watermark no timer fires.

    Rows that ORDER BY cannot put in their place are dropped. If the watermark is first, these are the rows before it.
    If the rows are first, the watermark before theirs would tell, but Spark does not: a bucket knows only that of its
    last visit, which depends on the number of buckets. So a row is dropped if a later one of its key was released.
    """

    plan: ProcessPlan
    uid: str
    buckets: int
    hash: int
    has_watermark: bool
    rows_first: bool = False
    zone: str | None = None
    """The time zone of the windows among the columns; None if there are none."""

    @property
    def times_to_live(self) -> Sequence[int | None]:
        """The time-to-live of each state entry in milliseconds; None if it has none."""
        assert self.plan.call.spec.process is not None
        return self.plan.call.spec.process.times_to_live

    @property
    def expires(self) -> bool:
        """Whether an entry has a time-to-live."""
        return any(each is not None for each in self.times_to_live)

    @property
    def orders(self) -> bool:
        """Whether a table has ORDER BY, so that rows are held."""
        return any(table.order_by for table in self.plan.process.tables)

    @property
    def keeps_released(self) -> bool:
        """Whether pages have the time of the last row of each key that ORDER BY released."""
        return self.orders and self.rows_first

    def description(self) -> str:
        """The description of the call, as JSON, which is stored in each bucket and in one that has no keys."""
        spec, process = self.plan.call.spec, self.plan.process
        assert spec.process is not None
        key = process.key_type(spec)
        rows = {
            argument.name: spelled(self.plan.segments.field("rows").type.value_type.field(str(index)).type)
            for index, (argument, table) in enumerate(zip(spec.process.tables, process.tables, strict=True))
            if table.order_by
        }
        keys = {
            argument.name: [table.schema.names[column] for column in table.partition_by]
            for argument, table in zip(spec.process.tables, process.tables, strict=True)
            if table.partition_by
        }
        zone = {} if self.zone is None else {TIME_ZONE: self.zone}
        return json.dumps({
            "format": WITH_RELEASED if self.keeps_released else FORMAT,
            "uid": self.uid, "function": spec.name, "version": spec.version,
            "buckets": self.buckets, KEY: [spelled(each.type) for each in key], KEY_COLUMNS: keys,
            "state": {each.name: spelled(each.type) for each in spec.process.state}, "held rows": rows,
            "times": process.on_time, "kinds": process.has_row_kinds, **zone,
        })  # fmt: skip

    def require_fit(self, found: str) -> None:
        """Compare the description in a checkpoint with this call. Raises StateMismatch, which names the difference."""
        expected = self.description()
        if found == expected:
            return
        there, here = json.loads(found), json.loads(expected)
        problems = [differs(name, there.get(name), here[name]) for name in ("format", "uid", "function", "buckets")]
        problems.append(differs("types of the key", there[KEY], here[KEY]))
        if KEY_COLUMNS in there and _by_case(there[KEY_COLUMNS]) != _by_case(here[KEY_COLUMNS]):
            problems.append(differs(KEY_COLUMNS, there[KEY_COLUMNS], here[KEY_COLUMNS]))
        if TIME_ZONE in there and TIME_ZONE in here:
            problems.append(differs(TIME_ZONE, there[TIME_ZONE], here[TIME_ZONE]))
        states = dict.fromkeys([*here["state"], *there["state"]])
        problems += [
            differs(f"state entry {name!r}", there["state"].get(name), here["state"].get(name)) for name in states
        ]
        if not any(problems):
            problems.append(differs("order of state entries", list(there["state"]), list(here["state"])))
        if here["held rows"] or there["held rows"]:
            for name in ("held rows", "times", "kinds"):
                problems.append(differs(name, there[name], here[name]))
        told = [problem for problem in problems if problem]
        if told:
            key = self.plan.call.spec.key
            wrote = f"{there.get('function')}@{there.get('version')}"
            raise StateMismatch(
                f"function {key}, uid {self.uid!r}: its state does not fit the checkpoint, which {wrote} wrote: "
                f"{'; '.join(told)}. Start from a new checkpoint, or call the function as it was"
            )


def _by_case(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """The columns without the case of their names, which a source may change."""
    return {table: [name.casefold() for name in names] for table, names in columns.items()}
