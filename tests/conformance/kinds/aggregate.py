"""Queries with aggregates: GROUP BY and OVER, over tables and over changelogs, compared by their end state."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp
from sqlglot.errors import SqlglotError

from remote_udf.errors import RemoteUdfError
from spark_client import RemoteSession, connect
from tests.conformance.arrival import in_arrival_order
from tests.conformance.cases import Case
from tests.conformance.compare import difference
from tests.conformance.environment import Chosen, Environment, FunctionMissing
from tests.conformance.flink_options import bundle_settings, session_settings
from tests.conformance.functions.aggregates import is_aggregate
from tests.conformance.functions.building import scalar_kinds
from tests.conformance.gist import missing_words, says
from tests.conformance.kinds.scalar import LIMIT, NO_QUERY_OF_OURS, QUERY, short, target_of
from tests.conformance.report import Result
from tests.conformance.running import running_changelog, updating_subquery
from tests.conformance.spark_sql import created_view, parse, to_spark
from tests.conformance.tables import changelog_frame, create_views

__all__ = ["claims", "run"]

CHANGES = "changes_of_the_subquery"
Rows = list[tuple[Any, ...]]


def claims(case: Case) -> bool:
    """A query with at least one aggregate that is not Spark's own, and nothing but scalar functions beside."""
    ours = [words for words in case.functions if not words.builtin]
    return (
        any(is_aggregate(words) for words in ours)
        and all(is_aggregate(words) or words.kind in scalar_kinds for words in ours)
        and case.expected.kind in ("rows", "changelog", "error")
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
            with environment.settings({**session_settings(config), **bundle_settings(config)}):
                result = _Run(case, environment, chosen).result()
        finally:
            environment.forget_views([CHANGES, *(table.name for table in case.tables)])
            environment.forget_views(name for each in case.setup if (name := created_view(each)))
        if result.outcome != "passed":
            return Result(result.outcome, f"{result.reason} (with {dict(variant)})" if variant else result.reason)
    return result


class _Run:
    """One run of a case: over its tables as they end, and where there is a changelog, over that."""

    def __init__(self, case: Case, environment: Environment, chosen: Sequence[Chosen]) -> None:
        self._case = case
        self._environment = environment
        self._chosen = chosen
        self._remote = self._session()

    def result(self) -> Result:
        changelog = self._over_changelog()
        if self._case.expected.error is not None:
            return self._error([self._over_tables, *([changelog] if changelog else [])])
        found, error = self._rows(self._over_tables)
        failed = self._failed(found, error, "")
        if failed is not None or changelog is None:
            return failed or Result.passed(self._note)
        found, error = self._rows(changelog)
        return self._failed(found, error, "over a changelog: ") or Result.passed(
            "compared by its end state, computed from a table and from a changelog"
        )

    @property
    def _note(self) -> str:
        return "compared by its end state" if self._case.expected.changes else ""

    # How it is run.

    def _session(self) -> RemoteSession:
        servers = {each.server.target for each in self._chosen if is_aggregate(each.words)}
        if len(servers) > 1:
            raise FunctionMissing(
                "the aggregates of one query are on two servers: the given file has only some of them"
            )
        self._environment.register([each for each in self._chosen if not is_aggregate(each.words)])
        return connect(self._environment.spark, servers.pop())

    def _over_tables(self) -> DataFrame:
        create_views(self._environment.spark, self._case)
        return self._query(parse(self._case.query))

    def _over_changelog(self) -> Callable[[], DataFrame] | None:
        """The query over the changelog its words are about; None if there is none, or it has aggregates of Spark's."""
        tree = parse(self._case.query)
        outer = tree.walk(prune=lambda node: isinstance(node, exp.Query) and node is not tree)
        if any(isinstance(node, (exp.AggFunc, exp.Window)) for node in outer):
            return None
        takes_back = all(each.spec.supports_retracting for each in self._chosen if is_aggregate(each.words))
        if self._case.expected.error is None and (not takes_back or self._case.config.get("mode") == "batch"):
            return None
        subquery = updating_subquery(tree, self._case)
        if subquery is not None and (keys := _leading_keys(subquery.this)):
            return lambda: self._over_changes_of(subquery.copy(), keys)
        if any(table.changelog for table in self._case.tables) and not tree.args.get("joins"):
            return self._over_changes
        return None

    def _over_changes(self) -> DataFrame:
        for table in self._case.tables:
            changelog_frame(self._environment.spark, table).createOrReplaceTempView(f"`{table.name}`")
        return self._query(parse(self._case.query))

    def _over_changes_of(self, subquery: Any, keys: int) -> DataFrame:
        create_views(self._environment.spark, self._case)
        table = self._case.tables[0]
        frame = running_changelog(self._environment.spark, table, lambda: self._query(subquery.this), keys)
        frame.createOrReplaceTempView(CHANGES)
        tree = parse(self._case.query)
        source = tree.args.get("from_") or tree.args.get("from")
        alias = exp.TableAlias(this=exp.to_identifier(subquery.alias)) if subquery.alias else None
        source.set("this", exp.Table(this=exp.to_identifier(CHANGES), alias=alias))
        return self._query(tree)

    def _query(self, tree: Any) -> DataFrame:
        for statement in self._case.setup:
            self._remote.sql(to_spark(statement, self._named))
        return self._remote.sql(to_spark(in_arrival_order(tree), self._named))

    def _named(self, name: str, arguments: int) -> Any:
        target = target_of(self._chosen, name, arguments)
        # What an aggregate takes is checked when the query is planned, and widened on the way.
        aggregate = target is not None and any(is_aggregate(e.words) for e in self._chosen if e.key == target.name)
        return type(target)(target.name) if aggregate and target is not None else target

    def _rows(self, query: Callable[[], DataFrame]) -> tuple[Rows | None, str]:
        """The rows, or None and the error."""
        try:
            return self._environment.rows(query), ""
        except (PySparkException, RemoteUdfError, SqlglotError) as raised:
            return None, str(raised)

    # What is made of it.

    def _failed(self, rows: Rows | None, error: str, how: str) -> Result | None:
        expected = self._case.expected
        if rows is None:
            return Result.failed(f"{how}the query failed: {short(error)}")
        truncated = any(call.key == "avg" for call in parse(self._case.query).walk())
        found = difference(expected.rows or (), rows, ordered=expected.ordered, truncated=truncated)
        return None if found is None else Result.failed(how + found)

    def _error(self, queries: Sequence[Callable[[], DataFrame]]) -> Result:
        """The first of the queries that is refused decides."""
        expected = self._case.expected
        assert expected.error is not None
        for query in queries:
            rows, error = self._rows(query)
            if rows is not None:
                continue
            if says(expected.error, error):
                return Result.passed("" if query is queries[0] else "refused over the changelog of its subquery")
            missing = ", ".join(missing_words(expected.error, error))
            return Result.failed(f"expected an error like {expected.error!r} (lacks {missing}); found: {short(error)}")
        if expected.phase.startswith("plan") and LIMIT.search(expected.error):
            return Result.not_applicable(
                f"a limit of Flink's planner ({expected.error!r}) that does not exist here: the query ran"
            )
        return Result.failed(f"expected the error {expected.error!r}; the query ran")


def _leading_keys(select: Any) -> int:
    """How many items at the front are keys of GROUP BY; 0 unless all keys are there."""
    keys = select.args["group"].expressions
    items = [item.unalias() for item in select.expressions]
    return len(keys) if items[: len(keys)] == list(keys) else 0
