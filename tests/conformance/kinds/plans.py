"""The units by which calls are counted: the rows of a query's tables, of its joins and of its groups."""

from typing import Any

from pyspark.sql import SparkSession
from sqlglot import exp

from tests.conformance.cases import Case
from tests.conformance.spark_sql import parse, to_spark

__all__ = ["rows_by_unit"]


def rows_by_unit(spark: SparkSession, case: Case) -> dict[str, int]:
    """Counts rows with Spark, over the views of a case."""
    tree = parse(case.query)
    tables = [table.name for table in tree.find_all(exp.Table)]
    counts = [_count(spark, f"SELECT count(*) FROM `{name}`") for name in tables]
    if len(tables) == 1:
        units = {"row": counts[0], "input row": counts[0]}
        group = tree.args.get("group")
        if group is not None:
            keys = ", ".join(key.sql(dialect="spark") for key in group.expressions)
            groups = _count(spark, f"SELECT count(*) FROM (SELECT 1 FROM `{tables[0]}` GROUP BY {keys})")
            # A batch computes a group once; the changes of a stream are more rows.
            units |= {"changelog row of the aggregation": groups, "row of the aggregation": groups, "group": groups}
        return units
    units = {}
    for side, count in zip(("left", "right"), counts, strict=False):
        units |= {f"{side} row": count, f"{side} input row": count}
    if tree.args.get("joins"):
        units["joined row"] = _count(spark, _join_alone(tree, case))
    return units


def _count(spark: SparkSession, sql: str) -> int:
    return int(spark.sql(sql).collect()[0][0])


def _join_alone(tree: exp.Expression, case: Case) -> str:
    """Returns the joins of a query, without the conditions that call functions."""
    select = tree.find(exp.Select)
    assert select is not None
    count = exp.select("count(*)")
    for part in ("from_", "from", "joins"):
        if select.args.get(part):
            count.set(part, select.copy().args[part])
    for join in count.args.get("joins") or ():
        if join.args.get("on"):
            join.set("on", _without_calls(join.args["on"], case))
    where = select.args.get("where")
    if where is not None:
        count = count.where(_without_calls(where.this, case))
    return to_spark(count, lambda name, arguments: None)


def _without_calls(condition: Any, case: Case) -> Any:
    names = {words.name.lower() for words in case.functions if not words.builtin}
    parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
    plain = [part for part in parts if not any(call.name.lower() in names for call in part.find_all(exp.Anonymous))]
    return exp.and_(*plain) if plain else exp.true()
