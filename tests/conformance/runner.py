"""Runs the cases of a folder."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conformance.cases import Case, load_folder
from tests.conformance.environment import Environment, FunctionMissing
from tests.conformance.kinds import (
    aggregate,
    bundles,
    operators,
    process_queries,
    process_steps,
    scalar,
    window_streams,
    windows,
)
from tests.conformance.report import FileReport, Outcome, Result

__all__ = ["KINDS", "prepared", "run_case", "run_folder", "spark_session"]

KINDS = (scalar, aggregate, bundles, operators, process_steps, process_queries, window_streams, windows)
"""Each has `claims(case)` and `run(case, environment)`; the first that claims a case runs it."""

UNSUPPORTED = Result.not_applicable("kind not supported yet")
SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}


def run_folder(
    folder: Path, functions: Path | None = None, *, progress: Callable[[FileReport], None] = lambda report: None
) -> list[FileReport]:
    """A report per file, each handed to `progress` when it is complete."""
    files = load_folder(folder)
    reports = []
    with spark_session() as spark, prepared(spark, folder, functions) as environment:
        for file in files:
            report = FileReport(file.name)
            report.results += [(name, Result.failed(why)) for name, why in file.broken]
            report.results += [(case.id, run_case(case, environment)) for case in file.cases]
            progress(report)
            reports.append(report)
    return reports


def run_case(case: Case, environment: Environment) -> Result:
    """The outcome of one case; whatever a case breaks is its failure alone."""
    kind = next((kind for kind in KINDS if kind.claims(case)), None)
    if kind is None:
        return UNSUPPORTED
    try:
        return kind.run(case, environment)
    except FunctionMissing as missing:
        return Result(Outcome.FUNCTION_MISSING, str(missing))
    except Exception as error:
        return Result.failed(f"{type(error).__name__}: {error}")


@contextmanager
def prepared(spark: SparkSession, folder: Path, functions: Path | None = None) -> Iterator[Environment]:
    """The environment for the cases of a folder in a given session; ends the servers.

    Raises EmbeddedServerFailed if the user's file of functions cannot be loaded.
    """
    environment = Environment(spark, folder, load_folder(folder), functions)
    try:
        # A file that cannot be loaded is one error, not one per case.
        environment.servers.given()
        with environment.settings(SETTINGS):
            yield environment
    finally:
        environment.close()


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A local session with two cores and its files in a folder of its own."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers would otherwise tell of every server that stops.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        builder = SparkSession.builder.master("local[2]").appName("conformance")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": scratch,
            **SETTINGS,
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()
