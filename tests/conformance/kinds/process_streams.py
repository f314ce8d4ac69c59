"""Queries with process table functions as streams, through `remote.sql`, with real restarts.

If there is a watermark, every row is a micro-batch. The watermark has its own column, as in
`window_streams`: after every row, and at the end of the input. A restore stops the streaming query and restarts
it from its checkpoint.
"""

import datetime
import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from remote_udf.row_kinds import ROW_KIND, ChangelogMode
from spark_client.base.changelogs import mode_metadata
from spark_client.windows.columns import WATERMARK
from spark_client.windows.watermarks import guarded
from tests.conformance.binding import Bound
from tests.conformance.cases import Case, FunctionWords, Table
from tests.conformance.column_types import parse_type
from tests.conformance.declared_watermarks import delay_of, watermarked
from tests.conformance.environment import REFUSALS, Environment, columns_of, fill
from tests.conformance.flink_tables import changelog_mode, run_texts
from tests.conformance.observation import Emitted, Failure, Run
from tests.conformance.streaming import drain, write_file
from tests.conformance.tables import schema_of, table_frame
from tests.conformance.values import parse_value
from tests.conformance.window_feed import END

__all__ = ["not_a_stream", "run"]

WATERMARK_COLUMN = "stream_watermark__"
STATE = {
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
}  # fmt: skip
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_END_OF_FLINK = "9223372036854775807"
_TABLE = re.compile(r"\bTABLE\s+(?:\(\s*)?`?(\w+)", re.IGNORECASE)
_UNSTREAMED = re.compile(r"stream", re.IGNORECASE)


@dataclass(frozen=True)
class _Row:
    """A row, and the watermark after it."""

    table: str
    kind: str
    values: Sequence[Any]
    watermark: datetime.datetime | None
    phase: str | None


def not_a_stream(case: Case, bound: Sequence[Bound]) -> str:
    """Returns why Spark cannot run the case as a stream, or "" if it can."""
    if not any(_TABLE.search(text) for text in (*case.setup, case.query)):
        return "no table goes into the function"
    if any(table.view or not table.columns for table in case.tables):
        return "a table is the result of another query"
    timed = [table for table in case.tables if watermarked(table) is not None]
    if not timed and "watermark_emission" in case.config:
        return "the case has no watermarks, which a stream with times has"
    if not timed and any(_has_timers(words) for words in case.functions):
        return "timers fire at the end of the input, which a stream does not have"
    broadcast = _ended(bound, " ".join((*case.setup, case.query)))
    if timed and any(table not in timed and table.name not in broadcast for table in case.tables):
        return "a table without a watermark holds back the watermark of the call, which Spark does not do"
    told = f"{case.expectation.get('expected')} {' '.join(words.behaviour for words in case.functions)}".lower()
    if len(timed) > 1 and "watermark" in told and _begin_apart(case):
        return "a table without rows does not hold back the watermark of the others in Spark"
    if timed and not case.keeps_watermarks and _is_restarted(case) and ("watermark" in told or _goes_back(case)):
        return "a restart keeps the watermark in Spark, and the case begins with none"
    if timed and _END_OF_FLINK in told:
        return "the case is about the watermark at the end of the input, which Spark does not have"
    if timed and all(_has_row_semantics(each) for each in bound):
        return "a function with row semantics sees no watermark on a stream"
    if any(row.watermark is not None and row.watermark <= _EPOCH for row in _rows(case)):
        return "a watermark is not after 1970, and Spark cannot tell such a one from none"
    return ""


def _begin_apart(case: Case) -> bool:
    """Whether a row comes while some tables have a watermark and others have none yet."""
    timed = {table.name for table in case.tables if watermarked(table) is not None}
    begun: set[str] = set()
    for row in _rows(case):
        if begun and begun != timed:
            return True
        begun |= {row.table} if row.watermark is not None else set()
    return False


def _is_restarted(case: Case) -> bool:
    return len({row.phase for row in _rows(case)}) > 1


