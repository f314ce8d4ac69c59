"""How often functions may be called: "1 per row", "1 per left row + 1 per right row", read and counted.

Such facts come from Flink's plans. Spark may plan otherwise, but may not call more often.
"""

import re
from collections.abc import Callable

from pyspark.sql import SparkSession
from sqlglot import exp

from tests.conformance.cases import Case
from tests.conformance.spark_sql import parse, to_spark

__all__ = ["RowsOf", "allowance", "rows_by_unit"]

RowsOf = Callable[[str, str], int | None]
"""From a side ("left", "right" or "") and a unit ("row", "joined row") to how many there are; None if unknown."""

_TERM = re.compile(r"^(?:at most )?(\d+)(?: calls?)? per (.+?)(?: for .*)?$")


def allowance(text: str, rows_of: RowsOf) -> int | None:
    """The calls that a text allows; None if it does not say.

    Parts after semicolons may start with a side and a colon; terms are joined with "+".
    """
    total = 0
    for part in text.split(";"):
        side, colon, terms = part.rpartition(":")
        for term in terms.split("+"):
            match = _TERM.match(term.strip().lower())
            rows = rows_of(side.strip().lower() if colon else "", match[2]) if match else None
            if match is None or rows is None:
                return None
            total += int(match[1]) * rows
    return total


def rows_by_unit(spark: SparkSession, case: Case) -> RowsOf:
    """Counts with Spark, over the views of a case.

    A row that survives a filter, and a row of a changelog, count as rows of their input: there are no
    more of those.
    """
    tree = parse(case.query)

    def rows_of(side: str, unit: str) -> int | None:
        if "joined" in unit:
            return _count(spark, _join_alone(tree, case))
        side = next((each for each in ("left", "right") if each in unit), side)
        tables = [table.name for table in tree.find_all(exp.Table)]
        if not unit.endswith("row") and "row of" not in unit:
            return None
        if side:
            position = ("left", "right").index(side)
            return _count(spark, f"SELECT count(*) FROM `{tables[position]}`") if position < len(tables) else None
        if len(tables) != 1:
            return None
        return _count(spark, f"SELECT count(*) FROM `{tables[0]}`")

    return rows_of


def _count(spark: SparkSession, sql: str) -> int:
    return int(spark.sql(sql).collect()[0][0])


def _join_alone(tree: exp.Expression, case: Case) -> str:
    """The rows of a query's joins, without the conditions that call functions."""
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


def _without_calls(condition: exp.Expression, case: Case) -> exp.Expression:
    names = {words.name.lower() for words in case.functions if not words.builtin}
    parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
    plain = [part for part in parts if not any(call.name.lower() in names for call in part.find_all(exp.Anonymous))]
    return exp.and_(*plain) if plain else exp.true()
