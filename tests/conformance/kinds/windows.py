"""Window functions in SQL: plain, aggregated, joined, ranked. `remote.sql` gets the text of a case unchanged."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from tests.conformance.arrival import is_averaged
from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.kinds import window_assignments, window_streams
from tests.conformance.observation import Observation, Run
from tests.conformance.tables import create_views
from tests.conformance.window_feed import time_column
from tests.conformance.window_queries import (
    NO_ZONE,
    TIME_ZONE,
    is_legacy,
    is_window_query,
    statements,
    time_zones,
    view_names,
)

__all__ = ["claims", "observe"]


def claims(case: Case) -> bool:
    """Whether the query has a window function, or there is none and the case lists windows."""
    return is_window_query(case) or window_assignments.claims(case)


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs in batch, as a stream or both, as the case requires, in every time zone of the case."""
    seen = environment.observation(case, bound)
    seen.truncated = is_averaged(case.query)
    seen.starred = "column"
    if is_legacy(case) and case.raw.get("equivalent_query"):
        seen.notes.append("its restatement with a window function was run")
    for zone in time_zones(case):
        with environment.settings({TIME_ZONE: zone, "spark.sql.shuffle.partitions": "1"}):
            try:
                _observe(case, environment, bound, seen)
            finally:
                environment.forget_views(view_names(case))
    return seen


def _observe(case: Case, environment: Environment, bound: Sequence[Bound], seen: Observation) -> None:
    if window_assignments.claims(case):
        seen.found |= window_assignments.found(case, environment, bound)
        return
    if case.error is not None or "stream" not in case.modes or "batch" in case.modes:
        seen.runs.append(_batch(case, environment, bound))
    if case.error is None and "stream" in case.modes:
        environment.forget_views(view_names(case))
        seen.runs.append(window_streams.run(case, environment, bound))
    if "null_time_rows_dropped" in case.expected:
        seen.null_times = sum(_has_no_time(table) for table in case.tables)


def _batch(case: Case, environment: Environment, bound: Sequence[Bound]) -> Run:
    def frame() -> DataFrame:
        create_views(environment.spark, case)
        remote = environment.remote(case, bound)
        *before, query = statements(case, bound)
        for statement in before:
            remote.sql(statement)
        return remote.sql(query)

    with environment.settings(NO_ZONE):
        run = environment.run("batch", frame, case, bound)
    run.calls = run.max_open = None
    return run


def _has_no_time(table: Any) -> int:
    place = [name for name, _ in table.columns].index(time_column(table))
    return sum(values[place] is None for _, values in table.changes)
