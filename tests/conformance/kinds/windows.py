"""Window functions in SQL: plain, aggregated, joined, ranked. `remote.sql` gets the text of a case unchanged."""

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from tests.conformance.arrival import is_averaged
from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.kinds import window_streams
from tests.conformance.observation import Observation, Run
from tests.conformance.tables import create_views
from tests.conformance.window_feed import moment, time_column
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

_WORDS = re.compile(r"\b(slide|size|step|offset|gap) (?:of )?(-?[\d.]+) ?(ms|s|min|h|d)[a-z]*\b", re.IGNORECASE)
_FIELD = re.compile(r"(slide|size|step|offset|gap)_(ms|s|min|h|d)[a-z]*")
_UNITS = {"ms": "SECOND", "s": "SECOND", "min": "MINUTE", "h": "HOUR", "d": "DAY"}
ORDER = {"TUMBLE": ("size",), "HOP": ("slide", "size"), "CUMULATE": ("step", "size"), "SESSION": ("gap",)}


def claims(case: Case) -> bool:
    """Whether the query has a window function."""
    return is_window_query(case)


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
    if case.expected.get("assignments"):
        assigned = _assigned(case, environment, bound)
        seen.found["expected.assignments"] = assigned
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


def _assigned(case: Case, environment: Environment, bound: Sequence[Bound]) -> list[dict[str, Any]]:
    """Computes the windows of given times, of each alone or of several whose sessions merge.

    `HOP slide 1 s, size 5 s, offset 0.1 s` says the lengths of all; `offset_minutes` beside a time is that of one.
    """
    remote = environment.remote(case, bound)
    function = case.query.split()[0].upper()
    told = {name.lower(): _interval(number, unit.lower()) for name, number, unit in _WORDS.findall(case.query)}
    found = []
    for each in case.expected["assignments"]:
        own = {match[1]: _interval(each[key], match[2]) for key in each if (match := _FIELD.fullmatch(key))}
        lengths = {**told, **own}
        names = [*ORDER[function], *(["offset"] if "offset" in lengths else [])]
        times = each["times"] if "times" in each else [each["time"]]
        rows = " UNION ALL ".join(f"SELECT {_literal(time)} AS t" for time in times)
        frame = remote.sql(
            "SELECT DISTINCT window_start, window_end FROM (SELECT window_start, window_end FROM "
            f"{function}(TABLE ({rows}), DESCRIPTOR(t), {', '.join(lengths[name] for name in names)})) AS w"
        )
        windows = sorted(environment.rows(frame))
        found.append({"windows": [[_written(value) for value in row] for row in windows]})
    return found


def _literal(time: str) -> str:
    return f"TIMESTAMP_LTZ '{time}'" if time.endswith("Z") else f"TIMESTAMP_NTZ '{time}'"


def _interval(number: Any, unit: str) -> str:
    length = float(number) / 1000 if unit == "ms" else number
    return f"INTERVAL '{length}' {_UNITS[unit]}"


def _written(at: Any) -> str:
    text = at.isoformat(timespec="milliseconds")
    assert moment(text) == at
    return str(text.removesuffix(".000"))
