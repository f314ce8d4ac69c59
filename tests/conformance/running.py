"""The changelog of a query whose result changes as the rows of its table arrive.

The language of the cases sends the changes of an inner GROUP BY to the outer one. Spark computes the inner
one once; here its changelog is made by computing its result after every row.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from sqlglot import exp

from tests.conformance.cases import Case, Table
from tests.conformance.compare import Change
from tests.conformance.spark_sql import parse
from tests.conformance.statements import query_of_view
from tests.conformance.tables import ROW_KIND, table_frame

__all__ = ["MOST_ROWS", "changes_between", "leading_keys", "running_changelog", "updating_subquery"]

MOST_ROWS = 40


def updating_subquery(tree: Any, case: Case) -> Any:
    """Returns the one grouped subquery if its result changes as rows of the case's one table arrive; else None.

    A view of the case is read as a subquery.
    """
    if not isinstance(tree, exp.Select) or tree.args.get("joins"):
        return None
    source = tree.args.get("from_") or tree.args.get("from")
    subquery = source.this if source is not None else None
    view = query_of_view(subquery.name, case.setup) if isinstance(subquery, exp.Table) else None
    if view is not None:
        subquery = exp.Subquery(this=parse(view))
    if not isinstance(subquery, exp.Subquery) or not subquery.this.args.get("group"):
        return None
    tables = {table.name for table in subquery.find_all(exp.Table)}
    small = len(case.tables) == 1 and len(case.tables[0].changes) <= MOST_ROWS
    return subquery if small and tables == {case.tables[0].name} else None


def running_changelog(spark: SparkSession, table: Table, query: Callable[[], DataFrame], keys: int) -> DataFrame:
    """Returns the changes of the query's result as the table grows row by row, with a column `row_kind`.

    `query` reads the view of the table's name, which has all rows again afterwards. The first `keys`
    columns identify a row.
    """
    name = f"`{table.name}`"
    changes: list[Change] = []
    before: list[tuple[Any, ...]] = []
    frame = query()
    for count in range(1, len(table.changes) + 1):
        grown = Table(table.name, table.columns, table.changes[:count])
        table_frame(spark, grown).createOrReplaceTempView(name)
        frame = query()
        after = [tuple(row) for row in frame.collect()]
        changes += changes_between(before, after, keys)
        before = after
    fields = [StructField(field.name, field.dataType) for field in frame.schema.fields]
    schema = StructType([*fields, StructField(ROW_KIND, StringType())])
    return spark.createDataFrame([(*values, kind) for kind, values in changes], schema).coalesce(1)


def changes_between(before: Sequence[Any], after: Sequence[Any], keys: int) -> list[Change]:
    """Returns the changes, rows of one key beside each other."""
    old, new = {row[:keys]: row for row in before}, {row[:keys]: row for row in after}
    changes: list[Change] = []
    for key, row in old.items():
        if key not in new:
            changes.append(("-D", row))
        elif new[key] != row:
            changes += [("-U", row), ("+U", new[key])]
    return changes + [("+I", row) for key, row in new.items() if key not in old]


def leading_keys(select: Any) -> int:
    """The number of leading items that are keys of GROUP BY; 0 unless all keys are there."""
    keys = select.args["group"].expressions
    items = [item.unalias() for item in select.expressions]
    return len(keys) if items[: len(keys)] == list(keys) else 0
