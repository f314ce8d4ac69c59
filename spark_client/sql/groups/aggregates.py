"""GROUP BY with remote aggregates: a SELECT becomes one without groups, over the DataFrame of its groups.

Keys, arguments and conditions are computed as hidden columns of the SELECT's rows. `RemoteSession.group_by` makes a
row per group of them, Spark's own aggregates included. The rest of the SELECT (expressions over aggregates, HAVING,
ORDER BY, windows) then reads columns of these rows.
"""

from collections.abc import Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from spark_client.base.identifiers import error_column
from spark_client.functions.aggregate import AggregateExpression
from spark_client.planning.aggregate.builtins import KNOWN
from spark_client.planning.aggregate.planner import plan_group_by
from spark_client.planning.aggregate.query import GroupBy
from spark_client.sql.groups.grouping import (
    groups_windows,
    key_names,
    names_window,
    over_panes,
    read_grouping,
    with_time,
)
from spark_client.sql.groups.hidden import HiddenColumns, is_computed, named_as_written, sort_of
from spark_client.sql.groups.over_groups import OverGroups, split_having, tables_of_keys
from spark_client.sql.rows.calls import (
    CLAUSES,
    RemoteCall,
    aggregate_of,
    has_aggregate,
    has_remote,
    is_remote,
    read_remote,
)
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import (
    aliased,
    distinct_outputs,
    is_column,
    output_names,
    several_columns,
    without_rows,
)
from spark_client.sql.text.nodes import Node, column, set_conditions
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.settings import reads_patterns
from spark_client.sql.text.writers import canonical, written
from spark_client.windows.emitting import is_only_updated, update_times

__all__ = ["GroupedSelect", "with_groups"]

_SET = "grouping set"
"""The key of the number of the grouping set among aggregates."""
_FIRST = ("any_value", "first", "first_value")
"""Spark evaluates the argument of these functions until it has a value. It evaluates the first argument of any other
aggregate for every row, and a second one, as in `count(a, b)`, only where it needs it.
"""


def with_groups(scope: Scope, select: Node) -> Node:
    """A SELECT with GROUP BY and remote aggregates over its groups."""
    if not has_remote(select, scope.functions):
        return select
    if not select.args.get("group") and not has_aggregate(select, scope.functions):
        return select
    return GroupedSelect(scope, select).rewritten()


