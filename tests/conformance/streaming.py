"""A real streaming query without a watermark: a row per micro-batch, rows in their order."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.environment import REFUSALS, Environment, fill
from tests.conformance.observation import Emitted, Failure, Run
from tests.conformance.tables import changelog_frame, table_frame

__all__ = ["DRAIN_SECONDS", "drain", "streamed", "write_file"]

DRAIN_SECONDS = 300
_LATE = re.compile("join without equality predicate is not supported")
"""What Spark has not on streams and refuses only when the query runs."""


def streamed(
    case: Case, environment: Environment, bound: Sequence[Bound], query: Callable[[], DataFrame], under: str
) -> Run | None:
    """Runs the query; the tables of the case are streams while `query` creates its frame.

    If the result of a query changes, the run has its last result. If the rows of the table have phases, the query is
    restarted between these. If the case says which rows came out before a restart, the query is restarted after each
    row until they are there. None if Spark has no streaming query of this shape.
    """
    run = Run("stream", under=under)
    later: list[Callable[[], None]] = []
    restarted = len(case.tables) == 1 and bool(case.phases) and isinstance(case.phases[0][1], list)
    restarted |= bool(case.row_phases)
    with tempfile.TemporaryDirectory(prefix="conformance-stream-") as scratch:
        for table in case.tables:
            frame = (
                changelog_frame(environment.spark, table) if table.changelog else table_frame(environment.spark, table)
            )
            source, files = _source(environment, frame, Path(scratch) / table.name)
            source.createOrReplaceTempView(f"`{table.name}`")
            later += files
        for write in () if restarted else later:
            write()
        started = time.monotonic()
        try:
            frame = query()
            if not frame.isStreaming:
                return None
            if restarted:
                _phased(case, frame, Path(scratch), later, run)
            else:
                fill(run, frame, _drained(frame, Path(scratch)))
        except AnalysisException:
            return None
        except REFUSALS as error:
            if _LATE.search(str(error)):
                return None
            run.failure = Failure(str(error), planning=False, kind=type(error).__name__)
        run.elapsed_ms = (time.monotonic() - started) * 1000
    return run


def _phased(case: Case, frame: DataFrame, scratch: Path, later: list[Callable[[], None]], run: Run) -> None:
    """Restarts the query between the phases of the rows; or after each row until the rows of the first phase are there,
    and then it reads all others."""
    emitted: list[Emitted] = []
    if told := case.row_phases:
        for phase in dict.fromkeys(told):
            for write, own in zip(later, told, strict=True):
                if own == phase:
                    write()
            fill(run, frame, drain(frame, scratch / "appended"))
            emitted += [replace(row, phase=phase) for row in run.rows or ()]
        run.rows = emitted
        return
    (first, before), *others = case.phases
    while later and len(emitted) < len(before):
        later.pop(0)()
        fill(run, frame, drain(frame, scratch / "appended"))
        emitted += [replace(row, phase=first) for row in run.rows or ()]
    for write in later:
        write()
    fill(run, frame, drain(frame, scratch / "appended"))
    run.rows = emitted + [replace(row, phase=others[0][0] if others else None) for row in run.rows or ()]


def _source(environment: Environment, frame: DataFrame, folder: Path) -> tuple[DataFrame, list[Callable[[], None]]]:
    """Returns the stream of a folder, and what writes the next file of it, for every row."""
    folder.mkdir()
    table = frame.toArrow()
    files: list[Callable[[], None]] = [
        partial(write_file, folder, table.slice(number, 1)) for number in range(len(table))
    ]
    source = environment.spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
    return source.parquet(str(folder)), files


def write_file(folder: Path, table: pa.Table) -> None:
    """Writes the next file of a folder that a stream reads."""
    number = len(list(folder.iterdir()))
    path = folder / f"{number:05}.parquet"
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    # Spark orders files by their modification time.
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(path)


def _drained(frame: DataFrame, scratch: Path) -> list[tuple[Any, ...]]:
    try:
        return drain(frame, scratch / "appended")
    except AnalysisException:
        return drain(frame, scratch / "complete", "complete")


def drain(frame: DataFrame, scratch: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    """Runs the streaming query over all available input, and returns the rows in the order of the micro-batches.

    In the mode `complete` it returns those of the last micro-batch.
    """
    rows: list[tuple[Any, ...]] = []

    def keep(batch: DataFrame, _: int) -> None:
        if mode == "complete":
            rows.clear()
        rows.extend(tuple(row) for row in batch.collect())

    writer = frame.writeStream.option("checkpointLocation", str(scratch / "checkpoint")).outputMode(mode)
    query = writer.trigger(availableNow=True).foreachBatch(keep).start()
    try:
        if not query.awaitTermination(DRAIN_SECONDS):
            raise TimeoutError(f"the stream did not end in {DRAIN_SECONDS} s")
        if (error := query.exception()) is not None:
            raise error
    finally:
        query.stop()
    return rows
