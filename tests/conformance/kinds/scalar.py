"""Queries over scalar functions and table functions."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from remote_udf.types import alternatives, spelled
from spark_client.base.types import spark_type
from tests.conformance.allowances import exact_calls
from tests.conformance.arrival import is_averaged
from tests.conformance.binding import Bound, FileBinder, is_process
from tests.conformance.cases import Case
from tests.conformance.compare import difference
from tests.conformance.environment import Environment
from tests.conformance.flink_options import bundle_settings, session_settings
from tests.conformance.functions.aggregates import is_aggregate
from tests.conformance.functions.building import Built
from tests.conformance.kinds.plans import rows_by_unit
from tests.conformance.observation import Observation, Run
from tests.conformance.prefixes import growing_table, prefix_changes
from tests.conformance.spark_sql import Target, calls, parse, to_spark
from tests.conformance.statements import created_view
from tests.conformance.streaming import streamed
from tests.conformance.tables import ROW_KIND, changelog_frame, create_views

__all__ = ["claims", "is_plain", "observe", "target_of", "variants"]

_QUERY = re.compile(r"\s*(SELECT\b|WITH\b|VALUES\b|\()", re.IGNORECASE)
_NO_QUERY_OF_OURS = re.compile(
    r"\b(TUMBLE|HOP|CUMULATE|SESSION|DESCRIPTOR)\s*\(|\(\s*TABLE\s+\w|=>\s*TABLE\b", re.IGNORECASE
)
NO_DERIVED_FILTERS = {"spark.sql.constraintPropagation.enabled": "false"}
"""As a rule Spark also derives filters for the inputs of a join, which call functions once more."""


def claims(case: Case) -> bool:
    """Whether it is a query with neither aggregates nor process table functions nor window functions."""
    return (
        not any(is_aggregate(words) or is_process(words) for words in case.functions)
        and not case.raw.get("steps")
        and is_plain(case)
    )


def is_plain(case: Case) -> bool:
    """Whether it is a query without window functions and without tables that are passed to functions."""
    told = any(_NO_QUERY_OF_OURS.search(text) for text in (*case.setup, case.query))
    return _QUERY.match(case.query) is not None and not told


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs in batch, and as a stream if the case requires one, under every variant of the configuration."""
    seen = environment.observation(case, bound)
    seen.truncated = is_averaged(case.query)
    for config, under in variants(case):
        with environment.settings(session_settings(config)):
            seen.runs += _Runs(case, environment, bound, seen, under).all()
    return seen


def variants(case: Case) -> list[tuple[dict[str, Any], str]]:
    """Returns every configuration and its difference from the others; one, if they differ only in Flink."""
    told: dict[Any, tuple[dict[str, Any], str]] = {}
    for each in case.variants:
        config = {**case.config, **each}
        settings = tuple(sorted({**session_settings(config), **bundle_settings(config)}.items()))
        told.setdefault(settings, (config, str(dict(each)) if each else ""))
    return list(told.values())