class GroupedSelect:
    """One SELECT with groups.

    If `planned`, the planner of remote aggregates also computes Spark's own aggregates when there are no remote ones.
    """

    def __init__(self, scope: Scope, select: Node, *, planned: bool = False) -> None:
        self._scope = scope
        self._select = select
        self._source = source = scope.source(select)
        self._functions = scope.functions
        grouping = read_grouping(source, select, lambda tree: has_aggregate(tree, self._functions))
        self._grouping = with_time(source, grouping)
        self._keys = key_names(scope, source, self._grouping.keys)
        self._titles: list[str] | None = None
        self._hidden = HiddenColumns(scope, source)
        self._aggregates: dict[str, tuple[str, Node | None]] = {}
        """Name and tree of each aggregate, by `SelectSource.same`; the tree of a grouping set's number is None."""
        self._remote = has_aggregate(select, self._functions, remote=True) or (planned and not source.uses_kind)

    def rewritten(self) -> Node:
        """The SELECT over its groups. Raises PlanError, which names the position in the text."""
        over = OverGroups(self._source, self._functions, self._keys, self._aggregate)
        select = self._select
        shown = output_names(self._source, select, partial(has_remote, names=self._functions), self._group_clause())
        items: list[Node] = []
        earlier: list[str] = []
        for item, name in zip(select.expressions, shown, strict=True):
            if isinstance(item, exp.Aliases):
                items.append(exp.Aliases(this=over.item(item.this, earlier), expressions=item.expressions))
                earlier += [self._source.key(each.name) for each in item.expressions]
                continue
            if name is None:
                raise error_at(item, several_columns(item))
            items.append(exp.alias_(over.item(item.unalias(), earlier), name, quoted=True))
            earlier.append(self._source.key(name))
        outer = without_rows(select)
        if (having := outer.args.pop("having", None)) is not None:
            written = aliased(self._source, select)
            condition = over.condition(having.this, written, aliases_first=self._grouping.sets is not None)
            above = self._checked_before(condition)
            set_conditions(outer, above)
        outputs = distinct_outputs(earlier)
        for part in CLAUSES:
            if part != "having" and (clause := select.args.get(part)) is not None:
                outer.set(part, over.clause(clause, outputs))
        if windows := select.args.get("windows"):
            outer.set("windows", [over.clause(window, ()) for window in windows])
        outer.set("group", None)
        outer.set("expressions", None)
        if self._remote and not any(outer.args.values()):
            items = self._shown_as_named(items)
        outer.set("expressions", items)
        outer.set("from_", exp.From(this=self._scope.table(self._groups())))
        keys = dict(zip(self._keys.values(), self._grouping.keys, strict=True))
        outer.set("joins", tables_of_keys(self._source, outer, keys))
        return outer

    def _shown_as_named(self, items: list[Node]) -> list[Node]:
        """Give keys and aggregates the names of the items, if these are all of them, so that nothing renames them."""
        shown = {item.this.name: item.alias for item in items if isinstance(item, exp.Alias) and is_column(item.this)}
        names = {self._source.key(name) for name in shown.values()}
        errors = {self._source.key(error_column(name)) for name in shown.values()}
        own = [*self._keys.values(), *(name for name, _ in self._aggregates.values())]
        if [*shown] != own or not len(own) == len(items) == len(names):
            return items
        if self._keys and (self._grouping.sets is not None or self._source.frame.isStreaming):
            return items
        if names & errors or reads_patterns(self._scope.spark):
            return items
        self._titles = [shown[name] for name in self._keys.values()]
        self._aggregates = {same: (shown[name], tree) for same, (name, tree) in self._aggregates.items()}
        return [column(name) for name in shown.values()]

    def _checked_before(self, condition: Node) -> list[Node]:
        """Add conditions on keys to those of the rows; returns the parts of HAVING that are left."""
        if not self._remote:
            return [condition]
        in_all = set(range(len(self._grouping.keys))).intersection(*(self._grouping.sets or ()))
        keys = {name: self._grouping.keys[place] for place, name in enumerate(self._keys.values()) if place in in_all}
        if groups_windows(self._source, self._grouping.keys):
            # Spark knows how conditions on windows relate to watermarks, and panes have no rows of windows.
            keys = {name: key for name, key in keys.items() if not names_window(self._source, key)}
        others = [*(self._keys.values() - keys.keys()), *(name for name, _ in self._aggregates.values())]
        below, above = split_having(condition, keys, others, self._select.expressions, self._functions)
        self._source = self._source.where(below)
        for part in below:
            self._scope.stages.append(f"HAVING {canonical(part.unnest())}: checked before rows are grouped")
        return above

    def _aggregate(self, tree: Node) -> Node:
        """The column that contains the value of an aggregate."""
        call = aggregate_of(tree)
        if self._remote and call.name.lower() in ("grouping", "grouping_id"):
            return self._grouping_function(call)
        for inner in call.expressions:
            if has_aggregate(inner, self._functions):
                raise error_at(call, f"{call.name}: an aggregate of an aggregate needs a subquery")
        same = self._source.same(tree)
        return column(self._aggregates.setdefault(same, (self._scope.hidden("aggregate"), tree.copy()))[0])

    def _grouping_function(self, call: Node) -> Node:
        """Compute `grouping` and `grouping_id` from the number of the grouping set."""
        sets = self._grouping.sets
        if sets is None:
            raise error_at(call, f"{call.name} needs GROUPING SETS, ROLLUP or CUBE")
        places = {same: position for position, same in enumerate(self._keys)}
        asked = [self._source.same(each) for each in call.expressions] or list(places)
        if any(same not in places for same in asked):
            raise error_at(call, f"{canonical(call)}: the argument must be a key of GROUP BY")
        number: Node = exp.Literal.number(0)  # without keys nobody numbers the sets
        if places:
            number = column(self._aggregates.setdefault(_SET, (self._scope.hidden("set"), None))[0])
        cases = exp.Case(this=number)
        for position, chosen in enumerate(sets):
            bits = sum((places[same] not in chosen) << shift for shift, same in enumerate(reversed(asked)))
            cases = cases.when(exp.Literal.number(position), exp.Literal.number(bits))
        return exp.cast(cases, "tinyint" if call.name.lower() == "grouping" else "bigint", dialect="spark")

    def _groups(self) -> DataFrame:
        """Return a row per group: hidden columns with keys and aggregates."""
        if not self._remote:
            return self._groups_by_spark()
        expressions: list[AggregateExpression | Column] = []
        ordered: list[RemoteCall] = []
        number = None
        for name, tree in self._aggregates.values():
            if tree is None:
                number = name
            elif is_remote(aggregate_of(tree), self._functions):
                read = read_remote(tree, self._functions)
                expressions.append(self._hidden.aggregate(read).alias(name))
                ordered += [read] if read.order else []
            else:
                expressions.append(F.expr(written(self._of_hidden(tree))).alias(name))
        if not expressions:
            expressions.append(F.count(F.lit(1)).alias(self._scope.hidden("count")))
        self._explain()
        order_by = self._order(ordered)
        items = self._base_items()
        # Spark's own aggregates need the rows of every window, which panes do not have; see `pane_query`.
        remotes_only = all(isinstance(each, AggregateExpression) for each in expressions)
        panes = over_panes(self._scope, self._source, items) if remotes_only else None
        base = panes or self._source.base(items)
        keys = list(self._keys.values())
        with named_as_written(items):
            return plan_group_by(
                GroupBy(base, keys, self._grouping.sets, order_by, None, titles=self._titles, set_number=number),
                expressions,
            )

    def _explain(self) -> None:
        trees = [aggregate_of(tree) for _, tree in self._aggregates.values() if tree is not None]
        calls = [f"{tree.name} {'on the server' if is_remote(tree, self._functions) else 'by Spark'}" for tree in trees]
        keys = ", ".join(canonical(key) for key in self._grouping.keys) or "nothing"
        self._scope.stages.append(f"aggregate by {keys}: {', '.join(dict.fromkeys(calls)) or 'keys alone'}")

    def _groups_by_spark(self) -> DataFrame:
        self._explain()
        keys = self._grouping.keys
        items = {self._keys[self._source.same(key)]: key for key in keys}
        items |= {name: tree for name, tree in self._aggregates.values() if tree is not None}
        query = self._source.selecting([exp.alias_(tree.copy(), name, quoted=True) for name, tree in items.items()])
        query.set("group", self._group_clause())
        return self._source.run(query)

    def _group_clause(self) -> exp.Group | None:
        """The GROUP BY for Spark, without ordinals and aliases; None without keys."""
        keys, sets = self._grouping.keys, self._grouping.sets
        if sets is None:
            return exp.Group(expressions=[key.copy() for key in keys]) if keys else None
        tuples = [exp.Tuple(expressions=[keys[place].copy() for place in chosen]) for chosen in sets]
        return exp.Group(grouping_sets=[exp.GroupingSets(expressions=tuples)])

    def _base_items(self) -> dict[str, Node]:
        items = dict(zip(self._keys.values(), self._grouping.keys, strict=True))
        items |= self._hidden.items()
        if (kind := self._source.kind_column) is not None:
            items[kind] = exp.column(kind)
        if groups_windows(self._source, self._grouping.keys) and is_only_updated(self._source.frame):
            times = update_times(self._source.frame)
            items |= {self._scope.hidden("update"): column(name) for name in times}
        return items

    def _order(self, calls: Sequence[RemoteCall]) -> list[Column]:
        """The order of the rows, evaluated only for rows that a call receives. Raises PlanError for two orders."""
        orders = [[self._source.same(each) for each in call.order] for call in calls]
        for call, order in zip(calls, orders, strict=True):
            if order != orders[0]:
                raise error_at(call.tree, "the remote aggregates of one SELECT must have the same order WITHIN GROUP")
        if not calls:
            return []
        conditions = [call.condition.copy() for call in calls if call.condition is not None]
        guard = exp.or_(*conditions) if len(conditions) == len(calls) else None
        return [self._ordered(each, guard) for each in calls[0].order]

    def _ordered(self, ordered: Node, guard: Node | None) -> Column:
        tree = ordered.this
        if guard is not None and not isinstance(tree, exp.Column):
            tree = exp.Case().when(guard.copy(), tree.copy())
        name = self._hidden.name(tree)
        return sort_of(ordered, name).applied(F.col(name))

    def _of_hidden(self, tree: Node) -> Node:
        """An aggregate of Spark's over hidden columns. Constants stay, because Spark may require a constant there."""
        copy = _without_filter(tree.copy())
        call = aggregate_of(copy)
        inside: list[Node] = []
        around = copy
        while around is not call:
            if isinstance(around, exp.Filter):
                inside.append(around.expression.this)
            elif isinstance(around, exp.WithinGroup):
                inside += [ordered.this for ordered in around.expression.expressions]
            around = around.this
        for argument in call.expressions:
            inside += argument.expressions if isinstance(argument, exp.Distinct) else [argument]
        rows = call.name.lower() == "count" and not call.find(exp.Distinct)
        if any(part.is_star and not (rows and isinstance(part, exp.Star)) for part in inside):
            raise error_at(call, f"{canonical(call)}: name the columns instead of *")
        computed = [part for part in inside if is_computed(part) and not part.is_star]
        late = len(computed) > 1 or call.name.lower() in _FIRST
        for part in computed:
            part.replace(self._hidden.guarded(part) if late else column(self._hidden.name(part)))
        return copy


def _without_filter(tree: Node) -> Node:
    """`count(x) FILTER (WHERE c)` as `count(CASE WHEN c THEN x END)`: the planner recognises aggregates of a column."""
    call = tree.this
    if not isinstance(tree, exp.Filter) or call.name.lower() not in KNOWN:
        return tree
    holder = call.expressions[0] if isinstance(call.expressions[0], exp.Distinct) else call
    if len(holder.expressions) != 1:
        return tree
    (argument,) = holder.expressions
    value = exp.Literal.number(1) if isinstance(argument, exp.Star) else argument
    holder.set("expressions", [exp.Case().when(tree.expression.this, value)])
    return call
