"""Window functions in SQL: plain, aggregated, joined, ranked. The text of a case goes to `remote.sql` as it is.

In batch no row is late, so what depends on that is asked of a stream; see window_streams.
"""

import re

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from remote_udf.errors import RemoteUdfError
from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.gist import says
from tests.conformance.kinds.scalar import short
from tests.conformance.report import Outcome, Result
from tests.conformance.tables import create_views
from tests.conformance.window_queries import (
    NO_ZONE,
    TIME_ZONE,
    is_legacy,
    is_window_query,
    passed,
    remote_session,
    rows_differ,
    statements,
    time_zones,
    view_names,
)

__all__ = ["claims", "run"]

_NOT_RAISED = re.compile(r"re-implementation .*should not raise", re.IGNORECASE | re.DOTALL)
_WORDS = re.compile(r"(slide|size|step|offset) (-?[\d.]+) (s|min)\b")
_UNITS = {"s": "SECOND", "min": "MINUTE"}
ORDER = {"TUMBLE": ("size",), "HOP": ("slide", "size"), "CUMULATE": ("step", "size")}


def claims(case: Case) -> bool:
    """Every query with a window function."""
    return is_window_query(case)


def run(case: Case, environment: Environment) -> Result:
    """In every time zone of the case; the first that does not pass decides."""
    result = Result.passed()
    for zone in time_zones(case):
        with environment.settings({TIME_ZONE: zone}):
            try:
                result = _run(case, environment)
            finally:
                environment.forget_views(view_names(case))
        if result.outcome is not Outcome.PASSED:
            return result
    return result


def _run(case: Case, environment: Environment) -> Result:
    if case.expected.raw.get("assignments"):
        return _assigned(case, environment)
    if case.expected.error is not None:
        return _refused(case, environment)
    if case.mode == "streaming" and (case.raw.get("watermark_sensitive") or case.tables[0].events):
        return Result.not_applicable("what it shows depends on the watermark: asked of a stream")
    return _rows(case, environment)


def _frame(case: Case, environment: Environment) -> DataFrame:
    create_views(environment.spark, case)
    remote = remote_session(environment)
    *before, query = statements(case)
    with environment.settings(NO_ZONE):
        for statement in before:
            remote.sql(statement)
        return remote.sql(query)


def _rows(case: Case, environment: Environment) -> Result:
    try:
        frame = _frame(case, environment)
        found = environment.rows(lambda: frame)
    except (PySparkException, RemoteUdfError) as error:
        return Result.failed(f"the query failed: {short(str(error))}")
    wrong = rows_differ(case, case.expected.rows or (), found, frame)
    return passed(case) if wrong is None else Result.failed(wrong)


def _refused(case: Case, environment: Environment) -> Result:
    expected = case.expected.error or ""
    if _NOT_RAISED.search(str(case.raw.get("notes") or "")):
        return Result.not_applicable(f"a limit of Flink's ({expected!r}) that does not exist here")
    if is_legacy(case):
        return Result.not_applicable("of group windows, which window functions replace, and without a restatement")
    try:
        environment.rows(lambda: _frame(case, environment))
    except (PySparkException, RemoteUdfError) as error:
        if says(expected, str(error)):
            return passed(case)
        return Result.failed(f"expected an error like {expected!r}; found: {short(str(error))}")
    return Result.failed(f"expected the error {expected!r}; the query ran")


def _assigned(case: Case, environment: Environment) -> Result:
    """`HOP slide 1 s, size 5 s, offset 0.1 s`: the windows of single times."""
    remote = remote_session(environment)
    function = case.query.split()[0]
    told = {name: f"INTERVAL '{number}' {_UNITS[unit]}" for name, number, unit in _WORDS.findall(case.query)}
    for each in case.expected.raw["assignments"]:
        lengths = [told[name] for name in ORDER[function]]
        if "offset_minutes" in each:
            lengths.append(f"INTERVAL '{each['offset_minutes']}' MINUTE")
        elif "offset" in told:
            lengths.append(told["offset"])
        frame = remote.sql(
            f"SELECT window_start, window_end FROM {function}("
            f"TABLE (SELECT TIMESTAMP_NTZ '{each['time']}' AS t), DESCRIPTOR(t), {', '.join(lengths)})"
        )
        wrong = rows_differ(case, each["windows"], environment.rows(lambda frame=frame: frame), frame)
        if wrong is not None:
            return Result.failed(f"{each['time']}: {wrong}")
    return Result.passed()
