"""The units by which calls are counted: the rows of a query's tables, of its joins and of its groups."""

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from tests.conformance.cases import Case
from tests.conformance.spark_sql import parse

__all__ = ["rows_by_unit"]


Count = Callable[[exp.Expression], int]
"""Runs a query with one number."""


def rows_by_unit(count: Count, case: Case) -> dict[str, int]:
    """Counts rows over the views of a case: of its tables, of joins and groups, and those that conditions leave."""
    tree = parse(case.query)
    tables = list(tree.find_all(exp.Table))
    counts = [count(exp.select("count(*)").from_(table.copy())) for table in tables]
    if len(tables) == 1:
        units = {"row": counts[0], "input row": counts[0], **_left(count, tree, tables[0], "", case)}
        group = tree.args.get("group")
        if group is not None:
            rows = exp.select("1").from_(tables[0].copy()).group_by(*(key.copy() for key in group.expressions))
            groups = count(exp.select("count(*)").from_(rows.subquery("g")))
            # A batch computes a group once; the changes of a stream are more rows.
            units |= {"changelog row of the aggregation": groups, "row of the aggregation": groups, "group": groups}
        return units
    units = {}
    for side, table, number in zip(("left", "right"), tables, counts, strict=False):
        units |= {f"{side} row": number, f"{side} input row": number}
        units |= _left(count, tree, table, f"{side} ", case)
    if tree.args.get("joins"):
        units["joined row"] = count(_join_alone(tree, case))
    return units


def _left(count: Count, tree: Any, table: Any, side: str, case: Case) -> dict[str, int]:
    """Counts the rows of a table that the conditions on it alone leave: those without calls, and then all of them."""
    select = tree.find(exp.Select)
    names = {table.alias_or_name.lower()}
    own = next((each for each in case.tables if each.name.lower() == table.name.lower()), None)
    columns = {name.lower() for name, _ in own.columns} if own is not None else set()
    only = len(list(tree.find_all(exp.Table))) == 1
    joins = select.args.get("joins") or ()
    outer = {join.side for join in joins}
    places = [select.args.get("where")]
    # The condition of an outer join drops no row of the side that is kept.
    if not outer & {side.strip().upper(), "FULL"}:
        places += joins
    wanted = [each.args.get("this") if isinstance(each, exp.Where) else each.args.get("on") for each in places if each]
    parts = [part for each in wanted if each is not None for part in _parts(each)]
    alone = [part for part in parts if part.find(exp.Column) and all(
        column.table.lower() in names if column.table else column.name.lower() in columns and only
        for column in part.find_all(exp.Column)
    )]  # fmt: skip
    plain = [part for part in alone if not _calls(part, case)]
    query = exp.select("count(*)").from_(table.copy())
    passed = count(query.where(*(part.copy() for part in alone)))
    left = count(query.where(*(part.copy() for part in plain))) if plain else passed
    return {f"{side}row left": left, f"{side}surviving row": passed}


def _parts(condition: Any) -> list[Any]:
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def _calls(part: Any, case: Case) -> bool:
    names = {words.name.lower() for words in case.functions if not words.builtin}
    return any(call.name.lower() in names for call in part.find_all(exp.Anonymous))


def _join_alone(tree: exp.Expression, case: Case) -> exp.Expression:
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
    return count.where(_without_calls(where.this, case)) if where is not None else count


def _without_calls(condition: Any, case: Case) -> Any:
    plain = [part for part in _parts(condition) if not _calls(part, case)]
    return exp.and_(*plain) if plain else exp.true()
