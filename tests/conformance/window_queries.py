"""Queries over windows as the cases have them: their texts, their settings, and their rows compared."""

import datetime
import re
import zoneinfo
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampNTZType

from spark_client import RemoteSession, connect
from tests.conformance.cases import Case
from tests.conformance.compare import difference
from tests.conformance.environment import Environment
from tests.conformance.report import Result

__all__ = [
    "NO_ZONE", "TIME_ZONE", "is_legacy", "is_window_query", "passed", "remote_session", "rows_differ", "statements",
    "time_zones", "view_names",
]  # fmt: skip

PLUGIN = "tests.conformance.functions.window_functions"
TIME_ZONE = "spark.sql.session.timeZone"
NO_ZONE = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
"""Flink's TIMESTAMP has no zone: what `TO_TIMESTAMP` gives, and a type of that name."""
_FUNCTION = re.compile(r"\b(TUMBLE|HOP|CUMULATE|SESSION)\s*\(", re.IGNORECASE)
_LEGACY = re.compile(r"\bGROUP\s+BY\b.*\b(TUMBLE|HOP|SESSION)\s*\((?!\s*(TABLE|DATA)\b)", re.IGNORECASE | re.DOTALL)
_VIEW = re.compile(r"^\s*CREATE\s+VIEW\s+(\w+)", re.IGNORECASE)
_RENAMED = re.compile(r"^(\w+) adds (\w+) AS (\w+) to the table", re.IGNORECASE)
_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d*?)0*$")


def is_window_query(case: Case) -> bool:
    """A query with a window function, or a list of the windows of given times; no functions in words."""
    if case.expected.raw.get("assignments"):
        return True
    return _FUNCTION.search(case.query) is not None and all(words.builtin for words in case.functions)


def is_legacy(case: Case) -> bool:
    """In the older syntax, `GROUP BY TUMBLE(rowtime, ...)`, which FLIP-145 replaces."""
    return _LEGACY.search(case.query) is not None


def statements(case: Case) -> list[str]:
    """What is to be run, the query last. Views are temporary, as the tables are they read.

    A view may stand in the notes alone: "v1 adds rowtime AS window_start to the table". The older
    syntax has its restatement as a window function beside it.
    """
    text = case.query
    if is_legacy(case) and case.raw.get("equivalent_query"):
        text = case.raw["equivalent_query"]
    texts = [*case.setup, *(part for part in text.split(";") if part.strip())]
    if (told := _RENAMED.match(str(case.raw.get("notes") or ""))) is not None:
        view, column, name = told.groups()
        texts.insert(0, f"CREATE VIEW {view} AS SELECT *, {column} AS {name} FROM {case.tables[0].name}")
    return [_VIEW.sub(r"CREATE TEMPORARY VIEW \1", each) for each in texts]


def view_names(case: Case) -> list[str]:
    """What a run leaves behind in the session."""
    views = [re.split(r"\s+", each.strip(), maxsplit=4)[3] for each in statements(case)[:-1]]
    return [*views, *(table.name for table in case.tables)]


def time_zones(case: Case) -> list[str]:
    """The time zones of the session a case is to be run in, one by one."""
    given = case.config.get("table.local-time-zone") or "UTC"
    return [given] if isinstance(given, str) else list(given)


def remote_session(environment: Environment) -> RemoteSession:
    """With the aggregates that the queries name: from the user's file, if it has them."""
    given = environment.servers.given()
    server = given if given is not None and _has_functions(environment, given.target) else None
    return connect(environment.spark, (server or environment.servers.loaded(PLUGIN)).target)


def _has_functions(environment: Environment, target: str) -> bool:
    return any(spec.name == "concat_distinct_agg" for spec in connect(environment.spark, target).functions())


def rows_differ(case: Case, expected: Sequence[Sequence[Any]], found: Sequence[Any], frame: DataFrame) -> str | None:
    """None if they are the same, by the types of the frame they are from."""
    zone = zoneinfo.ZoneInfo(frame.sparkSession.conf.get(TIME_ZONE) or "UTC")
    plain = [isinstance(field.dataType, TimestampNTZType) for field in frame.schema.fields]
    wanted = [[_expected(v, zone) if ntz else _text(v) for v, ntz in zip(row, plain, strict=True)]
              if len(row) == len(plain) else list(row) for row in expected]  # fmt: skip
    return difference(
        wanted, [[_text(value) for value in row] for row in found], ordered=case.expected.ordered, truncated=True
    )


def passed(case: Case, note: str = "") -> Result:
    """With what a reader of the report should know."""
    restated = "its restatement with a window function was run" if is_legacy(case) else ""
    return Result.passed("; ".join(part for part in (restated, note) if part))


def _expected(value: Any, zone: datetime.tzinfo) -> Any:
    """A sink's instant, of what was selected without zone, on the clock of the session."""
    if not isinstance(value, str) or not value.endswith("Z"):
        return value
    moment = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return moment.astimezone(zone).replace(tzinfo=None).isoformat()


def _text(value: Any) -> Any:
    """Texts whose spelling is free: the order of joined values, zeros at the end of a time."""
    if not isinstance(value, str):
        return value
    if (match := _MOMENT.match(value)) is not None:
        return match[1] + (f".{match[2]}" if match[2] else "")
    return "|".join(sorted(value.split("|")))
