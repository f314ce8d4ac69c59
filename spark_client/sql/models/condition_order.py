"""Orders the remote conditions of a WHERE by what they cost and how many rows they drop, as measured on a sample.

Spark makes the calls of a part of a WHERE for the rows that pass the parts before it, in the order of the text. The
best next condition has the least cost per row that it drops, among the rows that pass those before it. (Hellerstein:
Optimization techniques for queries with expensive methods, 1998, orders independent ones so.)
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from sqlglot import exp

from spark_client.base.call_costs import CallCost
from spark_client.base.errors import PlanError
from spark_client.base.root_cause import root_cause
from spark_client.sql.fewer_calls.single_calls import visible_ctes
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.sources import Source, column
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.text.nodes import Node, conjuncts
from spark_client.sql.text.writers import canonical, written

__all__ = ["ConditionOrder"]

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


class ConditionOrder:
    """Measures and orders the conditions of one session."""

    def __init__(self, sample: int, cost_of: Callable[[str], CallCost]) -> None:
        """`sample` is the number of rows for which conditions are computed; 0 leaves them in the order of the text.

        `cost_of` returns what the calls of a function, `name@version`, have cost in this session.
        """
        self._sample = sample
        self._cost_of = cost_of
        self._known: OrderedDict[str, _Measured] = OrderedDict()
        """By the text of what is read and of the conditions."""

    def ordered(
        self, functions: SqlFunctions, workspace: Workspace, tree: Node, stages: list[str] | None = None
    ) -> Node:
        """The tree with ordered conditions; the same tree if nothing is ordered. `workspace` runs trees unchanged."""
        if not self._sample:
            return tree
        holder = exp.Tuple(expressions=[tree.copy()])
        lines = []
        for select in list(holder.find_all(exp.Select)):
            where = select.args.get("where")
            parts = [] if where is None else conjuncts(where.this)
            remote = [part for part in parts if _is_remote(part, functions)]
            if len(remote) < 2 or not all(_can_move(part, functions) for part in remote):
                continue
            measured = self._measured(functions, workspace, select, parts, remote)
            lines.append(measured.line)
            # Only remote conditions change places: Spark moves its own before them, unless their values would differ.
            after = iter(measured.order)
            moved = [remote[next(after)] if _is_remote(part, functions) else part for part in parts]
            select.set("where", exp.Where(this=exp.and_(*(each.copy() for each in moved))))
        if stages is not None:
            stages += lines
        return holder.expressions[0] if lines else tree

    def _measured(
        self, functions: SqlFunctions, workspace: Workspace, select: Node, parts: Sequence[Node], remote: Sequence[Node]
    ) -> _Measured:
        ctes = visible_ctes(select)
        rest = [part for part in parts if not _is_remote(part, functions)]
        rows = select.copy()
        rows.set("where", exp.Where(this=exp.and_(*[each.copy() for each in rest])) if rest else None)
        source = Source(workspace, rows, ctes)
        text = canonical(exp.Tuple(expressions=[*(cte.copy() for cte in ctes), source.selecting([exp.Star()])]))
        text += " ".join(map(canonical, remote))
        known: _Measured | str | None = self._known.pop(text, None)
        if known is None:
            try:
                known = self._measure(functions, source, remote)
            except (PySparkException, PlanError) as error:
                why = root_cause(error).partition("\n")[0]
                known = f"they could not be measured: {why[:200]}"
        if isinstance(known, str):
            line = f"WHERE: conditions run in the order of the text, for {known}"
            return _Measured(tuple(range(len(remote))), line)
        self._known[text] = known
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return known

    def _measure(self, functions: SqlFunctions, source: Source, remote: Sequence[Node]) -> _Measured | str:
        """The order, or why there is none."""
        if source.frame.isStreaming:
            return "a stream has no sample"
        sample = _computed(source, remote, self._sample)
        found = sample.collect()
        costs = [self._cost(functions, condition) for condition in remote]
        if not found:
            return "no row was left to measure"
        return _best(found, costs, [canonical(condition) for condition in remote])

    def _cost(self, functions: SqlFunctions, condition: Node) -> Cost:
        keys = [functions.spec(node.name).key for node in condition.walk() if _is_call(node, functions)]
        # If tasks cannot report, conditions are compared by their number of calls.
        known = [self._cost_of(key).of_a_row() for key in keys]
        return sum(each.spent.get("usd", 0.0) for each in known), sum(each.seconds for each in known), float(len(keys))


def _computed(source: Source, remote: Sequence[Node], rows: int) -> DataFrame:
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


def _is_call(node: Node, functions: SqlFunctions) -> bool:
    return isinstance(node, exp.Anonymous) and functions.is_remote_scalar(node.name)


def _is_remote(tree: Node, functions: SqlFunctions) -> bool:
    return any(_is_call(node, functions) for node in tree.walk())


def _can_move(condition: Node, functions: SqlFunctions) -> bool:
    """Whether a condition has the same value in another place. Spark itself moves only deterministic ones."""
    return not any(
        isinstance(node, (exp.Query, exp.Rand, exp.Placeholder, exp.Parameter))
        or (_is_call(node, functions) and not functions.is_deterministic(node.name))
        for node in condition.walk()
    )
