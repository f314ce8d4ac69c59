"""Cases with a clock, or that fire early or late, step by step: Spark assigns the windows, the rule fires them.

The query's rows and their windows come from Spark in batch. The code of the stream operator then processes one event
after another here, with the clock and the watermark of the case.
"""

import datetime
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from remote_udf.row_kinds import ROW_KIND, RowKind
from spark_client.base.options import EMIT_PREFIX
from spark_client.base.types import arrow_type
from spark_client.executor.aggregate.fired import FiredBucket, Step
from spark_client.executor.aggregate.firing import FirePlan
from spark_client.executor.aggregate.running import Running
from spark_client.planning.aggregate.builtins import known_builtin
from spark_client.windows.columns import WINDOW_COLUMNS, WINDOW_TIME
from spark_client.windows.emitting import emit_options
from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.column_types import parse_type
from tests.conformance.environment import REFUSALS, Environment, columns_of
from tests.conformance.observation import Emitted, Failure, Run
from tests.conformance.tables import schema_of
from tests.conformance.values import parse_value
from tests.conformance.window_feed import events_of, time_column
from tests.conformance.window_queries import NO_ZONE, TIME_ZONE, statements

__all__ = ["is_stepped", "run"]

_EMIT = "table.exec.emit."
_EVENT, _CODE = "event__", "kind__"
_EPOCH = datetime.datetime(1970, 1, 1)


def is_stepped(case: Case) -> bool:
    """Whether the case has a clock or fires at other times than at the end of a window."""
    return any(name.startswith(_EMIT) for name in case.config) or any(
        event.op == "processing_time" for event in events_of(case.tables[0])
    )


def run(case: Case, environment: Environment, bound: Sequence[Bound]) -> Run:
    """Runs the case; an error of the query is its failure."""
    made = Run("script", zone=environment.spark.conf.get(TIME_ZONE) or "UTC", has_kinds=True)
    try:
        _Steps(case, environment, bound, made).run()
    except REFUSALS as error:
        made.failure = Failure(str(error), planning=made.columns is None, kind=type(error).__name__)
    return made


