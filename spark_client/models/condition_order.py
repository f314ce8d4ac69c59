"""Orders the remote conditions of a WHERE by what they cost and how many rows they drop, as measured on a sample.

Spark makes the calls of a part of a WHERE for the rows that pass the parts before it, in the order of the text. The
best next condition has the least cost per row that it drops, among the rows that pass those before it. (Hellerstein:
Optimization techniques for queries with expensive methods, 1998, orders independent ones so.)
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.base.root_cause import root_cause
from spark_client.sql.rows.calls import is_scalar
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope, each_select
from spark_client.sql.rows.sources import SelectSource
from spark_client.sql.text.nodes import Node, column, conditions_of, set_conditions
from spark_client.sql.text.writers import canonical, written

__all__ = ["with_ordered_conditions"]

MOST_KEPT = 1_000
"""Number of latest WHERE clauses whose order a session knows."""

Cost = tuple[float, float, float]
"""Of a condition for one row: USD, seconds and calls. The first one that differs decides."""


@dataclass(frozen=True)
class _Measured:
    """The order of the remote conditions of one WHERE, and why."""

    order: tuple[int, ...]
    """Positions among the remote conditions."""
    line: str
    """For `RemoteSession.explain`."""


class _Known(OrderedDict[str, _Measured]):
    """The latest orders of one session, by the text of what is read and of the conditions."""


def with_ordered_conditions(scope: Scope, tree: Node) -> Node:
    """The tree with ordered conditions; the same tree if nothing is ordered."""
    return each_select(scope.as_is(), tree, _ordered)


def _ordered(scope: Scope, select: exp.Select) -> Node | None:
    functions, parts = scope.functions, conditions_of(select)
    remote = [part for part in parts if _is_remote(part, functions)]
    if len(remote) < 2 or not all(_can_move(part, functions) for part in remote):
        return None
    measured = _measured(scope, select, parts, remote)
    scope.stages.append(measured.line)
    # Only remote conditions change places: Spark moves its own before them, unless their values would differ.
    after = iter(measured.order)
    ordered = select.copy()
    set_conditions(ordered, [remote[next(after)] if _is_remote(part, functions) else part for part in parts])
    return ordered


def _measured(scope: Scope, select: Node, parts: Sequence[Node], remote: Sequence[Node]) -> _Measured:
    functions = scope.functions
    rows = select.copy()
    set_conditions(rows, [part for part in parts if not _is_remote(part, functions)])
    source = scope.source(rows)
    text = canonical(exp.Tuple(expressions=[*(cte.copy() for cte in scope.ctes), source.selecting([exp.Star()])]))
    text += " ".join(map(canonical, remote))
    latest = functions.session.kept(_Known)
    known: _Measured | str | None = latest.pop(text, None)
    if known is None:
        try:
            known = _measure(functions, source, remote)
        except (PySparkException, PlanError) as error:
            why = root_cause(error).partition("\n")[0]
            known = f"they could not be measured: {why[:200]}"
    if isinstance(known, str):
        line = f"WHERE: conditions run in the order of the text, for {known}"
        return _Measured(tuple(range(len(remote))), line)
    latest[text] = known
    if len(latest) > MOST_KEPT:
        latest.popitem(last=False)
    return known


def _measure(functions: SqlFunctions, source: SelectSource, remote: Sequence[Node]) -> _Measured | str:
    """The order, or why there is none."""
    if source.frame.isStreaming:
        return "a stream has no sample"
    sample = _computed(source, remote, functions.session.condition_sample)
    found = sample.collect()
    costs = [_cost(functions, condition) for condition in remote]
    if not found:
        return "no row was left to measure"
    return _best(found, costs, [canonical(condition) for condition in remote])


def _cost(functions: SqlFunctions, condition: Node) -> Cost:
    keys = [functions.spec(node.name).key for node in condition.walk() if is_scalar(node, functions)]
    # If tasks cannot report, conditions are compared by their number of calls.
    known = [functions.session.cost_of(key).of_a_row() for key in keys]
    return sum(each.spent.get("usd", 0.0) for each in known), sum(each.seconds for each in known), float(len(keys))


def _computed(source: SelectSource, remote: Sequence[Node], rows: int) -> DataFrame:
    """How many rows of a sample each combination of the values of the conditions has."""
    columns = {canonical(node): node for condition in remote for node in condition.find_all(exp.Column)}
    names = dict(zip(columns, map("column_{}".format, range(len(columns))), strict=True))

    def over_sample(node: Node) -> Node:
        return column(names[canonical(node)]) if isinstance(node, exp.Column) else node

    few = source.base({names[text]: node for text, node in columns.items()}).limit(rows)
    # Spark would push the limit below the calls, to each part of the rows, and end their tasks early.
    one = few.repartition(1)
    computed = [f"coalesce({written(each.transform(over_sample))}, false) AS c{i}" for i, each in enumerate(remote)]
    return one.selectExpr(*computed).groupBy(*(f"c{i}" for i in range(len(remote)))).count()


def _best(found: Sequence[Row], costs: Sequence[Cost], shown: Sequence[str]) -> _Measured:
    """The order in which the next condition costs least per row that it drops, at each place."""
    left, rows, order, parts = list(range(len(costs))), found, [], []
    total = _count(found)
    while left:
        best = min(left, key=lambda place: _rank(rows, place, costs[place]))
        before, rows = _count(rows), _passing(rows, best)
        share = f"{_count(rows) / before:.0%} of {before} pass" if before else "no row was left"
        usd, seconds, _ = costs[best]
        parts.append(f"{shown[best]} ({share}, {seconds * 1e3:.3g} ms{f', {usd:.6g} usd' if usd else ''} a row)")
        order.append(best)
        left.remove(best)
    made, unordered = _calls(found, costs, order), _calls(found, costs, range(len(costs)))
    line = f"WHERE: conditions run in the order measured on {total} rows, {made:g} calls rather than {unordered:g}: "
    return _Measured(tuple(order), line + ", ".join(parts))


def _rank(rows: Sequence[Row], place: int, cost: Cost) -> tuple[float, ...]:
    """What is least for the best condition. One that drops no row is last, and of several the cheapest is first."""
    dropped = _count(rows) - _count(_passing(rows, place))
    return tuple(each / dropped if dropped else float("inf") for each in cost) + cost


def _calls(rows: Sequence[Row], costs: Sequence[Cost], order: Iterable[int]) -> float:
    calls = 0.0
    for place in order:
        calls += _count(rows) * costs[place][2]
        rows = _passing(rows, place)
    return calls


def _count(rows: Sequence[Row]) -> int:
    return sum(row["count"] for row in rows)


def _passing(rows: Sequence[Row], place: int) -> list[Row]:
    return [row for row in rows if row[place]]


def _is_remote(tree: Node, functions: SqlFunctions) -> bool:
    return any(is_scalar(node, functions) for node in tree.walk())


def _can_move(condition: Node, functions: SqlFunctions) -> bool:
    """Whether a condition has the same value in another place. Spark itself moves only deterministic ones."""
    return not any(
        isinstance(node, (exp.Query, exp.Rand, exp.Placeholder, exp.Parameter))
        or (is_scalar(node, functions) and not functions.is_deterministic(node.name))
        for node in condition.walk()
    )
