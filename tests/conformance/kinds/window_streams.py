"""Queries over windows as streams: the rows of a case in their order, with its own watermarks between them.

The time of a row and the watermark have separate columns: a row has a time and no watermark, a watermark has no
row. Rows that the watermark cannot make late share a micro-batch, see `window_feed.bursts_of`. If the case expects
output after each event, every event is a micro-batch. An empty micro-batch follows every watermark, since
Spark decides by the watermark of the previous batch which rows are late. `window_steps` runs cases with a clock, and
those that fire early or late, step by step.
"""

import datetime
import tempfile
import zoneinfo
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import TimestampType

from remote_udf.row_kinds import ROW_KIND
from spark_client.windows.columns import WATERMARK
from spark_client.windows.watermarks import guarded
from tests.conformance import window_steps
from tests.conformance.binding import Bound
from tests.conformance.cases import Case, Table
from tests.conformance.column_types import parse_type
from tests.conformance.environment import REFUSALS, Environment, columns_of
from tests.conformance.observation import Emitted, Failure, Run
from tests.conformance.streaming import DRAIN_SECONDS, write_file
from tests.conformance.tables import schema_of
from tests.conformance.values import parse_value
from tests.conformance.window_feed import Burst, Event, Stage, aligned, bursts_of, events_of, time_column
from tests.conformance.window_queries import NO_ZONE, TIME_ZONE, statements

__all__ = ["run"]

WATERMARK_COLUMN = "stream_watermark__"


def run(case: Case, environment: Environment, bound: Sequence[Bound]) -> Run:
    """Runs the case as a stream, in the session's time zone."""
    if window_steps.is_stepped(case):
        return window_steps.run(case, environment, bound)
    made = Run("stream", zone=environment.spark.conf.get(TIME_ZONE) or "UTC")
    try:
        with tempfile.TemporaryDirectory(prefix="window-stream-") as scratch, environment.settings(NO_ZONE):
            _Streamed(case, environment, bound, Path(scratch), made).run()
    except REFUSALS as error:
        made.failure = Failure(str(error), planning=made.columns is None, kind=type(error).__name__)
    return made


class _Streamed:
    """One streaming query, from the views to its last row."""

    def __init__(self, case: Case, environment: Environment, bound: Sequence[Bound], scratch: Path, run: Run) -> None:
        self._case, self._environment, self._bound = case, environment, bound
        self._scratch, self._run = scratch, run
        self._by_event = "steps" in case.expected and len(case.tables) == 1
        self._rows: list[Emitted] = []
        self._after: int | None = None

    def run(self) -> None:
        feeds = [_Feed(self._environment, table, self._scratch / table.name) for table in self._case.tables]
        remote = self._environment.remote(self._case, self._bound)
        *before, query = statements(self._case, self._bound)
        for feed in feeds:
            feed.frame().createOrReplaceTempView(f"`{feed.table.name}`")
        for statement in before:
            remote.sql(statement)
        frame = remote.sql(query)
        shown = _without_zone(frame) if not any(feed.zoned for feed in feeds) else frame
        self._run.columns = columns_of(shown)
        shown = _plain_names(shown)
        if self._by_event:
            self._drive(feeds[0], shown)
        else:
            self._drain(feeds, shown)
        kinds = [name for name, _ in self._run.columns]
        if ROW_KIND in kinds:
            place = kinds.index(ROW_KIND)
            self._run.has_kinds = True
            self._run.columns = [each for at, each in enumerate(self._run.columns) if at != place]
            self._rows = [
                Emitted([*row.values[:place], *row.values[place + 1 :]], str(row.values[place]), row.after)
                for row in self._rows
            ]
        self._run.rows = self._rows

    def _drain(self, feeds: Sequence["_Feed"], frame: DataFrame) -> None:
        """Starts the query for every stage, from the checkpoint of the previous one."""
        stages = aligned([bursts_of(feed.table) for feed in feeds])
        count = len(stages[0])
        for number in range(count):
            for feed, told in zip(feeds, stages, strict=True):
                feed.write(told[number])
            query = self._start(frame, available_now=True)
            try:
                if not query.awaitTermination(DRAIN_SECONDS):
                    raise TimeoutError(f"the stream did not end in {DRAIN_SECONDS} s")
                _raise_from(query)
            finally:
                query.stop()
            # A stream-stream join emits a match when both rows have arrived, and not at the end of the window.
            if number == 0 and count > 1 and len(feeds) == 1:
                self._run.before_restart = len(self._rows)

    def _drive(self, feed: "_Feed", frame: DataFrame) -> None:
        """Runs every event as a micro-batch, and records the output after it."""
        query = self._start(frame, available_now=False)
        try:
            for event in events_of(feed.table):
                self._after = event.number
                if event.op == "restart":
                    query.stop()
                    query = self._start(frame, available_now=False)
                    continue
                feed.write([_burst(event)])
                query.processAllAvailable()
                _raise_from(query)
        finally:
            query.stop()

    def _start(self, frame: DataFrame, *, available_now: bool) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(self._scratch / "checkpoint")).outputMode("append")
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.foreachBatch(self._keep).start()

    def _keep(self, batch: DataFrame, _: int) -> None:
        self._rows += [Emitted(tuple(row), after=self._after) for row in batch.collect()]


