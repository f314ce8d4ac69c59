"""Window joins on streams, recognised by their form in SQL (FLIP-145): equality of window_start and of window_end.

Spark drops rows from the state of a join of streams by their watermark column, which the query does not mention. So
the times of both sides are compared too; they are equal for equal windows. In batch, and if a join does not have this
form, the query is not changed.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from spark_client.base.grouped import described_rows
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import TIME, is_stream, time_fields, time_name
from spark_client.sql.text.nodes import Node, alias_of, column, conditions_of, conjuncts, set_conditions
from spark_client.sql.text.parsing import error_at
from spark_client.windows.columns import WATERMARK, WINDOW_END, WINDOW_START, in_zone, watermark_of, without_watermark
from spark_client.windows.joining import each_once, with_row_ids, without_repeats

__all__ = ["join_windows"]


class _Side:
    """One table of a join: its columns, and the column that has the watermark."""

    def __init__(self, scope: Scope, table: Node) -> None:
        self.table = table
        self.key = scope.key
        self.name = table.alias_or_name
        query = exp.Select(expressions=[exp.Star()]).from_(table.copy())
        self.frame = scope.source(query).frame
        self.time = time_name(self.frame) if self.frame.isStreaming else None
        self.columns = set(map(self.key, self.frame.columns))

    def column(self, name: str) -> Node:
        return column(name, self.name)

    def all_columns(self) -> Node:
        return exp.Column(this=exp.Star(), table=exp.to_identifier(self.name, quoted=True))

    def over(self, table: Node) -> Node:
        """Another table under the same name."""
        table.set("alias", alias_of(self.name))
        return table

    def described(self, scope: Scope, name: str) -> Node:
        """The table with a column of that name that describes its rows in the state of the join."""
        description = f"{self.name}: rows {self.frame.schema.simpleString()}{in_zone(self.frame)}"
        rows = self.frame.select("*", described_rows(description).alias(name))
        return self.over(scope.table(rows))

    def qualified(self, tree: Node) -> Node:
        """A copy in which the unqualified names of its columns are qualified."""

        def visit(node: Node) -> Node:
            plain = isinstance(node, exp.Column) and not node.table and not isinstance(node.this, exp.Star)
            return self.column(node.name) if plain and self.key(node.name) in self.columns else node

        return tree.transform(visit)


def join_windows(scope: Scope, select: Node) -> Node:
    """The SELECT with the times of both sides equal; the same object if it is not a window join of two streams."""
    source = select.args.get("from_")
    joins = select.args.get("joins") or ()
    if source is None or select.args.get("laterals") or len(joins) > 1:
        return select
    if joins:
        return _joined(scope, select)
    found = [(part, subquery) for part in conditions_of(select) if (subquery := _subquery(part)) is not None]
    if not found:
        return select
    left = _Side(scope, source.this)
    return _filtered(scope, select, left, found) if left.time is not None else select


def _joined(scope: Scope, select: Node) -> Node:
    join = select.args["joins"][0]
    condition = join.args.get("on")
    if condition is None or select.args.get("group") or not _equal_windows(scope, conjuncts(condition)):
        missed = _missed(scope, select, join)
        if missed and is_stream(scope, select):
            scope.stages.append(f"no window join of streams: {missed}")
        return select
    left = _Side(scope, select.args["from_"].this)
    right = _Side(scope, join.this)
    if left.time is None or right.time is None:
        streams = [side.name for side in (left, right) if side.frame.isStreaming]
        lacking = [side.name for side in (left, right) if side.frame.isStreaming and side.time is None]
        if lacking and len(streams) == 2:
            raise error_at(
                join,
                "a window join of streams needs window_time with a watermark on both sides, or its state is never "
                f"removed; {lacking[0]} has none: set a watermark before the window function, and keep window_time",
            )
        scope.stages.append(
            "window join in batch: Spark joins the rows" if not streams
            else f"no window join of streams: {lacking[0]} has no window_time with a watermark" if lacking
            else f"no window join of streams: {streams[0]} is a stream, the other is not"
        )  # fmt: skip
        return select
    select = select.copy()
    join = select.args["joins"][0]
    scope.stages.append(f"window join of streams: {left.name} and {right.name}, by their windows and watermarks")
    one, other = left.column(left.time), right.column(right.time)
    kind = (join.side or "").upper()
    states = [scope.hidden("state") for _ in range(2)]
    select.args["from_"].set("this", left.described(scope, states[0]))
    join.set("this", right.described(scope, states[1]))
    described = [
        exp.Is(this=side.column(name), expression=exp.Null()) for side, name in zip((left, right), states, strict=True)
    ]
    parts = [join.args["on"], exp.EQ(this=one, expression=other), exp.or_(*described)]
    if kind == "FULL":
        # In the state of a stream Spark treats null keys as equal; in other joins it removes them first.
        equal = [part for part in conjuncts(join.args["on"]) if isinstance(part, exp.EQ)]
        parts += [exp.Not(this=exp.Is(this=part.this.copy(), expression=exp.Null())) for part in equal]
    join.set("on", exp.and_(*parts))
    time = {"RIGHT": other, "FULL": exp.Coalesce(this=one, expressions=[other])}.get(kind, one)
    select.append("expressions", exp.alias_(time.copy(), TIME, quoted=True))
    return exp.Select(expressions=[exp.Star()]).from_(
        scope.table(_with_one_time(scope, scope.run(select), left, states))
    )


def _with_one_time(scope: Scope, frame: DataFrame, left: _Side, states: Sequence[str]) -> DataFrame:
    """The joined rows without the columns of the state. Only the last one, their time, has a watermark."""
    metadata = watermark_of(next(f for f in left.frame.schema.fields if f.name == left.time))
    # By position, because both sides may have columns with the same name.
    names = [scope.hidden("column") for _ in frame.columns]
    plain = frame.toDF(*names)
    for field in time_fields(plain):
        if field.name != names[-1]:
            plain = without_watermark(plain, field)
    if WATERMARK not in plain.schema[names[-1]].metadata:
        plain = plain.withMetadata(names[-1], metadata or {})
    hidden = (TIME, *states)
    shown = [(place, name) for place, name in zip(names, frame.columns, strict=True) if name not in hidden]
    columns = [F.col(place).alias(name) for place, name in [*shown, (names[-1], TIME)]]
    return plain.select(*columns)


def _missed(scope: Scope, select: Node, join: Node) -> str:
    """Why a join that refers to a bound of windows is not a window join; "" if it refers to none."""
    condition = join.args.get("on")
    if condition is None:
        using = scope.identifiers.keys(each.name for each in join.args.get("using") or ())
        return "it has USING; write the equalities in ON" if {WINDOW_START, WINDOW_END} & using else ""
    named = scope.identifiers.keys(node.name for node in condition.find_all(exp.Column))
    if not {WINDOW_START, WINDOW_END} & named:
        return ""
    if select.args.get("group"):
        return "the SELECT has GROUP BY; put the join in a subquery"
    return "ON must have equality of window_start and of window_end, connected by AND"


def _filtered(scope: Scope, select: Node, left: _Side, found: Sequence[tuple[Node, exp.Select]]) -> Node:
    """Replace EXISTS and IN, which Spark does not support on streams, by joins; their opposites by anti-joins."""
    changed = None
    for part, subquery in found:
        inner = subquery.args["from_"].this if subquery.args.get("from_") is not None else None
        changes_rows = subquery.args.get("joins") or subquery.args.get("group")
        if inner is None or changes_rows or not _equal_windows(scope, conditions_of(subquery)):
            continue
        right = _Side(scope, inner)
        if right.time is None or right.key(right.name) == left.key(left.name):
            continue
        changed = (changed or select).copy()
        _replace(scope, changed, left, right, part)
    return changed or select


def _replace(scope: Scope, select: Node, left: _Side, right: _Side, part: Node) -> None:
    same = next(each for each in conditions_of(select) if each == part)
    subquery = _subquery(same)
    assert subquery is not None and left.time is not None and right.time is not None
    on = exp.and_(
        right.qualified(subquery.args["where"].this),
        exp.EQ(this=left.column(left.time), expression=right.column(right.time)),
    )
    anti = isinstance(same.unnest(), exp.Not)
    tested = same.unnest().this.unnest() if anti else same.unnest()
    kind = "without" if anti else "with"
    scope.stages.append(f"window join of streams: rows of {left.name} {kind} a partner in {right.name}")
    if isinstance(tested, exp.In):
        value, item = left.qualified(tested.this), right.qualified(subquery.expressions[0].unalias())
        equal: Node = exp.EQ(this=value, expression=item)
        if anti:
            # If a comparison with null is unknown, NOT IN is not true either.
            equal = exp.or_(equal, *(exp.Is(this=each.copy(), expression=exp.Null()) for each in (value, item)))
        on = exp.and_(on, equal)
    rest = [left.qualified(each) for each in conditions_of(select) if each is not same]
    items = [left.all_columns() if isinstance(item, exp.Star) else left.qualified(item) for item in select.expressions]
    select.set("expressions", items)
    if anti:
        select.append("joins", exp.Join(this=right.table.copy(), side="LEFT", on=on))
        rest.append(exp.Is(this=right.column(right.time), expression=exp.Null()))
    else:
        left.frame = _with_partner(scope, left, right, on)
        select.args["from_"].set("this", left.over(scope.table(left.frame)))
    set_conditions(select, rest)


def _with_partner(scope: Scope, left: _Side, right: _Side, on: Node) -> DataFrame:
    """The rows of the left side that have a partner, without repetitions."""
    assert left.time is not None
    equal = [_compared(part, left, right) for part in conjuncts(on)]
    once = all(equal)
    rows = left.frame if once else with_row_ids(left.frame)
    names = [name for name in right.frame.columns if right.key(name) in equal]
    partners = without_repeats(right.frame, names) if once else right.frame
    select = exp.Select(expressions=[left.all_columns()]).from_(left.over(scope.table(rows)))
    select.append("joins", exp.Join(this=right.over(scope.table(partners)), on=on))
    joined = scope.run(select)
    return joined if once else each_once(joined, left.time)


def _compared(part: Node, left: _Side, right: _Side) -> str:
    """The key of the column of the right side that is compared with one of the left; "" for any other condition."""
    if not isinstance(part, exp.EQ) or not all(isinstance(each, exp.Column) for each in (part.this, part.expression)):
        return ""
    own = {left.key(each.table): left.key(each.name) for each in (part.this, part.expression)}
    return own[right.key(right.name)] if own.keys() == {left.key(left.name), right.key(right.name)} else ""


def _equal_windows(scope: Scope, parts: Sequence[Node]) -> bool:
    """Whether both bounds are equal on both sides."""
    equal = {
        scope.key(part.this.name)
        for part in parts
        if isinstance(part, exp.EQ)
        and isinstance(part.this, exp.Column)
        and isinstance(part.expression, exp.Column)
        and scope.identifiers.same(part.this.name, part.expression.name)
    }
    return {WINDOW_START, WINDOW_END} <= equal


def _subquery(part: Node) -> exp.Select | None:
    """The SELECT inside of EXISTS, IN and their opposites; None for any other condition."""
    tested = part.unnest()
    tested = tested.this.unnest() if isinstance(tested, exp.Not) else tested
    if not isinstance(tested, (exp.Exists, exp.In)):
        return None
    query = tested.args.get("this" if isinstance(tested, exp.Exists) else "query")
    query = query.unnest() if query is not None else None
    return query if isinstance(query, exp.Select) else None
