"""Queries over scalar functions and table functions: async_scalar and async_table cases."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import DataType
from sqlglot.errors import SqlglotError

from remote_udf.errors import RemoteUdfError
from remote_udf.types import alternatives, spelled
from spark_client.base.types import spark_type
from tests.conformance.cases import Case
from tests.conformance.compare import difference
from tests.conformance.environment import Chosen, Environment
from tests.conformance.flink_options import session_settings
from tests.conformance.functions.building import Built, scalar_kinds
from tests.conformance.gist import missing_words, says
from tests.conformance.kinds.plans import allowance, rows_by_unit
from tests.conformance.report import Result
from tests.conformance.servers import CallCounter
from tests.conformance.spark_sql import Target, created_view, parse, to_spark
from tests.conformance.tables import create_views

__all__ = ["LIMIT", "NO_QUERY_OF_OURS", "QUERY", "claims", "run", "short", "target_of"]

QUERY = re.compile(r"\s*(SELECT\b|WITH\b|VALUES\b|\()", re.IGNORECASE)
NO_QUERY_OF_OURS = re.compile(
    r"\b(TUMBLE|HOP|CUMULATE|SESSION|DESCRIPTOR)\s*\(|\(\s*TABLE\s+\w|=>\s*TABLE\b", re.IGNORECASE
)
LIMIT = re.compile(r"\b(not|n't|un)\s?(yet )?support|currently", re.IGNORECASE)
_OWN_ERROR = re.compile(r"\b(function's own|own|original|user's) (error|exception|message)\b", re.IGNORECASE)

NO_DERIVED_FILTERS = {"spark.sql.constraintPropagation.enabled": "false"}

Rows = list[tuple[Any, ...]]


def claims(case: Case) -> bool:
    """A query whose functions, but for built-in ones, are scalar or table functions."""
    return (
        all(words.builtin or words.kind in scalar_kinds for words in case.functions)
        and case.expected.kind in ("rows", "changelog", "error", "plan")
        and not case.raw.get("steps")
        and QUERY.match(case.query) is not None
        and NO_QUERY_OF_OURS.search(case.query) is None
    )


def run(case: Case, environment: Environment) -> Result:
    """Under every variant of the configuration; the first that does not pass decides. Raises FunctionMissing."""
    result = Result.passed()
    for variant in case.variants:
        chosen = environment.choose(case)
        config = {**case.config, **variant}
        try:
            with environment.settings(session_settings(config)):
                result = _Run(case, environment, chosen).result()
        finally:
            environment.forget_views([table.name for table in case.tables])
            environment.forget_views(name for each in case.setup if (name := created_view(each)))
        if result.outcome != "passed":
            return Result(result.outcome, f"{result.reason} (with {dict(variant)})" if variant else result.reason)
    return result


class _Run:
    """One run of a case, its tables and functions in place."""

    def __init__(self, case: Case, environment: Environment, chosen: Sequence[Chosen]) -> None:
        self._case = case
        self._environment = environment
        self._chosen = chosen
        self._calls = 0
        create_views(environment.spark, case, sampled=case.expected.kind == "plan")

    def result(self) -> Result:
        rows, error = self._collect()
        expected = self._case.expected
        if expected.error is not None:
            return self._without_error(rows) if rows is not None else self._with_error(error)
        if rows is None:
            return Result.failed(f"the query failed: {short(error)}")
        return self._as_planned(rows) if expected.kind == "plan" else self._with_rows(rows)

    def _collect(self) -> tuple[Rows | None, str]:
        """The rows, or None and the error. Counts the calls."""
        servers = {each.server.target: each.server for each in self._chosen}
        counters = [CallCounter(server) for server in servers.values()]
        try:
            self._environment.register(self._chosen)
            for statement in self._case.setup:
                self._environment.collect(self._sql(statement))
            return self._environment.collect(self._sql(self._case.query)), ""
        except (PySparkException, RemoteUdfError, SqlglotError) as raised:
            return None, str(raised)
        finally:
            self._calls = sum(counter.calls().total() for counter in counters)

    def _sql(self, query: str) -> str:
        return to_spark(query, self._named, inlined=self._inlined())

    def _named(self, name: str, arguments: int) -> Target | None:
        return target_of(self._chosen, name, arguments)

    def _inlined(self) -> frozenset[str]:
        return frozenset(
            each.words.name.lower()
            for each in self._chosen
            if spark_type(each.spec.result).simpleString().startswith("array<struct")
        )

    def _with_rows(self, rows: Rows) -> Result:
        expected = self._case.expected
        found = difference(expected.rows or (), rows, ordered=expected.ordered, truncated=self._truncated)
        if found is not None:
            return Result.failed(found)
        wrong = self._wrong_invocations()
        if wrong:
            return Result.failed(wrong)
        return Result.passed("compared by its end state" if expected.changes else "")

    def _as_planned(self, rows: Rows) -> Result:
        """How often functions are called, and the rows as a plain local function gives them."""
        found = self._difference_from_local(rows)
        if found is not None:
            return Result.failed(f"not the rows that local functions give: {found}")
        told = self._case.expected.calls
        allowed = allowance(told, rows_by_unit(self._environment.spark, self._case))
        if allowed is None:
            return Result.passed(
                f"rows checked against local functions; {told or 'the plan'!r} says nothing about rows"
            )
        if self._calls <= allowed:
            return Result.passed(f"{self._calls} calls, {told!r} allows {allowed}")
        before = self._calls
        with self._environment.settings(NO_DERIVED_FILTERS):
            self._collect()
        if self._calls <= allowed:
            return Result.passed(
                f"{self._calls} calls with {_listed(NO_DERIVED_FILTERS)}, {told!r} allows {allowed}; as a rule Spark "
                f"also derives filters for the inputs of a join: {before} calls"
            )
        return Result.failed(f"{before} calls where {told!r} allows {allowed}")

    def _with_error(self, error: str) -> Result:
        expected = self._case.expected
        assert expected.error is not None
        if _OWN_ERROR.search(expected.error):
            own = any(_own_text(each) in error for each in self._chosen)
            if not own:
                return Result.failed(f"expected the function's own error; found: {short(error)}")
        elif not says(expected.error, error):
            missing = ", ".join(missing_words(expected.error, error))
            return Result.failed(f"expected an error like {expected.error!r} (lacks {missing}); found: {short(error)}")
        if expected.phase.startswith("plan") and self._calls:
            return Result.failed(f"expected an error when the query is planned; {self._calls} calls were made first")
        wrong = self._wrong_invocations()
        return Result.failed(wrong) if wrong else Result.passed()

    def _without_error(self, rows: Rows) -> Result:
        """Nothing was refused. That is right if the limit is not ours and the rows are."""
        expected = self._case.expected
        assert expected.error is not None
        if expected.phase.startswith("plan") and LIMIT.search(expected.error):
            found = self._difference_from_local(rows)
            if found is None:
                return Result.not_applicable(
                    f"a limit of Flink's planner ({expected.error!r}) that does not exist here: the query ran and "
                    "gave the rows that local functions give"
                )
            return Result.failed(f"the query ran, but not to the rows that local functions give: {found}")
        return Result.failed(f"expected the error {expected.error!r}; the query gave {len(rows)} rows")

    def _wrong_invocations(self) -> str:
        wanted = self._case.expected.invocations
        return f"{self._calls} calls where {wanted} are expected" if wanted not in (None, self._calls) else ""

    def _difference_from_local(self, rows: Rows) -> str | None:
        """Against the same query with the same functions as Spark's own Python functions; None if not known."""
        if any(each.built is None for each in self._chosen):
            return None
        for each in self._chosen:
            assert each.built is not None
            self._environment.spark.udf.register(each.key, _local(each.built, spark_type(each.spec.result)))
        wanted = self._environment.collect(self._sql(self._case.query))
        return difference(wanted, rows, ordered=False)

    @property
    def _truncated(self) -> bool:
        return any(call.key == "avg" for call in parse(self._case.query).walk())


def target_of(chosen: Sequence[Chosen], name: str, arguments: int) -> Target | None:
    """The function of that name that takes so many arguments, or the first of that name."""
    same = [each for each in chosen if each.words.name.lower() == name.lower()]
    fitting = [each for each in same if len(each.words.arguments) == arguments]
    if not same:
        return None
    spec = (fitting or same)[0].spec
    types = [alternatives(parameter.type) for parameter in spec.parameters]
    return Target(spec.key, tuple(spelled(each[0]) if len(each) == 1 else "" for each in types))


def _listed(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _own_text(chosen: Chosen) -> str:
    """What a failing function itself says; of a function of the user's file, only its name is known."""
    if chosen.built is None:
        return f"{chosen.spec.name}@"
    return chosen.built.failure_text


def _local(built: Built, result: DataType) -> Any:
    # Annotations would be hints to Spark how to call it.
    def local(*values):  # type: ignore[no-untyped-def]
        assert built.local is not None
        return built.local(*values)

    return F.udf(local, result)


def short(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) < 400 else f"{line[:400]}..."
