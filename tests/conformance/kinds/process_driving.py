"""Drives calls of process table functions row by row, with the watermarks of the case, and restarts."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from remote_udf.process_planning import TableGiven
from remote_udf.row_kinds import ROW_KIND, ChangelogMode, RowKind
from spark_client.base.changelogs import mode_of
from spark_client.base.types import spark_type
from spark_client.planning.process.inputs import TableOptions
from tests.conformance.binding import Bound
from tests.conformance.cases import Case, Table
from tests.conformance.declared_watermarks import delay_of, watermarked
from tests.conformance.given import Candidate, declared
from tests.conformance.observation import Emitted
from udf_server.testing import ProcessTableHarness, table
from udf_server.testing.steps import Kept

__all__ = ["Driving", "harness_function", "marked"]

DELAY = "conformance_delay"
"""Metadata of a time column: the delay of the watermark in milliseconds."""
Steps = list[tuple[tuple[Any, ...] | None, Any]]
"""A row, or the watermark that comes next."""
_Event = tuple[str, tuple[Any, ...] | None, RowKind, Any, str | None]


def harness_function(bound: Bound) -> Any:
    """Returns the function for a harness: a class if there is one, since a restart creates a new instance of it."""
    function = bound.function.thing if isinstance(bound.function, Candidate) else bound.function
    return function if isinstance(function, type) else declared(function)


class Driving:
    """The calls of one query."""

    def __init__(self, case: Case, spark: SparkSession, functions: Mapping[str, Bound]) -> None:
        self._case, self._spark, self._functions = case, spark, functions
        self._before: list[Steps] = []
        self._steps: Steps = []
        self._phase: str | None = None
        self._phases: list[str | None] = []

    def process(
        self, name: str, tables: DataFrame | Mapping[str, DataFrame] | None, scalars: Mapping[str, Any],
        of_tables: TableOptions, *, on_time: Any = (), uid: str | None = None, options: Any = None,
    ) -> DataFrame:  # fmt: skip
        """Replaces what plans process table functions in SQL."""
        bound = self._found(name)
        frames = tables if isinstance(tables, Mapping) else {}
        keys, orders = of_tables.partition_by, of_tables.order_by
        given = {each: _given(frame, _of(keys, each), _of(orders, each)) for each, frame in frames.items()}
        times = [on_time] if isinstance(on_time, str) else list(on_time)
        harness = ProcessTableHarness(harness_function(bound), given, on_time=times, also_batch=False, **scalars)
        for argument, row, kind, watermark, phase in self._events(frames):
            if phase != self._phase and self._phase is not None:
                harness.restore(self._kept(harness))
            self._phase = phase
            if row is not None:
                harness.row(argument, row, kind)
            if watermark is not None:
                harness.watermark(watermark, argument)
            self._noted(harness)
        if given:
            harness.end_of_input()
        else:
            harness.call()
        self._noted(harness)
        rows = [(*row, str(row.kind)) for row in harness.output]
        fields = [f"`{field.name}` {spark_type(field.type).simpleString()}" for field in harness.columns]
        assert bound.spec is not None
        if bound.spec.process is None or bound.spec.process.changelog_mode.is_insert_only:
            rows = [row[:-1] for row in rows]
        else:
            fields.append(f"{ROW_KIND} string")
        self._before.append(self._steps)
        self._steps = []
        return self._spark.createDataFrame(rows, ", ".join(fields)).coalesce(1)

    def phased(self, rows: Sequence[Emitted]) -> list[Emitted]:
        """Adds the phases of the only call to the rows of the query, if their numbers are equal."""
        if len(self._phases) != len(rows) or len(self._before) != 1 or not any(self._phases):
            return list(rows)
        return [Emitted(row.values, row.kind, phase=phase) for row, phase in zip(rows, self._phases, strict=True)]

    def _found(self, name: str) -> Bound:
        plain = name.partition("@")[0]
        return next(each for key, each in self._functions.items() if key.partition("@")[0].lower() == plain.lower())

    def _kept(self, harness: ProcessTableHarness) -> object:
        """Returns what the language of the cases keeps over a restart: no watermarks, unless the case says so."""
        kept = harness.snapshot()
        assert isinstance(kept, Kept)
        return kept if self._case.keeps_watermarks else replace(kept, watermarks=[None] * len(kept.watermarks))

    def _noted(self, harness: ProcessTableHarness) -> None:
        """Notes the output of a call, and the watermark after it, for a call that reads its result."""
        for row in harness.take():
            self._steps.append((tuple(row), None))
            self._phases.append(self._phase)
        self._steps.append((None, harness.current_watermark))

    def _events(self, tables: Mapping[str, DataFrame]) -> Iterator[_Event]:
        """Rows of all tables by time, each with the watermark after it; late rows of a table stay where they are.

        The output of another call has the watermarks of that call.
        """
        merged: list[Any] = []
        for number, (argument, frame) in enumerate(tables.items()):
            column = self._time_column(frame)
            delay = _delay(frame, column)
            rows = frame.toArrow().to_pylist()
            chained = self._emitted([tuple(row.values()) for row in rows])
            if chained is not None:
                yield from ((argument, row, RowKind.INSERT, mark, None) for row, mark in chained)
                continue
            phases = self._told_phases(len(rows))
            greatest: datetime.datetime | None = None
            for place, (row, phase) in enumerate(zip(rows, phases, strict=True)):
                if place and phase != phases[place - 1] and not self._case.keeps_watermarks:
                    greatest = None
                if column is not None and row[column] is not None:
                    greatest = row[column] if greatest is None else max(greatest, row[column])
                time = greatest.timestamp() if greatest is not None and len(tables) > 1 else 0
                order = (phase or "") != "before_restore", time, place if column is None else 0, number, place
                kind = RowKind(row.pop(ROW_KIND, RowKind.INSERT))
                watermark = None if greatest is None else greatest - delay
                merged.append((order, (argument, tuple(row.values()), kind, watermark, phase)))
        yield from (event for _, event in sorted(merged, key=lambda each: each[0]))

    def _time_column(self, frame: DataFrame) -> str | None:
        """Returns the column with a watermark of its table; also the time of the rows that another call emits."""
        fields = frame.schema.fields
        return next((each.name for each in fields if DELAY in each.metadata or each.name == "rowtime"), None)

    def _told_phases(self, count: int) -> list[str | None]:
        for each in self._case.tables:
            rows = [row for row in each.raw.get("rows") or () if isinstance(row, Mapping)]
            if len(rows) == count and any("phase" in row for row in rows):
                return [row.get("phase") for row in rows]
        return [None] * count

    def _emitted(self, rows: Sequence[tuple[Any, ...]]) -> Steps | None:
        """Returns the steps of the call whose result these rows are."""
        for steps in self._before:
            if [row for row, _ in steps if row is not None] == list(rows) and rows:
                return steps
        return None


def marked(frame: DataFrame, table: Table) -> DataFrame:
    """Returns the frame of a table, its time column with the delay of the table's watermark."""
    time = watermarked(table)
    if time is None or time not in frame.columns:
        return frame
    delay = delay_of(table) / datetime.timedelta(milliseconds=1)
    return frame.withMetadata(time, {**frame.schema[time].metadata, DELAY: delay})


def _delay(frame: DataFrame, column: str | None) -> datetime.timedelta:
    delay = frame.schema[column].metadata.get(DELAY, 0.0) if column is not None else 0.0
    return datetime.timedelta(milliseconds=delay)


def _given(frame: DataFrame, partition_by: Any, order_by: Any) -> TableGiven:
    schema = frame.limit(0).toArrow().schema
    names = [name for name in schema.names if name != ROW_KIND]
    mode, key = mode_of(frame) if ROW_KIND in schema.names else (ChangelogMode(), ())
    columns = pa.schema([schema.field(name) for name in names])
    made = table(columns, partition_by=partition_by, order_by=order_by or (), changelog_mode=mode)
    return TableGiven(made.schema, made.partition_by, made.order_by, made.changelog_mode, tuple(key))


def _of(given: Any, argument: str) -> Any:
    """Returns the argument of a call for one table; a mapping is by table."""
    return given.get(argument) if isinstance(given, Mapping) else given
