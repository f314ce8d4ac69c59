"""Queries with process table functions, through `remote.sql`.

If a case has explicit watermarks or restarts, its rows pass through the harness for authors one by one, with the
tables and arguments that `remote.sql` reads from the query. The result replaces the call as a table, so that
Spark runs everything around the call. Columns and errors are those of the query as a user runs it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remote_udf.row_kinds import ChangelogMode
from remote_udf.table_arguments import ArgumentTrait
from spark_client.base.changelogs import mode_metadata, mode_of
from spark_client.session import RemoteSession
from tests.conformance.binding import Bound, is_process
from tests.conformance.cases import Case, Table
from tests.conformance.environment import REFUSALS, Environment, columns_of, fill
from tests.conformance.flink_tables import changelog_mode, process_sql, run_texts
from tests.conformance.kinds import process_streams
from tests.conformance.kinds.process_driving import Driving, marked
from tests.conformance.observation import Failure, Observation, Run
from tests.conformance.running import MOST_ROWS, leading_keys, running_changelog
from tests.conformance.spark_sql import parse
from tests.conformance.statements import created_view
from tests.conformance.tables import ROW_KIND, changelog_frame, read_rows, table_frame

__all__ = ["claims", "observe"]

_ASIDE = re.compile(r"\s*\([^()]*\bupdat[^()]*\)\s*$", re.IGNORECASE)
"""What a view's text says about the view."""
_PROJECTION = re.compile(
    r"(SELECT\s+(?!DISTINCT\b)[\w`.,\s]+?)\s+FROM\s+(?:TABLE\s*\(\s*)?(`[^`]+`|\w+)\s*\((?!.*\b(?:JOIN|GROUP|UNION)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Columns of the rows of one call."""
_DERIVED = re.compile(r"\bGROUP(?:ED)?\s+BY\s+(\w+(?:\s*,\s*\w+)*)", re.IGNORECASE)
"""The key in the query that a table is derived from, or in words about it."""


def claims(case: Case) -> bool:
    """Whether it is a query whose functions have tables, state or timers."""
    return any(is_process(words) for words in case.functions) and not case.raw.get("steps")


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs the query once, by `remote.sql` alone or through the harness."""
    case = replace(case, tables=tuple(_encoded(table, case, bound) for table in case.tables))
    seen = environment.observation(case, bound)
    texts, names = process_sql(case, bound, environment.spark.catalog.functionExists)
    texts = _with_kinds(texts, bound)
    seen.names = {**seen.names, **names}
    environment.next_run()
    try:
        _create_views(case, environment, bound)
        run = _driven(case, environment, bound, texts) if _is_driven(case) else None
        if run is None:
            run = environment.run("batch", lambda: run_texts(environment.remote(case, bound), texts), case, bound)
            run.calls = run.max_open = None
        seen.runs.append(run)
        replaced: Sequence[str] = ()
        if run.failure is None and (case.expectation.get("expected_fact") or run.has_kinds):
            mode, key = mode_of(run_texts(environment.remote(case, bound), texts))
            seen.found["changelog mode"] = [str(kind) for kind in mode.kinds]
            replaced = key if mode.is_upsert else ()
        _stream(case, environment, bound, texts, seen)
        for each in seen.runs:
            if replaced and each.columns is not None:
                columns = [name for name, _ in each.columns]
                each.upsert_key = [columns.index(name) for name in replaced]
    finally:
        environment.forget_views(table.name for table in case.tables)
        environment.forget_views(name for each in case.setup if (name := created_view(each)))
    return seen


def _with_kinds(texts: Sequence[str], bound: Sequence[Bound]) -> list[str]:
    """Returns the texts. In the language of the cases the kind of a change passes a projection; here it is a column."""
    processes = [each.spec.process for each in bound if each.spec is not None and each.spec.process is not None]
    *before, query = texts
    match = _PROJECTION.match(query)
    changes = match is not None and match[2] == "from_changelog"
    if match is None or not (changes or any(not each.changelog_mode.is_insert_only for each in processes)):
        return list(texts)
    return [*before, f"{match[1]}, {ROW_KIND}{query[match.end(1) :]}"]


def _stream(
    case: Case, environment: Environment, bound: Sequence[Bound], texts: Sequence[str], seen: Observation
) -> None:
    """Runs the case as a stream as well, if it expects rows."""
    if case.error is not None or case.expectation.get("expected_fact") or seen.runs[-1].failure is not None:
        return
    why = process_streams.not_a_stream(case, bound)
    run = None
    if not why:
        run = process_streams.run(case, environment, bound, texts)
        why = "Spark has no streaming query of this shape"
    if run is not None:
        seen.runs.append(run)
    else:
        seen.notes.append(f"not run as a stream: {why}")


def _is_driven(case: Case) -> bool:
    """Whether the output depends on the times of watermarks, or on a restart."""
    timed = "watermark_emission" in case.config or any(table.raw.get("watermark") for table in case.tables)
    return case.error is None and not case.expectation.get("expected_fact") and (timed or "restore" in case.config)


def _driven(case: Case, environment: Environment, bound: Sequence[Bound], texts: Sequence[str]) -> Run | None:
    """Returns None if only functions of the project are called, which the unchanged query shows as well."""
    functions = {each.key: each for each in bound}
    if not functions:
        return None
    run = Run("harness")
    try:
        real = run_texts(environment.remote(case, bound), texts)
        driving = Driving(case, environment.spark, functions)
        # The query is read and planned as usual; only the rows of its calls come from the harness. A session gives its
        # method to what plans SQL when it is created.
        with mock.patch.object(RemoteSession, "_process", driving.process):
            frame = run_texts(environment.remote(case, bound), texts)
        fill(run, frame, environment.rows(frame))
        run.columns = [each for each in columns_of(real) if each[0] != ROW_KIND]
        run.rows = driving.phased(run.rows or ())
    except REFUSALS as error:
        run.failure = Failure(str(error), planning=False, kind=type(error).__name__)
    return run


def _encoded(table: Table, case: Case, bound: Sequence[Bound]) -> Table:
    """Returns a changelog that a query with GROUP BY gives with its mode and key, as the function is passed it."""
    derived = _DERIVED.search(str(table.raw.get("derived_from") or ""))
    rows = table.raw.get("rows") or ()
    if derived is None or not table.changelog or table.raw.get("changelog_mode") or len(rows) != len(table.changes):
        return table
    key = tuple(re.findall(r"\w+", derived[1]))
    left_out = "-U" if _takes_upserts(table.name, key, case, bound) else None
    kept = [(change, row) for change, row in zip(table.changes, rows, strict=True) if change[0] != left_out]
    mode = ",".join(dict.fromkeys(kind for (kind, _), _ in kept))
    raw = {**table.raw, "rows": [row for _, row in kept], "changelog_mode": mode}
    return replace(table, changes=tuple(change for change, _ in kept), primary_key=key, raw=raw)


def _create_views(case: Case, environment: Environment, bound: Sequence[Bound]) -> None:
    spark = environment.spark
    for table in case.tables:
        if table.columns:
            marked(_frame(spark, table), table).createOrReplaceTempView(f"`{table.name}`")
    remote = environment.remote(case, bound)
    for table in case.tables:
        if not table.columns and table.view:
            _view(remote.sql, table, case, bound, spark).createOrReplaceTempView(f"`{table.name}`")


def _frame(spark: SparkSession, table: Table) -> DataFrame:
    """Returns a frame; a changelog declares its kinds and its key, as a catalog would, even if all its rows are +I."""
    mode = changelog_mode(str(table.raw.get("changelog_mode") or ""))
    if not table.changelog and (mode is None or mode.is_insert_only):
        return table_frame(spark, table)
    frame = changelog_frame(spark, table)
    return frame if mode is None else _with_mode(frame, mode, table.primary_key)


def _with_mode(frame: DataFrame, mode: ChangelogMode, key: Sequence[str]) -> DataFrame:
    names = [name for name in frame.columns if name != ROW_KIND]
    kind = F.col(ROW_KIND).alias(ROW_KIND, metadata=mode_metadata(mode, key))
    return frame.select(*(F.col(f"`{name}`") for name in names), kind).coalesce(1)


def _view(
    sql: Callable[[str], DataFrame], table: Table, case: Case, bound: Sequence[Bound], spark: SparkSession
) -> DataFrame:
    """Creates a view with the rows of the case, or with the changes of its query as the rows of its table arrive."""
    told = replace(case, query=_ASIDE.sub("", table.view), setup=())
    (text,), _ = process_sql(told, bound, spark.catalog.functionExists)
    frame = sql(text)
    rows = table.raw.get("materialised_rows")
    if rows:
        return spark.createDataFrame(read_rows([row["values"] for row in rows], frame.schema), frame.schema).coalesce(1)
    if "GROUP BY" not in text.upper() or "WINDOW_START" in text.upper():
        return frame
    keys = leading_keys(parse(text))
    base = next((each for each in case.tables if re.search(rf"\bFROM\s+`?{each.name}\b", text, re.IGNORECASE)), None)
    if not keys or base is None or base.changelog or len(base.changes) > MOST_ROWS:
        return frame.withColumn(ROW_KIND, F.lit("+I"))
    changes = running_changelog(spark, base, lambda: sql(text), keys)
    key = changes.columns[:keys]
    if _takes_upserts(table.name, key, case, bound):
        return _with_mode(changes.where(f"{ROW_KIND} <> '-U'"), ChangelogMode.of("+I", "+U"), key)
    return _with_mode(changes, ChangelogMode.of("+I", "-U", "+U"), key)


def _takes_upserts(view: str, key: Sequence[str], case: Case, bound: Sequence[Bound]) -> bool:
    """Whether a view is passed by its key, and to a function that does not need the rows that an update replaces."""
    passed = re.search(rf"\bTABLE\s+`?{view}`?\s+PARTITION\s+BY\s+(\([^)]*\)|\w+)", case.query, re.IGNORECASE)
    told = re.findall(r"\w+", passed[1]) if passed is not None else []
    tables = [each for one in bound if one.spec and one.spec.process for each in one.spec.process.tables]
    return sorted(told) == sorted(key) and not any(each.has(ArgumentTrait.REQUIRE_UPDATE_BEFORE) for each in tables)
