"""Cases of streams with two or three stages that keep state, ours and Spark's own, over rows in any order.

No row is late, because the watermark is further behind than the rows are apart, and a last row closes their windows. So
the result must be that of the same stages over a table of all rows, whatever the order of arrival. The query is stopped
between files, and goes on in a session with other settings.
"""

import datetime as dt
from typing import Any

from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.stream_processes import started_stream
from tests.differential.tables import Column, Settings, Table

__all__ = ["draw_stream_of_chain"]

LONG = dt.timedelta(days=10)
WINDOW = "'window_start', 'window_end', 'window_time'"
SUMS = ("sum_bigint", "vsum_bigint", "bsum_bigint", "rsum_bigint")
OTHERS = (
    ("spark.sql.shuffle.partitions", "3"), ("spark.sql.ansi.enabled", "false"),
    ("spark.sql.execution.arrow.maxRecordsPerBatch", "2"), ("spark.remoteudf.bundled-agg.size", "1"),
)  # fmt: skip
"""Settings with which a query may continue."""


def draw_stream_of_chain(draw: Choices, settings: Settings, files: list[Any], ddl: str) -> Case:
    """Rows, perhaps repeated or from a join, in windows, that are aggregated or ranked, perhaps twice."""
    tags = {"stream", "stream of a chain"}
    last = max(row[3] for file in files for row in file) + 2 * LONG
    arriving = [[*file, *([draw.of(file)] if draw.chance(40) else [])] for file in files]
    table = Table(
        "b",
        tuple(Column(*column.split(" ", 1)) for column in ddl.split(", ")),
        (tuple(r for f in arriving for r in f),),
    )
    stages = [_rows(draw, tags), _windows(draw), _first(draw, tags)]
    if draw.chance(60):
        stages.append(_second(draw, tags))
    query = "{0}"
    for stage in stages:
        query = stage.replace("{0}", query)
    # Times are instants, which are collected in UTC.
    end = (last - LONG).replace(tzinfo=None).isoformat(" ")
    shown = f".where(\"window_end < TIMESTAMP_NTZ '{end}'\").drop('window_time', 'at')"
    ours, sparks = (
        query.replace("{0}", rows).replace("{1}", rows) for rows in ("spark.table('s')", "spark.table('b')")
    )
    sparks = sparks.replace("dropDuplicatesWithinWatermark", "dropDuplicates")
    arriving.append([(-1, "far", 0, last)])
    restarted = dict(draw.some(OTHERS, 0, 2))
    started = started_stream(draw, arriving, f"{LONG.days} days", ours, ddl, restarted).ours
    return Case(settings, (table,), started + shown, sparks + shown, tags)


def _rows(draw: Choices, tags: set[str]) -> str:
    """A stage of Spark's own that removes repeated rows, or rows as they are."""
    kind = draw.of(("all", "distinct", "within"))
    tags.add(f"chain over {kind} rows")
    return {
        "all": "{0}", "distinct": "{0}.dropDuplicates(['id', 'at'])",
        "within": "{0}.dropDuplicatesWithinWatermark(['id'])",
    }[kind]  # fmt: skip


def _windows(draw: Choices) -> str:
    size = draw.of((10, 30, 60))
    return draw.of((
        f"w.tumble({{0}}, 'at', '{size} minutes')", f"w.hop({{0}}, 'at', '{size} minutes', '{2 * size} minutes')",
        f"w.cumulate({{0}}, 'at', '{size} minutes', '{2 * size} minutes')",
    ))  # fmt: skip


def _first(draw: Choices, tags: set[str]) -> str:
    """Rows of windows become fewer rows with k, v and id."""
    return draw.of((_aggregated, _by_spark, _ranked))(draw, tags, draw.of((f"{WINDOW}, 'k'", WINDOW)))


def _second(draw: Choices, tags: set[str]) -> str:
    """Another window aggregate or ranking, in the same windows or in larger ones."""
    if draw.chance(30):
        tags.add("chain of cascaded windows")
        columns = "{0}.select('v', 'id', F.col('window_time').alias('at'))"
        larger = f"w.tumble({columns}, 'at', '{draw.of((60, 120))} minutes')"
        return draw.of((_aggregated, _by_spark))(draw, tags, WINDOW).replace("{0}", larger)
    return draw.of((_aggregated, _by_spark, _ranked, _joined))(draw, tags, WINDOW)


def _aggregated(draw: Choices, tags: set[str], keys: str) -> str:
    tags.add("chain with a remote aggregate")
    others = draw.of(("", ", F.count('*').alias('n')"))
    call = f"remote.function({draw.of(SUMS)!r})('v').alias('v')"
    return f"remote.group_by({{0}}, {keys}).agg({call}, F.max('id').alias('id'){others}).drop('n')"


def _by_spark(draw: Choices, tags: set[str], keys: str) -> str:
    tags.add("chain with an aggregate of Spark's")
    return f"{{0}}.groupBy({keys}).agg(F.sum('v').alias('v'), F.max('id').alias('id'))"


def _ranked(draw: Choices, tags: set[str], keys: str) -> str:
    rank = draw.of(("row_number", "rank", "dense_rank"))
    tags.add(f"chain with {rank}")
    by = "['k']" if "'k'" in keys else "[]"
    order = draw.of(("['v', 'id']", "[desc('v'), 'id']"))
    return f"w.window_top_n({{0}}, {draw.between(1, 2)}, {order}, {by}, rank={rank!r})"


def _joined(draw: Choices, tags: set[str], keys: str) -> str:
    """A join with the number of rows of each window, which is another path from the same source."""
    tags.add("chain with a join")
    how = draw.of(("inner", "left"))
    source = "w.tumble({1}, 'at', '10 minutes')"
    return f"w.window_join({{0}}, {source}.groupBy({keys}).agg(F.count('*').alias('n')), how={how!r})"
