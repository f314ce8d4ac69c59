"""The changes of a query's result as the rows of its table arrive, one after another.

The language of the cases updates the result of a query with every row. Spark computes it for all rows at once; here
it is computed after every row, and the results are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from sqlglot import exp

from tests.conformance.cases import Case
from tests.conformance.environment import Environment, fill
from tests.conformance.observation import Emitted, Run
from tests.conformance.running import MOST_ROWS, changes_between
from tests.conformance.spark_sql import parse
from tests.conformance.tables import table_frame

__all__ = ["growing_table", "prefix_changes"]

Growing = Sequence[Callable[[], None]]
"""What gives the view that a query reads the rows that it has after one bundle, after two, and so on."""


def growing_table(case: Case, environment: Environment, bundle: int = 1) -> Growing:
    """Returns how the only table of a case grows; empty for several tables, or many rows."""
    if len(case.tables) != 1 or len(case.tables[0].changes) > MOST_ROWS:
        return []
    table = case.tables[0]

    def grow(count: int) -> None:
        grown = replace(table, changes=table.changes[:count])
        table_frame(environment.spark, grown).createOrReplaceTempView(f"`{table.name}`")

    return [partial(grow, count) for count in range(bundle, len(table.changes) + bundle, bundle)]


def prefix_changes(
    case: Case, environment: Environment, query: Callable[[], DataFrame], growing: Growing
) -> list[Run]:  # fmt: skip
    """Runs the query for the changes after each bundle of rows; not if its rows have no leading key."""
    keys = _leading_keys(case)
    if not growing or not keys:
        return []
    run = Run("changelog", keys=keys)
    before: list[tuple[Any, ...]] = []
    changes: list[Emitted] = []
    for grow in growing:
        grow()
        frame = query()
        after = environment.rows(frame)
        fill(run, frame, after)
        if len({row[:keys] for row in after}) < len(after):
            return []
        changes += [Emitted(values, kind) for kind, values in changes_between(before, after, keys)]
        before = after
    run.rows, run.has_kinds = changes, True
    return [run]


def _leading_keys(case: Case) -> int:
    """Returns how many leading columns are plain columns or keys of GROUP BY."""
    tree = parse(case.query)
    if not isinstance(tree, exp.Select):
        return 0
    group = tree.args.get("group")
    grouped = [each.sql() for each in group.expressions] if group is not None else []
    count = 0
    for item in tree.expressions:
        inner = item.unalias()
        if not (isinstance(inner, exp.Column) or inner.sql() in grouped):
            break
        count += 1
    return count
