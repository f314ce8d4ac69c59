"""Window top-N and deduplication on streams, recognised by their form in SQL (FLIP-145).

    SELECT ... FROM (
      SELECT ..., ROW_NUMBER() OVER (PARTITION BY window_start, window_end, k ORDER BY price DESC) AS n FROM w
    ) WHERE n <= 3

Spark cannot rank rows of a stream, so the inner query becomes `window_top_n`. In batch Spark ranks the rows.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType, TimestampType
from sqlglot import exp

from spark_client.functions.window import desc
from spark_client.sql.rows.calls import CLAUSES
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import SelectSource
from spark_client.sql.rows.stream_times import TIME, is_stream, time_fields, time_name
from spark_client.sql.text.nodes import Node, column, conditions_of, set_conditions
from spark_client.windows.columns import WINDOW_END, WINDOW_START, WINDOW_TIME
from spark_client.windows.ranking import window_deduplicate, window_top_n

__all__ = ["rank_windows"]

_RANKS = {"row_number", "rank", "dense_rank"}
_MOST = 2**31 - 1


def rank_windows(scope: Scope, select: Node) -> Node:
    """The SELECT over the ranked rows; the same object if it has another form, or is not over a stream."""
    subquery = select.args["from_"].this if select.args.get("from_") is not None else None
    if not isinstance(subquery, exp.Subquery) or not isinstance(subquery.this, exp.Select):
        return select
    inner = subquery.this
    ranked = [
        (place, item)
        for place, item in enumerate(inner.expressions)
        if isinstance(item, exp.Alias) and isinstance(item.this, exp.Window) and _by_windows(scope, item.this)
    ]
    kept, rest = _ranks(scope, select, ranked[0][1].alias) if ranked else (None, [])
    missed = _missed(scope, inner, ranked, kept)
    if missed or kept is None:
        if missed and is_stream(scope, inner):
            scope.stages.append(f"no window top-N of a stream: {missed}")
        return select
    place, item = ranked[0]
    source = scope.source(inner)
    if not source.frame.isStreaming:
        scope.stages.append("window top-N in batch: Spark ranks the rows")
        return select
    if time_name(source.frame) is None:
        scope.stages.append("no window top-N of a stream: the rows have no window_time with a watermark")
        return select
    scope.stages.append(
        f"window top-N of a stream: {item.this.this.name.upper()} from {kept[0]} to {kept[1]} as {item.alias}, of the "
        "rows of each window when the watermark has passed it"
    )
    table = scope.table(_ranked(scope, source, inner, place, kept))
    if subquery.args.get("alias") is not None:
        table.set("alias", subquery.args["alias"].copy())
    select = select.copy()
    select.args["from_"].set("this", table)
    set_conditions(select, rest)
    return select


def _missed(scope: Scope, inner: Node, ranked: Sequence[tuple[int, exp.Alias]], kept: tuple[int, int] | None) -> str:
    """Why a SELECT that ranks rows is not a window top-N; "" if it is one, or does not rank rows."""
    if not ranked:
        ranks = [each for item in inner.expressions for each in item.find_all(exp.Window) if _ranks_rows(each)]
        return (_lacks(scope, ranks[0]) or "the rank has no alias") if ranks else ""
    for part in ("group", "distinct", "limit", "offset", *CLAUSES):
        if inner.args.get(part):
            return f"the SELECT that ranks has {part.upper()}; put it in a subquery"
    if len(ranked) > 1:
        return "the SELECT ranks rows twice"
    name = ranked[0][1].alias
    return "" if kept is not None else f"WHERE keeps no ranks up to a constant, as in {name} <= 3"


def _lacks(scope: Scope, window: Node) -> str:
    """Why the window of a rank is not one of rows of a window of time; "" if it is one."""
    keys = _keys(scope, window)
    lacking = [name for name in (WINDOW_START, WINDOW_END) if name not in keys]
    if lacking:
        return f"PARTITION BY lacks {' and '.join(lacking)}"
    if len(keys) != len(window.args["partition_by"]):
        return "PARTITION BY has an expression; compute it in a subquery"
    if window.args.get("order") is None:
        return "the window has no ORDER BY"
    if window.args.get("spec"):
        return "the window has a frame"
    if not all(_is_plain(each) for each in window.args["order"].expressions):
        return "NULLS FIRST or NULLS LAST differs from Spark's default"
    return ""


def _ranks_rows(window: Node) -> bool:
    return isinstance(window.this, exp.Anonymous) and window.this.name.lower() in _RANKS


def _by_windows(scope: Scope, window: Node) -> bool:
    return _ranks_rows(window) and not window.this.expressions and not _lacks(scope, window)


def _keys(scope: Scope, window: Node) -> list[str]:
    """The keys of the columns in PARTITION BY."""
    columns = (each for each in window.args.get("partition_by") or () if isinstance(each, exp.Column))
    return [scope.key(each.name) for each in columns]


def _is_plain(ordered: Node) -> bool:
    """Whether nulls are where Spark has them by default, as the smallest values."""
    return bool(ordered.args.get("nulls_first")) is not bool(ordered.args.get("desc"))


def _ranks(scope: Scope, select: Node, name: str) -> tuple[tuple[int, int] | None, list[Node]]:
    """The first and the last rank that WHERE keeps, and the remaining conditions."""
    first, last, rest, bounded = 1, _MOST, [], False
    for part in conditions_of(select):
        bound = _bound(scope, part.unnest(), name)
        if bound is None:
            rest.append(part.copy())
            continue
        first, last, bounded = max(first, bound[0]), min(last, bound[1]), bounded or bound[1] < _MOST
    return ((first, last), rest) if bounded and first <= last else (None, rest)


def _bound(scope: Scope, part: Node, name: str) -> tuple[int, int] | None:
    """The first and the last rank that `n <= 3`, `3 > n`, `n = 1` or `n BETWEEN 1 AND 3` keep."""

    def number(tree: Node) -> int | None:
        return int(tree.this) if isinstance(tree, exp.Literal) and tree.is_int else None

    def is_rank(tree: Node) -> bool:
        return isinstance(tree, exp.Column) and scope.identifiers.same(tree.name, name)

    if isinstance(part, exp.Between) and is_rank(part.this):
        low, high = number(part.args["low"]), number(part.args["high"])
        return (low, high) if low is not None and high is not None else None
    turned = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ}
    kind: type[Node] = type(part)
    if kind not in turned:
        return None
    if is_rank(part.this):
        value = number(part.expression)
    elif is_rank(part.expression):
        value, kind = number(part.this), turned[kind]
    else:
        return None
    if value is None:
        return None
    bounds = {
        exp.LT: (1, value - 1), exp.LTE: (1, value), exp.GT: (value + 1, _MOST), exp.GTE: (value, _MOST),
        exp.EQ: (value, value),
    }  # fmt: skip
    return bounds[kind]


def _ranked(scope: Scope, source: SelectSource, inner: Node, place: int, kept: tuple[int, int]) -> DataFrame:
    """The columns of the inner SELECT for the rows whose ranks are kept; the item at `place` is the rank."""
    first, last = kept
    before, ranking = inner.expressions[:place], inner.expressions[place]
    window = ranking.this
    others = [item for item in inner.expressions if item is not ranking]
    ahead = len(scope.run(source.selecting([item.copy() for item in before])).columns) if before else 0
    time = time_name(source.frame)
    assert time is not None
    windows = (WINDOW_START, WINDOW_END, scope.key(time))
    keys = [key for key in window.args["partition_by"] if scope.key(key.name) not in windows]
    order = window.args["order"].expressions
    extra = [
        *keys,
        *(ordered.this for ordered in order),
        column(WINDOW_START), column(WINDOW_END), column(time),
    ]  # fmt: skip
    names = [scope.hidden("extra") for _ in extra[:-3]] + [WINDOW_START, WINDOW_END, WINDOW_TIME]
    items = [exp.alias_(tree.copy(), name, quoted=True) for tree, name in zip(extra, names, strict=True)]
    wide = scope.run(source.selecting([*(item.copy() for item in others), *items]))
    shown = wide.columns[: -len(extra)]
    timed = [field.name in {each.name for each in time_fields(wide)} for field in wide.schema.fields]
    places = [scope.hidden("shown") for _ in shown]
    named = wide.toDF(*places, *names)
    by = names[len(keys) : -3]
    ordering = [desc(name) if each.args.get("desc") else name for name, each in zip(by, order, strict=True)]
    rank = scope.hidden("rank")
    partition = names[: len(keys)]
    function = window.this.name.lower()
    one_row = function == "row_number" and last == 1 and len(by) == 1
    if one_row and isinstance(named.schema[by[0]].dataType, (TimestampType, TimestampNTZType)):
        keep = "last" if order[0].args.get("desc") else "first"
        top = window_deduplicate(named, by[0], partition, keep=keep, rank_column=rank)
    else:
        top = window_top_n(named, last, ordering, partition, rank=function, first=first, rank_column=rank)
    # A window time that the query selects is taken from the result of `window_top_n`, which has the watermark.
    columns = [
        F.col(WINDOW_TIME if is_time else place).alias(name)
        for place, name, is_time in zip(places, shown, timed, strict=False)
    ]
    columns.insert(ahead, F.col(rank).alias(ranking.alias))
    if not any(timed[: len(shown)]):
        columns.append(F.col(WINDOW_TIME).alias(TIME))
    return top.select(*columns)
