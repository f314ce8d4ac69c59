"""Runs cases: observe, then judge; and judges altered expectations against the same observations."""

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conformance.binding import Bound, FunctionMissing
from tests.conformance.capabilities import Capabilities, Capability
from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described
from tests.conformance.environment import Environment
from tests.conformance.judging import judge
from tests.conformance.kinds import (
    aggregate,
    bundles,
    operators,
    process_queries,
    process_scripts,
    scalar,
    windows,
)
from tests.conformance.mutating import mutations
from tests.conformance.observation import EQUIVALENT, Failure, Observation, Run
from tests.conformance.reading import CaseFile, load_folder
from tests.conformance.report import Entry
from tests.conformance.several import joined, separate
from tests.conformance.statements import is_query, statements_of
from tests.conformance.verdict import Status, Verdict

__all__ = ["KINDS", "prepared", "run_case", "spark_session"]

KINDS = (operators, bundles, process_scripts, process_queries, scalar, aggregate, windows)
"""Each has `claims(case)` and `observe(case, environment, bound)`; the first that claims a case observes it."""

SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
_CAPABILITIES = Capabilities()


def run_case(case: Case, environment: Environment, *, mutate: bool = False) -> Entry:
    """Returns the outcome of one case; if a case causes an error, only this case fails."""
    entry = Entry(case.file, case.id)
    started = time.monotonic()
    met = _CAPABILITIES.of(case)
    try:
        verdict = joined([_verdict(each, environment, met, entry, mutate) for each in separate(case)])
    except (CaseError, FunctionMissing) as error:
        decided = Status.MALFORMED if isinstance(error, CaseError) else Status.MISSING
        verdict = Verdict(problems=[str(error)], decided=decided)
        reason = next((each.reason for each in met if each.says(str(error))), None)
        if reason is not None:
            verdict = Verdict(notes=[reason], decided=Status.NOT_APPLICABLE)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict = Verdict(problems=[f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"])
    entry.take(
        verdict, time.monotonic() - started, {name: _CAPABILITIES.why_unchecked(name) for name in verdict.unchecked}
    )
    return entry


def _verdict(case: Case, environment: Environment, met: Sequence[Capability], entry: Entry, mutate: bool) -> Verdict:
    impossible = next((each for each in met if each.needs_no_run), None)
    if impossible is not None:
        return Verdict(notes=[impossible.reason], decided=Status.NOT_APPLICABLE)
    kind = next((kind for kind in KINDS if kind.claims(case)), None)
    if kind is None:
        raise CaseError(
            "query", described(case.query), "SQL over the functions and tables of the case, or a script in steps"
        )
    scripted = kind is operators or (kind is process_scripts and process_scripts.is_service(case))
    bound: list[Bound] = [] if scripted else environment.bind(case)
    entry.bound = {each.words.name: each.origin for each in bound}
    refused = next((each.refused for each in bound if each.refused is not None), None)
    seen = kind.observe(case, environment, bound) if refused is None else _refused(case, environment, bound, refused)
    if refused is None:
        seen.runs += _equivalent(case, environment, bound)
    _CAPABILITIES.leave_out_streams(seen)
    verdict = judge(case.expectation, seen)
    stated = next((each for each in met if each.happened(seen, verdict.problems)), None)
    if stated is not None and verdict.status is not Status.PASSED:
        seen.refusal = stated.reason
        seen.contradictions = []
        return Verdict(notes=[stated.reason], decided=Status.NOT_APPLICABLE)
    if mutate and verdict.status in (Status.PASSED, Status.PARTLY):
        _mutate(case, seen, verdict, entry)
    return verdict


def _refused(case: Case, environment: Environment, bound: Sequence[Bound], error: Exception) -> Observation:
    """Observes a function whose declaration raised an error: nothing can be run."""
    seen = environment.observation(case, bound)
    seen.runs.append(Run("declaration", failure=Failure(str(error), True, type(error).__name__)))
    return seen


def _equivalent(case: Case, environment: Environment, bound: Sequence[Bound]) -> list[Run]:
    """Runs the query that a case gives as its equivalent in batch."""
    given = case.batch_equivalent
    query = given.get("query") if isinstance(given, Mapping) else given
    if not isinstance(query, str) or not is_query(query):
        return []
    told = statements_of(query, case.raw.get("setup") or (), case.functions, refused=False)
    other = replace(case, query=told.query, setup=tuple(told.setup), mode="batch")
    kind = next((kind for kind in KINDS if kind.claims(other)), None)
    runs = [] if kind is None else kind.observe(other, environment, bound).runs
    return [replace(run, under=EQUIVALENT) for run in runs if run.how == "batch"]


def _mutate(case: Case, seen: Observation, verdict: Verdict, entry: Entry) -> None:
    """Judges every altered expectation; one whose field was not checked does not count as passed."""
    unchecked = tuple(verdict.unchecked)
    for what, altered in mutations(verdict.held or case.expectation, verdict.waived):
        name = what.partition(":")[0]
        if name.startswith(unchecked) or any(each.startswith(f"{name}.") for each in unchecked):
            continue
        entry.mutations += 1
        other = judge(altered, seen)
        if other.status in (Status.PASSED, Status.PARTLY) and set(other.unchecked) <= set(unchecked):
            entry.unnoticed.append(what)


@contextmanager
def prepared(
    spark: SparkSession, folder: Path, functions: Path | None = None, files: Sequence[CaseFile] | None = None
) -> Iterator[Environment]:
    """Yields the environment for the cases of a folder in a given session; stops the servers at the end.

    Raises the errors of loading the user's file of functions.
    """
    environment = Environment(spark, folder, load_folder(folder) if files is None else files, functions)
    try:
        with environment.settings(SETTINGS):
            yield environment
    finally:
        environment.close()


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A local session with two cores and its files in a folder of its own."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Otherwise workers would log every server that stops.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        builder = SparkSession.builder.master("local[2]").appName("conformance")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
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