def _burst(event: Event) -> Burst:
    return Burst((event,)) if event.op == "row" else Burst((), event.at)


def _raise_from(query: StreamingQuery) -> None:
    if (error := query.exception()) is not None:
        raise error


def _plain_names(frame: DataFrame) -> DataFrame:
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def _without_zone(frame: DataFrame) -> DataFrame:
    """Converts times: those of a stream are instants; those of a case without zone are local times."""
    columns = [
        F.col(f"c{index}").cast("timestamp_ntz") if isinstance(field.dataType, TimestampType) else F.col(f"c{index}")
        for index, field in enumerate(frame.schema.fields)
    ]
    names = list(frame.columns)
    return _plain_names(frame).select(*columns).toDF(*names)


class _Feed:
    """The files of one table, one per micro-batch. A stage is the input before the query is stopped and started."""

    def __init__(self, environment: Environment, table: Table, folder: Path) -> None:
        self.table = table
        self._spark = environment.spark
        self._folder = folder
        self._zone = zoneinfo.ZoneInfo(environment.spark.conf.get(TIME_ZONE) or "UTC")
        self._types = [parse_type(type_) for _, type_ in table.columns]
        self._time = time_column(table)
        self.zoned = (
            dict(zip([name for name, _ in table.columns], self._types, strict=True))[self._time].kind == "timestamp"
        )
        folder.mkdir()
        columns = [f"`{name}` {type_.ddl}" for (name, _), type_ in zip(table.columns, self._types, strict=True)]
        self._schema = schema_of([*columns, f"{ROW_KIND} string", f"{WATERMARK_COLUMN} timestamp"])

    def frame(self) -> DataFrame:
        """Returns the stream, its time column with the watermark of the events."""
        source = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).parquet(str(self._folder))
        marked = guarded(source.withWatermark(WATERMARK_COLUMN, "0 seconds"), WATERMARK_COLUMN)
        timed = marked.where(F.col(WATERMARK_COLUMN).isNull())
        columns = [
            F.col(f"`{name}`").cast(TimestampType()).alias(name, metadata={WATERMARK: 0})
            if name == self._time else F.col(f"`{name}`")
            for name, _ in self.table.columns
        ]  # fmt: skip
        return timed.select(*columns, *([ROW_KIND] if self.table.changelog else []))

    def write(self, stage: Stage) -> None:
        """Writes the bursts of a stage, each followed by an empty file; writes nothing if there are none."""
        files = [rows for burst in stage for rows in (self._rows(burst), [])]
        table = self._spark.createDataFrame([row for rows in files for row in rows], self._schema).toArrow()
        assert isinstance(table, pa.Table)
        for rows in files:
            write_file(self._folder, table.slice(0, len(rows)))
            table = table.slice(len(rows))

    def _rows(self, burst: Burst) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for event in burst.rows:
            values = [parse_value(v, type_) for v, type_ in zip(event.values, self._types, strict=True)]
            rows.append((*values, event.kind, None))
        if burst.watermark is not None:
            at = burst.watermark.replace(tzinfo=datetime.UTC if self.zoned else self._zone)
            rows.append((*[None] * len(self._types), "+I", at))
        return rows