class _Steps:
    def __init__(self, case: Case, environment: Environment, bound: Sequence[Bound], run: Run) -> None:
        self._case, self._bound, self._run = case, bound, run
        self._environment = environment
        self._table = case.tables[0]
        self._events = events_of(self._table)
        self._by_clock = time_column(self._table) not in [name for name, _ in self._table.columns]
        self._states: dict[int, bytes | None] = {}

    def run(self) -> None:
        assigned, plan, shown = self._planned()
        rows = assigned.toArrow()
        watermark, now = -(2**62), 0
        changes: list[Emitted] = []
        for number, event in enumerate(self._events):
            if event.op == "processing_time":
                now = _millis(event.at)
                # A window in processing time closes when the clock reaches its last millisecond, as its timer says.
                watermark = max(watermark, now) if self._by_clock else watermark
            elif event.op == "watermark":
                watermark = _millis(event.at)
            for table in self._advanced(plan, rows, number if event.op == "row" else None, watermark, now):
                for kind, *row in _tuples(table):
                    changes.append(Emitted([_shown(row[place]) for place in shown], kind, event.number))
        self._run.rows = changes

    def _planned(self) -> tuple[DataFrame, FirePlan, list[int]]:
        """Returns the rows with their windows and events, the computation, and the places of the query's columns."""
        query = sqlglot.parse_one(_selected(statements(self._case)[-1]), read="spark")
        aggregates = [each for each in query.expressions if each.find(exp.AggFunc)]
        keys = [each.unalias().name for each in query.expressions if each not in aggregates]
        keys += [name for name in WINDOW_COLUMNS if name not in keys]
        frame = self._assigned()
        known = [known_builtin(frame, _column(each), "a case:") for each in aggregates]
        place = {name: index for index, name in enumerate(frame.columns)}
        runnings = tuple(
            Running(
                each.function, None if each.column is None else place[each.column], each.distinct,
                None if each.argument is None else arrow_type(each.argument, each.name),
                arrow_type(each.type, each.name), keeps_all=True,
            )
            for each in known
        )  # fmt: skip
        session = {EMIT_PREFIX + "." + key.removeprefix(_EMIT): str(v) for key, v in self._case.config.items()
                   if key.startswith(_EMIT)}  # fmt: skip
        names = (ROW_KIND, *keys, *(f"value_{number}" for number in range(len(known))))
        types = tuple(arrow_type(frame.schema[key].dataType, key) for key in keys)
        plan = FirePlan(
            emit_options({}, session), (), runnings, tuple((False, number) for number in range(len(known))),
            tuple(place[key] for key in keys), tuple(keys), types, place[_CODE], names,
        )  # fmt: skip
        shown = [
            len(keys) + aggregates.index(each) if each in aggregates else keys.index(each.unalias().name)
            for each in query.expressions
        ]
        order = self._as_told(shown, query, names)
        own = dict(zip(shown, self._run.columns or (), strict=True))
        self._run.columns = [own.get(at, (names[at + 1], "timestamp_ntz")) for at in order]
        self._run.named = ["alias" if re.fullmatch(r"\w+", name) else "expression" for name, _ in self._run.columns]
        return frame, plan, order

    def _as_told(self, shown: list[int], query: Any, names: Sequence[str]) -> list[int]:
        """Returns places in the order of the expected columns, if a case has the order of the operator."""
        told = [str(each["name"]) for each in self._case.expected.get("columns") or () if "name" in each]
        selected = [each.alias_or_name for each in query.expressions]
        if all(told.index(name) == selected.index(name) for name in selected if name in told):
            return shown
        keys = {name: place for place, name in enumerate(names[1:]) if not name.startswith("value_")}
        values = iter(place for place, name in enumerate(names[1:]) if name.startswith("value_"))
        return [keys[name] if name in keys else next(values) for name in told]

    def _assigned(self) -> DataFrame:
        """Assigns every row to its windows; in processing time, a row has the time of its arrival."""
        columns = [*self._table.columns, *([(time_column(self._table), "TIMESTAMP(3)")] if self._by_clock else [])]
        types = [parse_type(type_) for _, type_ in columns]
        rows, now = [], None
        for number, event in enumerate(self._events):
            now = event.at if event.op == "processing_time" else now
            if event.op == "row":
                values = [*event.values, *([now.isoformat()] if self._by_clock and now is not None else [])]
                parsed = [parse_value(value, type_) for value, type_ in zip(values, types, strict=True)]
                rows.append((*parsed, number, RowKind(event.kind).code))
        ddl = [f"`{name}` {type_.ddl}" for (name, _), type_ in zip(columns, types, strict=True)]
        schema = schema_of([*ddl, f"{_EVENT} int", f"{_CODE} tinyint"])
        spark = self._environment.spark
        with self._environment.settings(NO_ZONE):
            spark.createDataFrame(rows, schema).createOrReplaceTempView(f"`{self._table.name}`")
            source = statements(self._case, self._bound)[-1]
            remote = self._environment.remote(self._case, self._bound)
            self._run.columns = columns_of(remote.sql(source))
            start, end = source.upper().index("FROM"), source.upper().rindex("GROUP BY")
            return remote.sql(f"SELECT * {source[start:end]}")

    def _advanced(
        self, plan: FirePlan, rows: pa.Table, number: int | None, watermark: int, now: int
    ) -> list[pa.Table]:  # fmt: skip
        """Returns the changes after an event, window by window in the order of their ends."""
        new: dict[int, pa.Table] = {}
        if number is not None:
            own = rows.filter(pc.equal(rows.column(_EVENT), number))
            ends = [_millis(value) for value in own.column(WINDOW_TIME).to_pylist()]
            new = {end: own.filter(pa.array([other == end for other in ends])) for end in set(ends)}
        found = []
        for last in sorted({*self._states, *new}):
            bucket = FiredBucket(plan, self._states.get(last))
            changes = bucket.changes(Step(last, watermark, now), new.get(last))
            self._states[last] = bucket.saved
            if changes is not None:
                found.append(changes)
        return found


def _selected(text: str) -> str:
    """The SELECT without what sqlglot cannot read, the window function."""
    start, end = text.upper().index("FROM"), text.upper().rindex("GROUP BY")
    return f"{text[:start]} FROM t {text[end:]}"


def _column(aggregate: Any) -> Column:
    return F.expr(aggregate.unalias().sql(dialect="spark"))


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def _millis(at: Any) -> int:
    assert isinstance(at, datetime.datetime)
    return (at.replace(tzinfo=None) - _EPOCH) // datetime.timedelta(milliseconds=1)


def _shown(value: Any) -> Any:
    """Formats a time as a case writes it."""
    if isinstance(value, datetime.datetime):
        text = value.isoformat(timespec="milliseconds")
        return text.removesuffix(".000")
    return value
