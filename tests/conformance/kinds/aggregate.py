"""Queries with aggregates: GROUP BY and OVER, over tables and over changelogs; end states, and the changes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from tests.conformance.arrival import in_arrival_order, is_averaged
from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.compare import end_state
from tests.conformance.environment import Environment
from tests.conformance.flink_options import bundle_settings, session_settings
from tests.conformance.functions.aggregates import is_aggregate
from tests.conformance.kinds.scalar import is_plain, target_of, variants
from tests.conformance.observation import Observation, Run
from tests.conformance.prefixes import growing_table, prefix_changes
from tests.conformance.running import leading_keys, running_changelog, updating_subquery
from tests.conformance.spark_sql import parse, to_spark
from tests.conformance.statements import created_view
from tests.conformance.streaming import streamed
from tests.conformance.tables import ROW_KIND, changelog_frame, create_views

__all__ = ["claims", "observe"]

CHANGES = "changes_of_the_subquery"
FED = "fed_to_the_aggregates"
BUNDLE = "bundle__"


def claims(case: Case) -> bool:
    """Whether it is a query with at least one aggregate that is not Spark's own."""
    return any(is_aggregate(words) for words in case.functions) and not case.raw.get("steps") and is_plain(case)


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs over the final tables, over the changelog if there is one, and for the changes, under every variant."""
    seen = environment.observation(case, bound)
    seen.truncated = is_averaged(case.query)
    for config, under in variants(case):
        with environment.settings({**session_settings(config), **bundle_settings(config)}):
            try:
                seen.runs += _Runs(case, environment, bound, under).all()
            finally:
                environment.forget_views([CHANGES, FED, *(table.name for table in case.tables)])
                environment.forget_views(name for each in case.setup if (name := created_view(each)))
    return seen


class _Runs:
    """The runs of a case under one configuration."""

    def __init__(self, case: Case, environment: Environment, bound: Sequence[Bound], under: str) -> None:
        self._case, self._environment, self._bound, self._under = case, environment, bound, under
        self._tree = parse(case.query)
        # A bundle has rows of all keys, and changes are compared at its end.
        self._bundle = int(case.config.get("table.exec.bundled-agg.size") or 1)
        self._aggregates = {each.words.name.lower() for each in bound if is_aggregate(each.words)}

    def all(self) -> list[Run]:
        changelog = self._over_changelog()
        if self._case.error is not None:
            # The case is about the refusal of either.
            runs = [self._run(each) for each in (self._over_tables, changelog) if each is not None]
            return [run for run in runs if run.failure is not None][:1] or runs
        runs = [self._run(self._over_tables)]
        if changelog is not None and runs[0].failure is None:
            runs.append(self._run(changelog))
        if self._case.expected.get("changes") and runs[0].failure is None:
            runs += self._changes()
        if "stream" in self._case.modes and runs[0].failure is None and not any(run.how == "changelog" for run in runs):
            self._environment.next_run()
            stream = streamed(self._case, self._environment, self._bound, lambda: self._query(self._tree), self._under)
            runs += [] if stream is None else [stream]
        return runs

    def _run(self, query: Callable[[], DataFrame]) -> Run:
        self._environment.next_run()
        return self._environment.run("batch", query, self._case, self._bound, under=self._under)

    def _over_tables(self) -> DataFrame:
        create_views(self._environment.spark, self._case)
        return self._query(self._tree)

    def _over_changelog(self) -> Callable[[], DataFrame] | None:
        """Returns the query over its changelog; None if there is no changelog, or if it has aggregates of Spark's."""
        if self._has_own_aggregates():
            return None
        takes_back = all(
            each.spec.supports_retracting for each in self._bound if each.spec and is_aggregate(each.words)
        )
        if self._case.error is None and (not takes_back or self._case.config.get("mode") == "batch"):
            return None
        subquery = self._subquery()
        if subquery is not None:
            return lambda: self._over(self._changed_subquery(subquery))
        if any(table.changelog for table in self._case.tables) and not self._tree.args.get("joins"):
            return self._over_changed_tables
        return None

    def _has_own_aggregates(self) -> bool:
        outer = self._tree.walk(prune=lambda node: isinstance(node, exp.Query) and node is not self._tree)
        return any(isinstance(node, (exp.AggFunc, exp.Window)) for node in outer)

    def _subquery(self) -> Any:
        subquery = updating_subquery(self._tree, self._case)
        return subquery if subquery is not None and leading_keys(subquery.this) else None

    def _over_changed_tables(self) -> DataFrame:
        for table in self._case.tables:
            changelog_frame(self._environment.spark, table).createOrReplaceTempView(f"`{table.name}`")
        return self._query(self._tree)

    def _changed_subquery(self, subquery: Any) -> DataFrame:
        create_views(self._environment.spark, self._case)
        keys = leading_keys(subquery.this)
        return running_changelog(
            self._environment.spark, self._case.tables[0], lambda: self._query(subquery.this.copy()), keys
        )

    def _over(self, changes: DataFrame) -> DataFrame:
        changes.createOrReplaceTempView(CHANGES)
        return self._query(self._over_view())

    def _over_view(self) -> Any:
        """Returns the query over the view of changes in place of the subquery."""
        tree = self._tree.copy()
        source = tree.args.get("from_") or tree.args.get("from")
        alias = source.this.alias_or_name
        aliased = exp.TableAlias(this=exp.to_identifier(alias)) if alias else None
        source.set("this", exp.Table(this=exp.to_identifier(CHANGES), alias=aliased))
        return tree

    # Changes.

    def _changes(self) -> list[Run]:
        """Uses `changelog` if every value is that of a remote aggregate of a column; else compares later results."""
        self._environment.next_run()
        run = self._changed_groups()
        if run is not None:
            return [run]
        create_views(self._environment.spark, self._case)
        subquery = self._subquery()
        if subquery is None:
            growing = growing_table(self._case, self._environment, self._bundle)
            return prefix_changes(self._case, self._environment, lambda: self._query(self._tree), growing)
        growing = self._growing_result(self._changed_subquery(subquery))
        tree = self._over_view()
        return prefix_changes(self._case, self._environment, lambda: self._query(tree), growing)

    def _growing_result(self, changes: DataFrame) -> list[Callable[[], None]]:
        """Returns how the result of the subquery grows, by bundles of its changes."""
        names = [name for name in changes.columns if name != ROW_KIND]
        told = [(row[ROW_KIND], tuple(row[name] for name in names)) for row in changes.collect()]

        def grow(count: int) -> None:
            rows = [tuple(row) for row in end_state(told[:count])]
            frame = self._environment.spark.createDataFrame(rows, changes.select(names).schema)
            frame.coalesce(1).createOrReplaceTempView(CHANGES)

        return [partial(grow, count) for count in range(self._bundle, len(told) + self._bundle, self._bundle)]

    def _changed_groups(self) -> Run | None:
        if self._has_own_aggregates() or self._tree.args.get("joins") or self._tree.args.get("where"):
            return None
        group = self._tree.args.get("group")
        keys = list(group.expressions) if group is not None else []
        items = [item.unalias() for item in self._tree.expressions]
        calls = items[len(keys) :]
        if items[: len(keys)] != keys or not all(
            isinstance(call, exp.Anonymous) and call.name.lower() in self._aggregates for call in calls
        ):
            return None

        def frame() -> DataFrame:
            fed = self._fed(keys, calls)
            remote = self._environment.remote(self._case, self._bound)
            values = []
            for number, call in enumerate(calls):
                target = self._named(call.name, len(call.expressions))
                function = remote.function(target.name)
                columns = [f"a{number}_{place}" for place in range(len(call.expressions))]
                values.append(function(*columns).alias(f"v{number}"))
            names = [f"k{number}" for number in range(len(keys))]
            per = F.col(BUNDLE) if self._bundle > 1 else "row"
            return remote.group_by(fed, *names).changelog(*values, per=per)

        return self._environment.run("changelog", frame, self._case, self._bound, under=self._under, keys=len(keys))

    def _fed(self, keys: Sequence[Any], calls: Sequence[Any]) -> DataFrame:
        """The input changes of the aggregates, with keys and arguments by name, and the number of their bundle."""
        subquery = self._subquery()
        if subquery is not None:
            changes = self._changed_subquery(subquery)
        else:
            changes = changelog_frame(self._environment.spark, self._case.tables[0])
        # There is one partition, so rows are numbered one by one.
        bundle = F.floor(F.monotonically_increasing_id() / self._bundle)
        changes.withColumn(BUNDLE, bundle).createOrReplaceTempView(FED)
        arguments = [(f"a{number}_{place}", each) for number, call in enumerate(calls)
                     for place, each in enumerate(call.expressions)]  # fmt: skip
        items = [exp.alias_(key.copy(), f"k{number}") for number, key in enumerate(keys)]
        items += [exp.alias_(each.copy(), name) for name, each in arguments]
        select = exp.select(*items, exp.column(BUNDLE), exp.column(ROW_KIND)).from_(FED)
        return self._environment.spark.sql(to_spark(select, lambda name, count: None))

    # Calls.

    def _query(self, tree: Any) -> DataFrame:
        remote = self._environment.remote(self._case, self._bound)
        for statement in self._case.setup:
            remote.sql(to_spark(statement, self._named))
        return remote.sql(to_spark(in_arrival_order(tree), self._named))

    def _named(self, name: str, arguments: int) -> Any:
        target = target_of(self._bound, name, arguments)
        # Planning checks the argument types of an aggregate, and the arguments are widened later.
        return type(target)(target.name) if target is not None and name.lower() in self._aggregates else target
