"""Queries with process table functions: in batch through Spark, or row by row where watermarks make the difference.

The language of the cases advances the watermark after every row. Spark's batch has one watermark, at the end.
So cases that say how watermarks are emitted go through the harness for authors, with the tables and arguments
of the same query; its result stands in the query as a table, so that everything around the call is Spark's.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from remote_udf.errors import RemoteUdfError
from remote_udf.functions import FunctionKind
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.table_arguments import ChangelogMode
from spark_client import connect
from spark_client.base.types import spark_type
from spark_client.planning.process.inputs import inputs_of
from spark_client.sql.parsing import Text, parse
from spark_client.sql.process_functions import without_process_calls
from spark_client.sql.workspace import Workspace
from tests.conformance.cases import Case, Table
from tests.conformance.compare import difference
from tests.conformance.environment import Environment, FunctionMissing
from tests.conformance.functions.process_tables import NotBuilt, build_process_table, process_name
from tests.conformance.gist import missing_words, says
from tests.conformance.kinds import process_steps
from tests.conformance.report import Result
from tests.conformance.tables import changelog_frame, table_frame
from udf_server.tables.declaration import declare_table
from udf_server.testing import ProcessTableHarness

__all__ = ["claims", "run"]

_DELAY = re.compile(r"INTERVAL '([\d.]+)' (SECOND|HOUR|MINUTE|DAY)")
_UNITS = {"SECOND": 1.0, "MINUTE": 60.0, "HOUR": 3600.0, "DAY": 86400.0}
_PLAIN = {"t.process(f, 1)": "SELECT * FROM f(r => TABLE t, i => 1)"}
_CHAINED = re.compile(r"(\w+)\.partitionBy\((\w+)\)\.process\(f, (?:i = )?(\d+)\)")
_FROM_CALL = re.compile(r"fromCall\(f, (.*)\)")


def claims(case: Case) -> bool:
    """Queries whose functions are told with state and timers."""
    process = any("timers" in words.raw and "state" in words.raw for words in case.functions)
    return process and not process_steps.claims(case)


def run(case: Case, environment: Environment) -> Result:
    """Raises FunctionMissing."""
    try:
        return _Run(case, environment).result()
    except NotBuilt as error:
        raise FunctionMissing(str(error)) from error
    finally:
        environment.forget_views(table.name for table in case.tables)


_JAVA = "a declaration that only Java has: a method of type inference that switches system arguments off"
_NOT_OURS = {
    "plan-error-disable-system-args-user": _JAVA,
    "plan-error-on-time-on-disabled": _JAVA,
    "signature-error-overloaded-eval": "Python has no overloaded methods",
    "plan-error-table-arg-in-plain-udtf": "only process table functions can be declared with a table",
    "plan-error-upsert-into-retract-sink": "sinks of Spark do not ask for a kind of changelog",
    "plan-error-missing-uid": "every name that a function may have here qualifies as a unique identifier",
    "plan-uid-merge-fan-out": "Spark has no statement sets: two INSERTs are two plans",
    "process-notify-stateful-sets-restore": "NOTIFY_STATEFUL_SETS is in no release of Flink",
    "docs-shopping-cart": "a scenario: its rows are not what Flink shows, and its query lacks a value",
    "process-variant": "Spark's VARIANT cannot be sent to remote functions",
    "process-variant-table-arg": "Spark's VARIANT cannot be sent to remote functions",
}
_TABLE = re.compile(r"(\w+)\s*=>\s*TABLE\s+(\w+)", re.IGNORECASE)
_BUILT_IN = {"TO_CHANGELOG": "to_changelog", "FROM_CHANGELOG": "from_changelog"}


_Driven = list[tuple[tuple[Any, ...] | None, Any]]
"""A row, or the watermark that comes next."""
_Event = tuple[str, tuple[Any, ...] | None, RowKind, Any]


class _Run:
    def __init__(self, case: Case, environment: Environment) -> None:
        self._case = case
        self._environment = environment
        self._spark = environment.spark
        self._built_in = {name for name in _BUILT_IN if any(name in each.name for each in case.functions)}
        self._driven_before: list[_Driven] = []
        self._steps: _Driven = []
        self._stepwise = not self._built_in and self._emits_watermarks()

    def _emits_watermarks(self) -> bool:
        case = self._case
        return "watermark_emission" in case.config or any(table.raw.get("watermark") for table in case.tables)

    def result(self) -> Result:
        case = self._case
        if case.id in _NOT_OURS:
            return Result.not_applicable(_NOT_OURS[case.id])
        wanted = case.expected.error
        try:
            frame = self._frame()
            rows = [tuple(row) for row in frame.collect()]
        except NotBuilt:
            raise
        except (RemoteUdfError, PySparkException, ValueError, NotImplementedError) as error:
            if wanted is not None and says(
                re.sub(r"\s*\([^)]*(?:error|operator|wording)[^)]*\)", "", wanted), str(error)
            ):
                return Result.passed()
            if wanted is None:
                raise
            return Result.failed(f"error {error}, expected {wanted}; missing {missing_words(wanted, str(error))}")
        if wanted is not None:
            return Result.failed(f"no error, expected: {wanted}")
        return self._compared(frame, rows)

    def _compared(self, frame: DataFrame, rows: Sequence[tuple[Any, ...]]) -> Result:
        case = self._case
        names = [name for name in frame.columns if name != ROW_KIND]
        expected = [name for name, _ in case.expected.columns]
        if (expected and [_named(case, *each) for each in zip(expected, names, strict=False)] != names) or (
            expected and len(expected) != len(names)
        ):
            return Result.failed(f"columns {expected}, found {names}")
        told = case.expected.raw.get("rows")
        if told is None:
            return Result.passed()
        wanted = [(row["kind"], *map(_nullable, row["values"])) for row in told]
        if ROW_KIND in frame.columns:
            found = [(row[-1], *row[:-1]) for row in rows]
        else:
            found = [("+I", *row) for row in rows]
        wrong = difference(wanted, found, ordered=case.expected.ordered)
        return Result.passed() if wrong is None else Result.failed(wrong)

    def _frame(self) -> DataFrame:
        case, spark = self._case, self._spark
        for position, words in enumerate(case.functions):
            # What is wrong with a declaration is found here, not on the server.
            if not self._built_in:
                declare_table(build_process_table(words, process_name(case, position)))
        for table in case.tables:
            if table.columns:
                frame = changelog_frame(spark, table) if table.changelog else table_frame(spark, table)
                frame.createOrReplaceTempView(f"`{table.name}`")
            elif table.raw.get("materialised_rows"):
                self._materialised(table)
            elif table.raw.get("view"):
                self._updating(table)
        text = Text(_spark_sql(case.query), None, {})
        text, functions = without_process_calls(text, _Names(case), self._process, self._spec_of)
        if functions is None:
            raise ValueError(f"no call in {case.query}")
        workspace = Workspace(spark, text)
        tree = functions.rewritten(workspace, parse(text))
        return workspace.run(tree)

    def _updating(self, table: Table) -> None:
        """A view whose rows are updated."""
        columns = "'Bob' AS name, CAST(1 AS BIGINT) AS count, '+I' AS row_kind"
        self._spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{table.name}` AS SELECT {columns}")

    def _materialised(self, table: Table) -> None:
        """A view over windows, with the rows it has in the end: Spark's own windows are other cases' business."""
        source = next(each for each in self._case.tables if each.columns)
        types = dict(source.columns)
        rows = [row["values"] for row in table.raw["materialised_rows"]]
        names = re.split(
            r",\s*", re.sub(r"COUNT\(\*\) AS ", "", str(table.raw["view"]).split("SELECT ")[1].split(" FROM")[0])
        )
        columns = tuple((name, types.get(name, "BIGINT" if name == "c" else "TIMESTAMP_LTZ(3)")) for name in names)
        made = Table(table.name, columns, tuple(("+I", row) for row in rows))
        table_frame(self._spark, made).createOrReplaceTempView(f"`{table.name}`")

    def _remote(self) -> Any:
        return connect(self._spark, self._environment.servers.built().target)

    def _spec_of(self, name: str) -> Any:
        if self._built_in:
            wanted = _BUILT_IN[name.upper()]
            return next(spec for spec in self._remote().functions() if spec.name == wanted)
        names = [each.name for each in self._case.functions]
        position = int(name[1:]) - 1 if re.fullmatch(r"f\d", name) else 0
        if name in names:
            position = names.index(name)
        wanted = process_name(self._case, position)
        return next(spec for spec in self._remote().functions() if spec.name == wanted)

    def _process(self, name: str, tables: Mapping[str, DataFrame], **call: Any) -> DataFrame:
        if not self._stepwise:
            modes, keys = self._changes()
            modes = {argument: modes.get(argument) for argument in tables}
            return self._remote().process(name, tables, changelog_mode=modes, upsert_key=keys, **call)
        return self._driven(name, tables, **call)

    def _changes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The changelog mode of each table that says one, and its key, as Flink's catalog has them."""
        modes: dict[str, Any] = {}
        keys: dict[str, Any] = {}
        tables = {table.name: table for table in self._case.tables}
        for argument, name in _TABLE.findall(_spark_sql(self._case.query)):
            told = str(tables[name].raw.get("changelog_mode", "")) if name in tables else ""
            if told:
                kinds = re.findall(r"[+-][IUD]", told)
                modes[argument] = ChangelogMode.of(*kinds, key_only_deletes="key" in told.partition("}")[2])
                keys[argument] = tables[name].primary_key
        return modes, keys

    def _driven(
        self, name: str, tables: Mapping[str, DataFrame], *, partition_by: Any, order_by: Any, on_time: Any, uid: Any,
        **scalars: Any,
    ) -> DataFrame:  # fmt: skip
        """Row by row, the watermark after each, as the cases say."""
        position = next(
            i for i in range(len(self._case.functions)) if process_name(self._case, i) == name.partition("@")[0]
        )
        kind = build_process_table(self._case.functions[position], process_name(self._case, position))
        spec = declare_table(kind).spec
        inputs = inputs_of(spec, tables, partition_by=partition_by, order_by=order_by, changelog_mode=None)
        harness = ProcessTableHarness(
            kind, {each: given.given(each) for each, given in inputs.items()}, on_time=list(on_time), **scalars
        )
        for argument, row, kind_of, watermark in self._events(tables):
            if row is not None:
                harness.row(argument, row, kind_of)
            if watermark is not None:
                harness.watermark(watermark, argument)
            self._noted(harness)
        harness.end_of_input()
        self._noted(harness)
        schema = ", ".join(f"`{field.name}` {spark_type(field.type).simpleString()}" for field in harness.columns)
        rows = [tuple(row) for row in harness.output]
        self._driven_before.append(self._steps)
        self._steps = []
        return self._spark.createDataFrame(rows, schema).coalesce(1)

    def _noted(self, harness: ProcessTableHarness) -> None:
        """What a call emitted, and the watermark behind it, for a call that takes its result."""
        for row in harness.take():
            self._steps.append((tuple(row), None))
        self._steps.append((None, harness.current_watermark))

    def _events(self, tables: Mapping[str, DataFrame]) -> Iterator[_Event]:
        """Rows of all tables by time, each with the watermark after it. What another call emitted has that call's."""
        delay = self._delay()
        greatest: dict[str, datetime.datetime] = {}
        merged = []
        for number, (argument, frame) in enumerate(tables.items()):
            column = next((each for each in frame.columns if each in ("ts", "rowtime")), None)
            rows = frame.toArrow().to_pylist()
            chained = self._emitted([tuple(row.values()) for row in rows])
            if chained is not None:
                yield from ((argument, row, RowKind.INSERT, watermark) for row, watermark in chained)
                continue
            for place, row in enumerate(rows):
                time = row[column].timestamp() if column is not None and len(tables) > 1 else 0
                merged.append((time, place if column is None else 0, number, place, argument, column, row))
        for *_, argument, column, row in sorted(merged, key=lambda each: each[:4]):
            kind_of = row.pop(ROW_KIND, RowKind.INSERT)
            watermark = None
            if column is not None:
                greatest[argument] = max(row[column], greatest.get(argument, row[column]))
                watermark = greatest[argument] - delay
            yield argument, tuple(row.values()), kind_of, watermark

    def _emitted(self, rows: Sequence[tuple[Any, ...]]) -> _Driven | None:
        """The steps of the call whose result these rows are."""
        for steps in self._driven_before:
            if [row for row, _ in steps if row is not None] == list(rows) and rows:
                return steps
        return None

    def _delay(self) -> datetime.timedelta:
        told = next((str(table.raw["watermark"]) for table in self._case.tables if table.raw.get("watermark")), "")
        match = _DELAY.search(told)
        return datetime.timedelta(seconds=float(match[1]) * _UNITS[match[2]]) if match else datetime.timedelta()


