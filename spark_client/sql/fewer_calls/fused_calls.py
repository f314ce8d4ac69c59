"""Fuses the calls in the items of a SELECT, and those in one comparison of a WHERE, into one operator of Spark.

`SELECT f(a), g(f(a), b) AS x FROM t` becomes

    SELECT fused(a, b).c0 AS `f(a)`, fused(a, b).c1 AS x FROM t

in which Spark makes the equal calls of `fused` once. This must not make a call that Spark omits. So calls are
fused only if the value of each of them is needed for every row that the query computes. These are not fused:

- the items of a view or of a query in FROM or WITH, unless a query that only selects from it needs them: Spark omits
  those that nothing reads, and moves conditions on them below the others;
- the parts of a WHERE that AND joins: Spark makes the calls of a part for the rows that pass the parts before it;
- what may be skipped or is perhaps never needed, such as the branches of CASE, or a sum with NULL;
- calls and arguments with values that may differ at each evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.errors import PySparkException
from sqlglot import exp

from spark_client.executor.scalar.column import field_of
from spark_client.functions.registration import CallOfColumns
from spark_client.sql.fewer_calls.needed_items import AROUND, OPERATORS, Needed, needed_calls, needed_items
from spark_client.sql.rows.calls import has_aggregate, is_scalar
from spark_client.sql.rows.scope import Scope, columns_of
from spark_client.sql.rows.sources import SelectSource, aliased, keep_names, makes_rows
from spark_client.sql.text.nodes import Node, conditions_of, query_in
from spark_client.sql.text.writers import canonical

__all__ = ["has_steps", "is_of_row", "with_fused_calls"]

_DETERMINISTIC = (
    *OPERATORS, *AROUND, exp.TryCast, exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.DataType,
    exp.DataTypeParam, exp.Dot, exp.Placeholder, exp.Var,
)  # fmt: skip
"""Nodes whose value depends on nothing but the row."""

_WITHOUT_OUTER_COLUMNS = (exp.Select, exp.SetOperation, exp.Subquery, exp.From, exp.Join, exp.With, exp.CTE, exp.Tuple)


@dataclass
class _Fused:
    """The calls that become one, and the expressions that are their arguments."""

    calls: list[CallOfColumns] = field(default_factory=list)
    arguments: dict[str, Node] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    """The positions of the calls by their texts."""


def with_fused_calls(scope: Scope, tree: Node) -> Node:
    """The tree with fused calls; the same tree if there are none. Its whole result must be computed."""
    query = query_in(tree)
    if query is None or sum(is_scalar(node, scope.functions) for node in query.walk()) < 2:
        return tree
    fused = query.copy()
    is_view = isinstance(tree, exp.Create) and tree.kind == "VIEW"
    needed = {} if is_view else needed_items(fused, scope.key, partial(_is_of_server, scope))
    try:
        if not sum(_fuse_select(scope.around(each), each, needed) for each in list(fused.find_all(exp.Select))):
            return tree
        frame = scope.run(fused)
        same = columns_of(frame) == scope.columns(query)
    except PySparkException:
        return tree  # a subquery refers to outer columns, or Spark reports the error of the query
    if not same:
        return tree
    if query is tree:
        return scope.remember(fused, frame)
    statement = tree.copy()
    statement.args["expression"].replace(fused)
    return statement


def _fuse_select(scope: Scope, select: Node, needed: Needed) -> bool:
    """Fuse the calls of one SELECT in place. Returns whether there were several."""
    written = select.copy()
    found = _of_conditions(scope, select)
    if id(select) in needed and not _is_late(scope, select):
        found.append(_of_items(scope, scope.source(written), select, needed[id(select)]))
    several = [calls for calls in found if len({*map(canonical, calls)}) > 1]
    for calls in several:
        _fuse(scope, calls)
    if any(item != old for item, old in zip(select.expressions, written.expressions, strict=True)):
        keep_names(scope.source(written), written, select)
    return len(several) > 0


def _is_late(scope: Scope, select: Node) -> bool:
    """Whether items are computed after something else than the rows of FROM and WHERE."""
    if any(select.args.get(part) for part in ("group", "having", "qualify")):
        return True
    return has_aggregate(select, scope.functions) or select.find(exp.QueryTransform) is not None


def _of_items(scope: Scope, source: SelectSource, select: Node, only: frozenset[str] | None) -> list[Node]:
    """The calls in items that are needed for every row; none if Spark may compute the items in several steps.

    `only` has the keys of the items that are needed.
    """
    aliases = aliased(source, select).keys()
    named = {source.key(node.parts[0].name) for item in select.expressions for node in item.find_all(exp.Column)}
    calls = [
        call for item in select.expressions if only is None or source.key(item.alias_or_name) in only
        for call in needed_calls(item, partial(_is_plain, scope))
    ]  # fmt: skip
    if len(calls) < 2 or any(map(has_steps, select.expressions)):
        return []
    if not all(map(source.has, aliases & named)):
        return []  # an item reads another one
    taken = {id(node) for call in calls for node in call.walk()}
    rest = {
        _coarse(node) for item in select.expressions for node in item.walk()
        if is_scalar(node, scope.functions) and id(node) not in taken
    }  # fmt: skip
    # An equal call in another place would be made again.
    inside = {_coarse(node) for call in calls for node in call.walk() if is_scalar(node, scope.functions)}
    return [] if rest & inside else calls


def _of_conditions(scope: Scope, select: Node) -> list[list[Node]]:
    """The calls of each part of WHERE; none over joins, through which Spark moves and derives conditions."""
    parts = ("joins", "laterals")
    if select.args.get("where") is None or any(map(select.args.get, parts)) or not _is_independent(select):
        return []
    conditions = conditions_of(select)
    calls = [{_coarse(node) for node in each.walk() if is_scalar(node, scope.functions)} for each in conditions]
    return [
        list(needed_calls(condition, partial(_is_plain, scope))) for index, condition in enumerate(conditions)
        if not has_steps(condition)
        and not any(calls[index] & other for place, other in enumerate(calls) if place != index)
    ]  # fmt: skip


def _is_plain(scope: Scope, node: Node) -> bool:
    """Whether a node is a call that can be fused."""
    if not is_scalar(node, scope.functions) or not node.expressions:
        return False
    if not scope.functions.can_be_fused(node.name, len(node.expressions)):
        return False
    return all(_is_plain(scope, argument) or is_of_row(argument) for argument in node.expressions)


def _fuse(scope: Scope, calls: Sequence[Node]) -> None:
    """Replace the calls by fields of one call."""
    fused = _Fused()
    for call in calls:
        _collect(scope, fused, call)
    output = list(dict.fromkeys(fused.positions[canonical(call)] for call in calls))
    width = len(fused.arguments)
    places = [
        CallOfColumns(each.function, tuple(~column if column < 0 else width + column for column in each.columns))
        for each in fused.calls
    ]
    name = scope.functions.session.fused.register(places, output, width)
    for call in calls:
        made = exp.Anonymous(this=name, expressions=[each.copy() for each in fused.arguments.values()])
        place = output.index(fused.positions[canonical(call)])
        call.replace(exp.Dot(this=made, expression=exp.to_identifier(field_of(place))))


def _collect(scope: Scope, fused: _Fused, call: Node) -> int:
    """Add a call after those among its arguments, and return its position.

    Arguments that are not calls are complements of their positions until the number of all is known.
    """
    text = canonical(call)
    if text in fused.positions:
        return fused.positions[text]
    columns = []
    for argument in call.expressions:
        if _is_plain(scope, argument):
            columns.append(_collect(scope, fused, argument))
        else:
            fused.arguments.setdefault(canonical(argument), argument)
            columns.append(~list(fused.arguments).index(canonical(argument)))
    fused.calls.append(CallOfColumns(scope.functions.scalar(call.name), tuple(columns)))
    fused.positions[text] = len(fused.calls) - 1
    return fused.positions[text]


def _is_of_server(scope: Scope, name: str) -> bool:
    return scope.functions.is_remote_scalar(name) or scope.functions.is_remote_aggregate(name)


def _is_independent(select: Node) -> bool:
    """Whether a SELECT is in FROM or WITH of the others, so that it cannot refer to their columns."""
    node = select
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.Select) and node.arg_key not in ("from_", "joins", "with_"):
            return False
        if not isinstance(parent, _WITHOUT_OUTER_COLUMNS):
            return False
        node = parent
    return True


def is_of_row(tree: Node) -> bool:
    """Whether an argument is an expression of the row without calls."""
    return all(isinstance(node, _DETERMINISTIC) for node in tree.walk())


def has_steps(tree: Node) -> bool:
    """Whether Spark computes an expression in several steps, in which equal calls would be made again."""
    return any(isinstance(node, (exp.Window, exp.Query)) or makes_rows(node) for node in tree.walk())


def _coarse(call: Node) -> str:
    """A text that is equal for equal calls; it may be equal for others."""
    plain = call.transform(lambda node: exp.column(node.name) if isinstance(node, exp.Column) else node)
    return canonical(plain).lower()