def _goes_back(case: Case) -> bool:
    """Whether a row comes behind the watermark of its table that a row of an earlier phase has set."""
    reached: dict[tuple[str, str | None], datetime.datetime] = {}
    times = {table.name: [name for name, _ in table.columns].index(column) for table in case.tables
             if (column := watermarked(table)) is not None}  # fmt: skip
    for row in _rows(case):
        at = None if row.table not in times else row.values[times[row.table]]
        before = [mark for (table, phase), mark in reached.items() if table == row.table and phase != row.phase]
        if at is not None and any(parse_value(at, parse_type("TIMESTAMP_LTZ(3)")) <= mark for mark in before):
            return True
        if row.watermark is not None:
            reached[row.table, row.phase] = row.watermark
    return False


def _has_timers(words: FunctionWords) -> bool:
    return str(words.raw.get("timers") or "none").strip().lower() not in ("none", "no")


def _has_row_semantics(bound: Bound) -> bool:
    process = bound.spec.process if bound.spec is not None else None
    return process is not None and not any(table.has_set_semantics for table in process.main_tables)


def run(case: Case, environment: Environment, bound: Sequence[Bound], texts: Sequence[str]) -> Run | None:
    """Runs the case; returns None if Spark has no streaming query of this shape."""
    made = Run("stream")
    with tempfile.TemporaryDirectory(prefix="process-stream-") as scratch, environment.settings(STATE):
        try:
            _run(case, environment, bound, texts, Path(scratch), made)
        except AnalysisException as error:
            if _UNSTREAMED.search(str(error)):
                return None
            made.failure = Failure(str(error), planning=True, kind=type(error).__name__)
        except REFUSALS as error:
            made.failure = Failure(str(error), planning=made.columns is None, kind=type(error).__name__)
    return made


def _run(
    case: Case, environment: Environment, bound: Sequence[Bound], texts: Sequence[str], scratch: Path, made: Run
) -> None:
    ended = _ended(bound, " ".join(texts))
    feeds = {table.name: _Feed(environment, table, scratch / table.name) for table in case.tables
             if table.name not in ended}  # fmt: skip
    for table in case.tables:
        frame = feeds[table.name].frame() if table.name in feeds else table_frame(environment.spark, table)
        frame.createOrReplaceTempView(f"`{table.name}`")
    frame = run_texts(environment.remote(case, bound), texts)
    made.columns = columns_of(frame)
    rows = [row for row in _rows(case) if row.table in feeds]
    phases = list(dict.fromkeys(row.phase for row in rows)) or [None]
    emitted: list[Emitted] = []
    for phase in phases:
        for burst in _bursts([each for each in rows if each.phase == phase]):
            for name, feed in feeds.items():
                feed.write(burst if name == burst[0].table else [])
        if phase == phases[-1]:
            for feed in feeds.values():
                feed.end()
        fill(made, frame, drain(frame, scratch))
        emitted += [Emitted(each.values, each.kind, phase=phase) for each in made.rows or ()]
    made.rows = emitted


def _ended(bound: Sequence[Bound], query: str) -> set[str]:
    """Returns the tables that are passed as broadcast ones, which are no streams."""
    found = set()
    for each in bound:
        names = [] if each.spec is None or each.spec.process is None else each.spec.process.tables
        for argument in names:
            if argument.is_broadcast:
                found |= set(re.findall(rf"\b{argument.name}\s*=>\s*TABLE\s+`?(\w+)", query, re.IGNORECASE))
    return found


def _rows(case: Case) -> list[_Row]:
    """Returns the rows of all tables: before and after a restore, by time if all have one, else in file order."""
    ordered: list[Any] = []
    for number, table in enumerate(case.tables):
        for place, row in enumerate(_followed(table)):
            time = row.watermark.timestamp() if row.watermark is not None and len(case.tables) > 1 else 0.0
            ordered.append(((row.phase or "") != "before_restore", time, place, number, row))
    return [each[-1] for each in sorted(ordered, key=lambda each: each[:-1])]