class _Runs:
    """The runs of a case under one configuration."""

    def __init__(
        self, case: Case, environment: Environment, bound: Sequence[Bound], seen: Observation, under: str
    ) -> None:
        self._case, self._environment, self._bound, self._seen, self._under = case, environment, bound, seen, under

    def all(self) -> list[Run]:
        case, environment = self._case, self._environment
        try:
            create_views(environment.spark, case, sampled=case.kind == "plan")
            runs = [self._run("batch")]
            changed = self._changes_passed_through()
            if changed is not None and runs[0].failure is None:
                # Every change is a row for the functions.
                runs[0].calls = None
                if case.expected.get("changes"):
                    changed.how = "changelog"
                runs.append(changed)
            if case.kind == "plan" and runs[0].failure is None:
                self._seen.units = rows_by_unit(self._counted, case)
                names = {each.words.name.lower() for each in self._bound}
                self._seen.written_calls = _written_calls(case.query, names)
                runs[0] = self._without_derived_filters(runs[0])
                self._against_local(runs[0])
            if ("stream" in case.modes or case.phases or case.row_phases) and runs[0].failure is None:
                environment.next_run()
                stream = streamed(case, environment, self._bound, self._frame, self._under)
                runs += [] if stream is None else [stream]
            if case.expected.get("changes") and changed is None and runs[0].failure is None:
                environment.next_run()
                runs += prefix_changes(case, environment, self._frame, growing_table(case, environment))
            return runs
        finally:
            environment.forget_views([table.name for table in case.tables])
            environment.forget_views(name for each in case.setup if (name := created_view(each)))

    def _run(self, how: str) -> Run:
        self._environment.next_run()
        return self._environment.run(how, self._frame, self._case, self._bound, under=self._under)

    def _changes_passed_through(self) -> Run | None:
        """Runs a query over the changes of its only table; each row of the result has the kind of its own row."""
        if len(self._case.tables) != 1 or not self._case.tables[0].changelog or self._case.setup:
            return None
        tree = parse(self._case.query)
        if not _maps_rows(tree):
            return None
        (table,) = self._case.tables
        changelog_frame(self._environment.spark, table).createOrReplaceTempView(f"`{table.name}`")
        query = tree if tree.is_star else tree.select(exp.column(ROW_KIND))
        self._environment.next_run()
        return self._environment.run(
            "batch", lambda: self._environment.remote(self._case, self._bound).sql(self._sql(query)), self._case,
            self._bound, under=self._under or "its changes",
        )  # fmt: skip

    def _counted(self, query: exp.Expression) -> int:
        remote = self._environment.remote(self._case, self._bound)
        return int(remote.sql(self._sql(query)).collect()[0][0])

    def _frame(self) -> DataFrame:
        remote = self._environment.remote(self._case, self._bound)
        for statement in self._case.setup:
            remote.sql(self._sql(statement))
        return remote.sql(self._sql(self._case.query))

    def _sql(self, query: str | exp.Expression) -> str:
        return to_spark(query, lambda name, arguments: target_of(self._bound, name, arguments), inlined=self._inlined())

    def _inlined(self) -> frozenset[str]:
        return frozenset(
            each.words.name.lower()
            for each in self._bound
            if each.spec is not None and spark_type(each.spec.result).simpleString().startswith("array<struct")
        )

    def _without_derived_filters(self, run: Run) -> Run:
        """Repeats the run without filters that the query does not have, if there were too many calls."""
        allowed = exact_calls(str(self._case.expected.get("calls") or ""), self._seen.units)
        if allowed is None or (run.calls or 0) <= allowed[1]:
            return run
        with self._environment.settings(NO_DERIVED_FILTERS):
            again = self._run("batch")
        self._seen.notes.append(f"calls counted without derived filters; with them Spark makes {run.calls}")
        return again

    def _against_local(self, run: Run) -> None:
        """Compares the rows with those of the same functions as Spark's own Python functions."""
        local = [_local(each) for each in self._bound]
        if run.rows is None or any(each is None for each in local):
            return
        binder = self._environment.binder
        if isinstance(binder, FileBinder):
            # Spark's workers cannot import the user's file.
            cloudpickle.register_pickle_by_value(binder.module)  # type: ignore[no-untyped-call]
        for each, function in zip(self._bound, local, strict=True):
            assert function is not None
            assert each.spec is not None
            self._environment.spark.udf.register(each.key, F.udf(function, spark_type(each.spec.result)))
        sql = self._sql(self._case.query)
        wanted = self._environment.rows(self._environment.spark.sql(sql))
        wrong = difference(wanted, [row.values for row in run.rows], ordered=False)
        self._seen.contradictions += [f"not the rows that local functions give: {wrong}"] if wrong else []
        self._seen.compared += len(wanted)
        self._seen.notes.append(f"{len(wanted)} rows compared with local functions")


def _maps_rows(tree: Any) -> bool:
    """Whether each row of the result comes from one row of the table."""
    if not isinstance(tree, exp.Select) or any(
        tree.args.get(part) for part in ("group", "distinct", "having", "order", "limit", "with", "with_")
    ):
        return False
    return not any(isinstance(node, (exp.AggFunc, exp.Window, exp.Subquery)) for node in tree.walk()) and all(
        isinstance(join.this, exp.Lateral) for join in tree.args.get("joins") or ()
    )


def _written_calls(query: str, names: set[str]) -> list[str]:
    return [call.sql() for call in calls(parse(query)) if call.name.lower() in names]


def _local(bound: Bound) -> Callable[..., Any] | None:
    """Returns the author's code as a plain function; None for a function that needs a server."""
    function = bound.function
    if isinstance(function, Built):
        evaluate = function.local
    else:
        function = getattr(function, "function", None)
        if (
            function is None
            or function.context_parameter is not None
            or function.opens
            or function.instances is not None
            or str(function.spec.kind) != "scalar"
        ):
            return None
        evaluate = function.call
        if function.is_async:
            return _awaited(evaluate)
    if evaluate is None:
        return None

    # Spark would read annotations as hints for calling it.
    def local(*values):  # type: ignore[no-untyped-def]
        return evaluate(*values)

    return local


def _awaited(call: Callable[..., Any]) -> Callable[..., Any]:
    def local(*values):  # type: ignore[no-untyped-def]
        import asyncio

        return asyncio.run(call(*values))

    return local


def target_of(bound: Sequence[Bound], name: str, arguments: int) -> Target | None:
    """Returns the function of that name with that number of arguments, or the first of that name."""
    same = [each for each in bound if each.words.name.lower() == name.lower() and each.spec is not None]
    fitting = [each for each in same if len(each.words.arguments) == arguments]
    if not same:
        return None
    spec = (fitting or same)[0].spec
    assert spec is not None
    types = [alternatives(parameter.type) for parameter in spec.parameters]
    return Target(spec.key, tuple(spelled(each[0]) if len(each) == 1 else "" for each in types))
