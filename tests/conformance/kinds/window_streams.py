"""Queries over windows as streams: the rows of a case in their order, with its own watermarks between them.

The time of a row and the watermark come in columns of their own: a row has a time and no watermark, a watermark no
row. Rows that the watermark cannot make late share a micro-batch, see `window_feed.bursts_of`. Behind every watermark
goes an empty one, since Spark tells late rows by the watermark of the batch before. Cases with a clock, and those that
fire early or late, are driven step by step in `window_steps`.
"""

import datetime
import os
import tempfile
import zoneinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from remote_udf.errors import RemoteUdfError
from remote_udf.row_kinds import ROW_KIND
from spark_client.windows.columns import WATERMARK
from spark_client.windows.watermarks import guarded
from tests.conformance import window_steps
from tests.conformance.cases import Case, Table
from tests.conformance.column_types import parse_type
from tests.conformance.environment import Environment
from tests.conformance.kinds.scalar import short
from tests.conformance.report import Outcome, Result
from tests.conformance.values import parse_value
from tests.conformance.window_feed import Burst, aligned, bursts_of, time_column
from tests.conformance.window_queries import (
    NO_ZONE,
    TIME_ZONE,
    is_window_query,
    passed,
    remote_session,
    rows_differ,
    statements,
    time_zones,
    view_names,
)

__all__ = ["claims", "run"]

WATERMARK_COLUMN = "stream_watermark__"
SECONDS = 300


def claims(case: Case) -> bool:
    """What depends on the watermark, or has a script of events."""
    if not is_window_query(case) or case.mode != "streaming" or case.expected.error is not None:
        return False
    return bool(case.raw.get("watermark_sensitive")) or any(table.events for table in case.tables)


def run(case: Case, environment: Environment) -> Result:
    """In every time zone of the case; the first that does not pass decides."""
    result = Result.passed()
    for zone in time_zones(case):
        with environment.settings({TIME_ZONE: zone, "spark.sql.shuffle.partitions": "1"}):
            try:
                if window_steps.is_stepped(case):
                    result = window_steps.run(case, environment)
                else:
                    result = _streamed(case, environment)
            except (PySparkException, RemoteUdfError) as error:
                result = Result.failed(f"the query failed: {short(str(error))}")
            finally:
                environment.forget_views(view_names(case))
        if result.outcome is not Outcome.PASSED:
            return result
    return result


def _streamed(case: Case, environment: Environment) -> Result:
    with tempfile.TemporaryDirectory(prefix="window-stream-") as scratch:
        feeds = [_Feed(environment, table, Path(scratch) / table.name) for table in case.tables]
        remote = remote_session(environment)
        *before, query = statements(case)
        for feed, told in zip(feeds, aligned([feed.stages for feed in feeds]), strict=True):
            feed.stages = told
        with environment.settings(NO_ZONE):
            for feed in feeds:
                feed.frame().createOrReplaceTempView(f"`{feed.table.name}`")
            for statement in before:
                remote.sql(statement)
            frame = remote.sql(query)
            shown = _without_zone(frame) if not any(feed.zoned for feed in feeds) else frame
            for stage in range(len(feeds[0].stages)):
                for feed in feeds:
                    feed.write(stage)
                _drained(shown, Path(scratch))
        read = environment.spark.read.schema(_plain_names(shown).schema).parquet(str(Path(scratch) / "out"))
        found = environment.rows(lambda: read)
    expected = case.expected.rows
    if expected is None:
        expected = [each["row"] for step in case.expected.raw["steps"] for each in step["rows"]]
    wrong = rows_differ(case, expected, found, shown)
    return passed(case, "as a stream") if wrong is None else Result.failed(wrong)


def _drained(frame: DataFrame, scratch: Path) -> None:
    """Runs the query over what its sources have now, from where it was."""
    writer = _plain_names(frame).writeStream.option("checkpointLocation", str(scratch / "checkpoint"))
    query = writer.trigger(availableNow=True).start(path=str(scratch / "out"), format="parquet", outputMode="append")
    try:
        if not query.awaitTermination(SECONDS):
            raise TimeoutError(f"the stream did not end in {SECONDS} s")
        if (error := query.exception()) is not None:
            raise error
    finally:
        query.stop()


def _plain_names(frame: DataFrame) -> DataFrame:
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def _without_zone(frame: DataFrame) -> DataFrame:
    """Times of a stream are instants; those of a case without zone are what the clock shows."""
    columns = [
        F.col(f"c{index}").cast("timestamp_ntz") if isinstance(field.dataType, TimestampType) else F.col(f"c{index}")
        for index, field in enumerate(frame.schema.fields)
    ]
    names = list(frame.columns)
    return _plain_names(frame).select(*columns).toDF(*names)


class _Feed:
    """The files of one table, a micro-batch each. A stage is what is sent before the query is stopped and started."""

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
        self.stages = bursts_of(table)
        folder.mkdir()
        # Here, where `timestamp` still is what it says; the query may have another.
        columns = [f"`{name}` {type_.ddl}" for (name, _), type_ in zip(table.columns, self._types, strict=True)]
        ddl = ", ".join([*columns, f"{ROW_KIND} string", f"{WATERMARK_COLUMN} timestamp"])
        self._schema = StructType.fromDDL(ddl)

    def frame(self) -> DataFrame:
        """The stream, its time column with the watermark of the events."""
        source = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).parquet(str(self._folder))
        marked = guarded(source.withWatermark(WATERMARK_COLUMN, "0 seconds"), WATERMARK_COLUMN)
        timed = marked.where(F.col(WATERMARK_COLUMN).isNull())
        columns = [
            F.col(f"`{name}`").cast(TimestampType()).alias(name, metadata={WATERMARK: 0})
            if name == self._time else F.col(f"`{name}`")
            for name, _ in self.table.columns
        ]  # fmt: skip
        return timed.select(*columns, *([ROW_KIND] if self.table.changelog else []))

    def write(self, stage: int) -> None:
        """The bursts of a stage, each with an empty file behind it; nothing if there are none."""
        bursts = self.stages[stage] if stage < len(self.stages) else []
        files = [rows for burst in bursts for rows in (self._rows(burst), [])]
        table = self._spark.createDataFrame([row for rows in files for row in rows], self._schema).toArrow()
        assert isinstance(table, pa.Table)
        for rows in files:
            self._file(table.slice(0, len(rows)))
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

    def _file(self, table: pa.Table) -> None:
        number = len(list(self._folder.iterdir()))
        path = self._folder / f"{number:05}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(table, hidden)
        # Spark takes files by their age.
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(path)
