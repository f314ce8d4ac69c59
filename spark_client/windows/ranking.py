"""Window top-N and window deduplication: the first rows of every window, by an order (FLIP-145)."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_client.base.changelogs import require_no_fires
from spark_client.base.errors import PlanError
from spark_client.base.grouped import described, grouped
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.functions.window import Ordered, desc
from spark_client.windows.columns import (
    WATERMARK,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    emitted,
    field_named,
    fields_named,
    hidden,
    in_zone,
    without_watermark,
)
from spark_client.windows.netting import ARRIVAL, changes_of, settled

__all__ = ["window_deduplicate", "window_top_n"]

Order = Sequence[str | Ordered] | str | Ordered

_RANKS = {"row_number": F.row_number, "rank": F.rank, "dense_rank": F.dense_rank}
_RANK, _ROWS, _ARRIVAL, _ORDER = hidden("rank"), hidden("rows"), hidden("arrival"), hidden("order")


def window_top_n(
    frame: DataFrame, n: int, order_by: Order, partition_by: Sequence[str] | str = (), *,
    rank: str = "row_number", first: int = 1, rank_column: str | None = None, changelog: bool | None = None,
) -> DataFrame:  # fmt: skip
    """Keep the first rows of every window: `window_top_n(windowed, 3, order_by=desc("price"))`.

    On a stream window_time must have a watermark: Spark keeps the rows of a window until the watermark has passed it,
    and then ranks them once. Of a changelog, the rows that remain of each window are ranked, without the column of
    their kinds.

    Args:
        frame: A frame that a window function returned.
        n: The last rank that is kept.
        order_by: Names of columns, or `spark_client.desc` of them; nulls are the smallest values.
        partition_by: Names of columns whose values are ranked separately.
        rank: row_number, rank or dense_rank; with row_number equal rows are in the order of the frame.
        first: The first rank that is kept; ranks begin at 1.
        rank_column: The name of a new last column with the rank.
        changelog: False treats a frame with `row_kind` or `_change_type` as a plain table, True requires a changelog.

    Raises:
        PlanError: The frame cannot be ranked like this; the message has the reason.
    """
    return _top_n(frame, n, order_by, partition_by, rank, first, rank_column, changelog, latest=False)


def _top_n(
    frame: DataFrame, n: int, order_by: Order, partition_by: Sequence[str] | str, rank: str, first: int,
    rank_column: str | None, changelog: bool | None, *, latest: bool,
) -> DataFrame:  # fmt: skip
    """If `latest`, the last one of rows that are equal in the order is ranked first, otherwise the first one."""
    if rank not in _RANKS:
        raise PlanError(f"window_top_n: rank {rank!r} is not one of {', '.join(_RANKS)}")
    if not 1 <= first <= n:
        raise PlanError(f"window_top_n: there are no ranks from {first} to {n}; ranks begin at 1")
    require_no_fires(frame, "window_top_n")
    kind = changes_of(frame, changelog, "window_top_n")
    order = _ordering(frame, order_by)
    groups = _groups(frame, partition_by, "window_top_n")
    identifiers = identifiers_of(frame)
    if rank_column is not None and identifiers.key(rank_column) in identifiers.keys(frame.columns):
        raise PlanError(f"window_top_n: the frame has a column {rank_column!r} already; choose another rank_column")
    if kind is not None:
        frame = settled(frame, kind)
        order += [(ARRIVAL, latest)] if rank == "row_number" else []
    ranked = (_ranked_stream if frame.isStreaming else _ranked)(frame, groups, order, rank, latest)
    chosen = ranked.where(F.col(_RANK).between(first, n)).drop(ARRIVAL)
    return chosen.drop(_RANK) if rank_column is None else chosen.withColumnRenamed(_RANK, rank_column)


def window_deduplicate(
    frame: DataFrame, order_by: str, partition_by: Sequence[str] | str = (), *, keep: str = "first",
    rank_column: str | None = None, changelog: bool | None = None,
) -> DataFrame:  # fmt: skip
    """Keep one row per window and key: the first or the last by the time column.

    Of rows of equal time, "first" keeps the one that arrived first, and "last" the one that arrived last. Streams and
    changelogs are treated as by `window_top_n`.

    Args:
        frame: A frame that a window function returned.
        order_by: The name of the time column.
        partition_by: Names of the columns of the key.
        keep: "first" or "last".
        rank_column: The name of a new last column with the rank, which is 1.
        changelog: As in `window_top_n`.

    Raises:
        PlanError: The frame has no such column, or cannot be ranked.
    """
    if keep not in ("first", "last"):
        raise PlanError(f"window_deduplicate: keep {keep!r} is neither first nor last")
    field_named(frame, order_by, "window_deduplicate: order_by")
    order = order_by if keep == "first" else desc(order_by)
    return _top_n(frame, 1, order, partition_by, "row_number", 1, rank_column, changelog, latest=keep == "last")


def _groups(frame: DataFrame, partition_by: Sequence[str] | str, what: str) -> list[str]:
    """The columns within which rows are ranked; on a stream they include the column with the watermark."""
    names = fields_named(frame, partition_by, f"{what}: partition_by")
    windows = fields_named(frame, (WINDOW_START, WINDOW_END), what)
    if frame.isStreaming:
        time = field_named(frame, WINDOW_TIME, f"{what} on a stream")
        if WATERMARK not in time.metadata:
            raise PlanError(
                f"{what} on a stream needs a watermark on {WINDOW_TIME}; set one before the window function"
            )
        windows.append(time.name)
    return [*windows, *(name for name in names if name not in windows)]


def _ordering(frame: DataFrame, order_by: Order) -> list[tuple[str, bool]]:
    """Names of columns, each with whether it is descending."""
    given = [order_by] if isinstance(order_by, (str, Ordered)) else list(order_by)
    if not given:
        raise PlanError("window_top_n: order_by is empty")
    order = []
    for each in given:
        down = isinstance(each, Ordered)
        name = each.column if isinstance(each, Ordered) else each
        if not isinstance(name, str):
            raise PlanError("window_top_n: order_by takes names of columns, and spark_client.desc of them")
        order.append((field_named(frame, name, "window_top_n: order_by").name, down))
    return order


def _ranked(
    frame: DataFrame, groups: Sequence[str], order: Sequence[tuple[str, bool]], rank: str, latest: bool
) -> DataFrame:
    by = [column_named(name).desc() if down else column_named(name).asc() for name, down in order]
    if rank == "row_number":
        # Computed before the shuffle: afterwards it would be another position.
        frame = frame.select("*", F.monotonically_increasing_id().alias(_ARRIVAL))
        by.append(F.col(_ARRIVAL).desc() if latest else F.col(_ARRIVAL).asc())
    window = Window.partitionBy(*map(column_named, groups)).orderBy(*by)
    return frame.select("*", _RANKS[rank]().over(window).alias(_RANK)).drop(_ARRIVAL)


def _ranked_stream(
    frame: DataFrame, groups: Sequence[str], order: Sequence[tuple[str, bool]], rank: str, latest: bool
) -> DataFrame:
    """Rank rows when Spark emits them from its state, in which it gathers the rows of a window."""
    names = [hidden(str(place)) for place in range(len(frame.columns))]
    place = {name: names[index] for index, name in enumerate(frame.columns)}
    keys = [F.col(place[name]).alias(hidden(f"key_{index}")) for index, name in enumerate(groups)]
    parts = [F.col(place[name]).alias(str(index)) for index, (name, _) in enumerate(order)]
    row = F.struct(F.struct(*parts).alias(_ORDER), F.struct(*names).alias("row"))
    ordering = ", ".join(name for name, _ in order)
    rows = f"rows {frame.schema.simpleString()} in the order of ({ordering})"
    description = f"{rows} by ({', '.join(groups)}){in_zone(frame)}"
    gathered = grouped(frame.toDF(*names), keys, [described(F.collect_list(row), description).alias(_ROWS)])
    compare = [down for _, down in order]
    # The rows are in the order in which they arrived, and Spark's sort keeps the order of equal ones.
    arrived = F.reverse(_ROWS) if latest else F.col(_ROWS)
    in_order = gathered.select(
        "*", F.array_sort(arrived, lambda one, other: _compared(one, other, compare)).alias("rows")
    )
    if rank == "row_number":
        spread = in_order.select(hidden("key_2"), F.posexplode("rows"))
        position = F.col("pos") + 1
    else:
        # By groups of equal rows, so that the rank of a row is found without a look at all rows before it.
        equal = _equal_groups(in_order, compare).select(hidden("key_2"), F.posexplode("groups").alias(_RANK, "equal"))
        spread = equal.select(hidden("key_2"), _RANK, F.col("equal.before"), F.explode("equal.rows"))
        position = F.col("before" if rank == "rank" else _RANK) + 1
    fields, same = frame.schema.fields, identifiers_of(frame).same
    columns = []
    for name, field in zip(names, fields, strict=True):
        is_time = same(field.name, WINDOW_TIME)
        value = F.col(hidden("key_2")) if is_time else F.col(f"col.row.{name}")
        columns.append(value.alias(name))
    flat = spread.select(*columns, position.alias(_RANK)).toDF(*frame.columns, _RANK)
    for field in fields:
        if not same(field.name, WINDOW_TIME):
            flat = without_watermark(flat, field)
    return emitted(flat)


def _equal_groups(in_order: DataFrame, compare: Sequence[bool]) -> DataFrame:
    """Add the column `groups` to windows with sorted `rows`: an array of `rows` that are equal in the order.

    `before` is the number of rows before them. Each array is a column of its own, because Spark would compute an
    expression inside a lambda function for every element.
    """
    rows = F.col("rows")
    first = F.transform(
        rows,
        lambda each, at: F.when(at == 0, at).when(
            _compared(rows[F.greatest(at - 1, F.lit(0))], each, compare) != 0, at
        ),
    )
    starts = in_order.select("*", F.filter(first, lambda at: at.isNotNull()).alias("starts"))
    start, ends = F.col("starts"), F.concat(F.slice("starts", 2, F.size("rows")), F.array(F.size("rows")))
    bounds = starts.select("*", F.arrays_zip(start.alias("start"), ends.alias("end")).alias("bounds"))
    groups = F.transform(
        "bounds",
        lambda each: F.struct(
            each["start"].alias("before"),
            F.slice("rows", each["start"] + 1, each["end"] - each["start"]).alias("rows"),
        ),
    )
    return bounds.select(hidden("key_2"), groups.alias("groups"))


def _compared(one: Column, other: Column, down: Sequence[bool]) -> Column:
    """Compare two rows by the order: -1, 0 or 1; nulls are the smallest."""

    def part(index: int, descends: bool, rest: Column) -> Column:
        left, right = one[_ORDER][str(index)], other[_ORDER][str(index)]
        less = (left < right) | (left.isNull() & right.isNotNull())
        more = (left > right) | (left.isNotNull() & right.isNull())
        smaller, larger = (1, -1) if descends else (-1, 1)
        return (
            F.when(F.coalesce(less, F.lit(False)), smaller).when(F.coalesce(more, F.lit(False)), larger).otherwise(rest)
        )

    indexed = list(enumerate(down))
    return reduce(lambda rest, item: part(item[0], item[1], rest), reversed(indexed), F.lit(0))