def _named(case: Case, expected: str, found: str) -> str:
    """The expected name; what the query does not name is named by the table that Flink's test inserts into."""
    known = f"{case.query} {[column for table in case.tables for column in table.columns]}"
    return found if found in case.query and not re.search(rf"\b{re.escape(expected)}\b", known) else expected


def _nullable(value: Any) -> Any:
    """Columns of Spark's views may be null, and text has no length."""
    if not isinstance(value, str):
        return value
    return re.sub(r"VARCHAR\(\d+\)", "STRING", value).replace(" NOT NULL", "")


class _Names:
    """The functions of one case."""

    def __init__(self, case: Case) -> None:
        self._names = {each.name for each in case.functions}
        self._names_of_built_in = {name for name in _BUILT_IN if any(name in each for each in self._names)}

    def kind(self, name: str) -> FunctionKind | None:
        if name.upper() in self._names_of_built_in:
            return FunctionKind.PROCESS
        ours = re.fullmatch(r"f\d?\*?", name) or name in self._names or name == "Greeting"
        return FunctionKind.PROCESS if ours else None


def _spark_sql(query: str) -> str:
    """Calls of the Table API as SQL, and what Spark spells otherwise."""
    query = _PLAIN.get(query, query)
    if match := re.fullmatch(r"(\w+)\.(to|from)Changelog\(\)", query):
        query = f"SELECT * FROM {match[2].upper()}_CHANGELOG(input => TABLE {match[1]})"
    if match := _CHAINED.fullmatch(query):
        query = f"SELECT * FROM f(r => TABLE {match[1]} PARTITION BY {match[2]}, i => {match[3]})"
    if match := _FROM_CALL.fullmatch(query):
        arguments = re.sub(r"(\w+) = (\w+) partitioned by (\w+)", r"\1 => TABLE \2 PARTITION BY \3", match[1])
        arguments = re.sub(r"ordered by (.*?), on_time", r"ORDER BY (\1), on_time", arguments)
        arguments = re.sub(r"(\w+) = ", r"\1 => ", arguments)
        query = f"SELECT * FROM f({arguments})"
    query = re.sub(r"MAP\[(.*?)\]", r"map(\1)", query)
    query = re.sub(r"\bROW\(", "struct(", query)
    return re.sub(r"PARSE_JSON\(", "parse_json(", query)
