"""Environment: the Spark session, the servers and the functions on them, which a run provides to every case."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot.errors import SqlglotError

from remote_udf.errors import RemoteUdfError
from spark_client import RemoteSession, connect
from spark_client.embedded import EmbeddedServer
from tests.conformance.binding import Binder, Bound, FileBinder, called_names
from tests.conformance.cases import Case
from tests.conformance.facts import is_applied, takes_deletes
from tests.conformance.functions.sample import SampleBinder
from tests.conformance.observation import Emitted, Failure, Observation, Run
from tests.conformance.reading import CaseFile
from tests.conformance.servers import CallCounter, Servers
from tests.conformance.spark_sql import named_columns
from udf_server.runners.calling import WrongResult

__all__ = ["REFUSALS", "Environment", "columns_of", "limited"]

QUERY_SECONDS = 100.0
"""A query that takes longer is interrupted."""
REFUSALS = (PySparkException, RemoteUdfError, SqlglotError, ValueError, NotImplementedError, WrongResult, TimeoutError)
"""What a query, a declaration or a harness raises that does not take something."""
ROW_KIND = "row_kind"
_WINDOWS = ("tumble", "hop", "cumulate", "session", "descriptor", "table", "lateral", "row", "map", "array", "interval",
            "in", "over", "values", "exists", "as", "on", "cast", "and", "or", "not", "timestamp", "decimal", "varchar",
            "by", "rollup", "cube", "sets", "from", "where", "select", "using", "filter", "array_reduce", "regexp",
            "to_changelog", "from_changelog", "tumble_start", "tumble_end", "tumble_rowtime", "hop_start", "hop_end",
            "hop_rowtime", "session_start", "session_end", "session_rowtime", "tumble_proctime", "to_timestamp_ltz",
            "proctime", "then", "when", "else", "with", "distinct", "any", "all", "is", "between", "like")  # fmt: skip


class Environment:
    """One Spark session, and the servers, for the cases of a folder."""

    def __init__(self, spark: SparkSession, folder: Path, files: Sequence[CaseFile], functions: Path | None) -> None:
        self.spark = spark
        self.servers = Servers()
        self.folder = folder
        cases = [case for file in files for case in file.cases]
        self.binder: Binder = (
            SampleBinder(folder, cases, self.servers) if functions is None else FileBinder(functions, self.servers)
        )
        self._runs = 0

    def bind(self, case: Case) -> list[Bound]:
        """The functions of a case. Raises FunctionMissing."""
        exists = self.spark.catalog.functionExists
        names = [name.lower() for name in called_names(case) if name.isidentifier()]
        known = [name for name in names if name in _WINDOWS or exists(name)]
        return self.binder.bind(case, known)

    def server(self, case: Case, bound: Sequence[Bound]) -> EmbeddedServer:
        """Returns a server with these functions. Functions that may keep state are new in every run."""
        return self.binder.server(case, bound, self._runs)

    def remote(self, case: Case, bound: Sequence[Bound]) -> RemoteSession:
        """A session with these functions."""
        return connect(self.spark, self.server(case, bound).target)

    def next_run(self) -> None:
        """Resets functions before the next run."""
        self._runs += 1

    @contextlib.contextmanager
    def settings(self, values: Mapping[str, str]) -> Iterator[None]:
        """Sets settings of the session until the block ends."""
        old = {name: self.spark.conf.get(name, None) for name in values}
        try:
            for name, value in values.items():
                self.spark.conf.set(name, value)
            yield
        finally:
            for name, before in old.items():
                if before is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, before)

    def rows(self, frame: DataFrame) -> list[tuple[Any, ...]]:
        """Returns the rows of a DataFrame. Errors pass through; the query is interrupted after QUERY_SECONDS."""
        tag = f"conformance-{threading.get_ident()}"
        self.spark.addTag(tag)
        timer = threading.Timer(QUERY_SECONDS, self.spark.interruptTag, [tag])
        timer.start()
        try:
            return [tuple(row) for row in frame.collect()]
        finally:
            timer.cancel()
            self.spark.removeTag(tag)

    def run(self, how: str, query: Callable[[], DataFrame], case: Case, bound: Sequence[Bound], **more: Any) -> Run:
        """Runs a query; returns its rows and columns, or its failure, and its number of calls and its time."""
        run = Run(how, zone=self.spark.conf.get("spark.sql.session.timeZone") or "UTC", **more)
        counter = CallCounter(self.server(case, bound)) if bound else None
        planned, started = False, time.monotonic()
        try:
            frame = query()
            planned = True
            started = time.monotonic()
            fill(run, frame, self.rows(frame))
        except REFUSALS as error:
            run.failure = Failure(str(error), not planned, type(error).__name__)
        run.elapsed_ms = (time.monotonic() - started) * 1000
        if counter is not None:
            run.calls = counter.calls().total()
            run.max_open = self.servers.most_open
            if run.failure is not None and not run.calls:
                run.failure = Failure(run.failure.message, True, run.failure.kind)
        return run

    def observation(self, case: Case, bound: Sequence[Bound]) -> Observation:
        """Returns an observation with the facts that are known before anything runs."""
        remarks = f"{case.raw.get('notes') or ''} {case.config.get('assert') or ''}"
        return Observation(
            applied=is_applied(remarks),
            takes_deletes=takes_deletes(remarks),
            named=named_columns(case.query),
            names={each.name: each.words.name for each in bound if each.name != each.words.name},
            own_messages=[each.own_message for each in bound],
            modes=case.modes,
        )

    def forget_views(self, names: Iterable[str]) -> None:
        """Drops temporary views."""
        for name in names:
            self.spark.catalog.dropTempView(name)

    def close(self) -> None:
        """Stops the servers; the caller owns the Spark session."""
        self.servers.close()


@contextlib.contextmanager
def limited(seconds: float = QUERY_SECONDS) -> Iterator[None]:
    """Raises TimeoutError within the block after this time. It has an effect in the main thread of a process only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError(f"the steps took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fill(run: Run, frame: DataFrame, rows: Sequence[tuple[Any, ...]]) -> None:
    """Stores the columns and rows of a frame; a column of kinds is stored with the rows."""
    names = list(frame.columns)
    place = names.index(ROW_KIND) if ROW_KIND in names else None
    run.has_kinds = place is not None
    run.columns = [each for at, each in enumerate(columns_of(frame)) if at != place]
    run.rows = [
        Emitted(row) if place is None else Emitted([*row[:place], *row[place + 1 :]], str(row[place])) for row in rows
    ]


def columns_of(frame: DataFrame) -> list[tuple[str, str]]:
    """Names and Spark types."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