def _bursts(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Yields the rows of a micro-batch: one if there are watermarks, else consecutive rows of a table, in two halves.

    So state passes from one micro-batch to the next in both cases.
    """
    for _, same in itertools.groupby(rows, key=lambda row: row.table):
        together = list(same)
        if any(row.watermark is not None for row in rows):
            yield from ([row] for row in together)
        else:
            half = (len(together) + 1) // 2
            yield from filter(None, (together[:half], together[half:]))


def _followed(table: Table) -> Iterator[_Row]:
    time, delay = watermarked(table), delay_of(table)
    names = [name for name, _ in table.columns]
    told = table.raw.get("rows") or [None] * len(table.changes)
    greatest: datetime.datetime | None = None
    for (kind, values), row in zip(table.changes, told, strict=True):
        if time is not None and values[names.index(time)] is not None:
            at = parse_value(values[names.index(time)], parse_type("TIMESTAMP_LTZ(3)"))
            greatest = at if greatest is None else max(greatest, at)
        watermark = None if greatest is None else greatest - delay
        yield _Row(table.name, kind, values, watermark, row.get("phase") if isinstance(row, dict) else None)


class _Feed:
    """The files of one table, a micro-batch each."""

    def __init__(self, environment: Environment, table: Table, folder: Path) -> None:
        self._spark, self._table, self._folder = environment.spark, table, folder
        self._types = [parse_type(type_) for _, type_ in table.columns]
        self._time = watermarked(table)
        columns = [f"`{name}` {type_.ddl}" for (name, _), type_ in zip(table.columns, self._types, strict=True)]
        self._schema = schema_of([*columns, f"{ROW_KIND} string", f"{WATERMARK_COLUMN} timestamp"])
        folder.mkdir()

    def frame(self) -> DataFrame:
        source = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        frame = source.parquet(str(self._folder))
        if self._time is not None:
            frame = guarded(frame.withWatermark(WATERMARK_COLUMN, "0 seconds"), WATERMARK_COLUMN)
        columns = [self._column(name) for name, _ in self._table.columns]
        return frame.where(F.col(WATERMARK_COLUMN).isNull()).select(*columns, *self._kind())

    def _column(self, name: str) -> Any:
        column = F.col(f"`{name}`")
        if name != self._time:
            return column
        return column.cast(TimestampType()).alias(name, metadata={WATERMARK: 0})

    def _kind(self) -> list[Any]:
        mode = changelog_mode(str(self._table.raw.get("changelog_mode") or ""))
        if not self._table.changelog and (mode is None or mode.is_insert_only):
            return []
        if mode is None:
            mode = ChangelogMode.of(*dict.fromkeys(kind for kind, _ in self._table.changes))
        return [F.col(ROW_KIND).alias(ROW_KIND, metadata=mode_metadata(mode, self._table.primary_key))]

    def write(self, burst: Sequence[_Row]) -> None:
        """Writes a micro-batch with rows and the watermarks after them, or without any."""
        rows: list[tuple[Any, ...]] = []
        for row in burst:
            values = [parse_value(value, type_) for value, type_ in zip(row.values, self._types, strict=True)]
            rows.append((*values, row.kind, None))
            if row.watermark is not None and self._time is not None:
                rows.append(self._mark(row.watermark))
        self._file(rows)

    def end(self) -> None:
        """Writes the watermark at the end of the input, and the micro-batch that applies it."""
        if self._time is not None:
            self._file([self._mark(END.replace(tzinfo=datetime.UTC))])
            self._file([])

    def _mark(self, at: datetime.datetime) -> tuple[Any, ...]:
        return (*[None] * len(self._types), "+I", at)

    def _file(self, rows: Sequence[tuple[Any, ...]]) -> None:
        write_file(self._folder, self._spark.createDataFrame(list(rows), self._schema).toArrow())
