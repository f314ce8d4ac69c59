"""Keeps the time column of a stream, which has the watermark, with its rows, even if the query does not select it.

Window aggregates, top-N and joins of windows need it, but a subquery such as `SELECT name, window_start, window_end,
count(*) ...` omits it. So it is added to subqueries as a hidden column, and removed from the result of the statement.
"""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField
from sqlglot import exp

from spark_client.base.identifiers import identifiers_of
from spark_client.sql.rows.scope import HIDDEN, Scope
from spark_client.sql.text.nodes import Node, column
from spark_client.windows.columns import WATERMARK, WINDOW_TIME

__all__ = ["TIME", "carry", "is_carried_out", "is_stream", "time_fields", "time_name", "without_time"]

TIME = f"{HIDDEN}window_time"
"""The hidden column."""


def time_fields(frame: DataFrame) -> list[StructField]:
    """The columns with a watermark."""
    return [field for field in frame.schema.fields if WATERMARK in field.metadata]


def time_name(frame: DataFrame) -> str | None:
    """The name of the window time column that has the watermark; None if there is none, or several."""
    fields = [field.name for field in time_fields(frame)]
    return fields[0] if len(fields) == 1 and identifiers_of(frame).key(fields[0]) in (WINDOW_TIME, TIME) else None


def is_stream(scope: Scope, select: Node) -> bool:
    """Whether the rows of a SELECT are a stream; False if Spark cannot analyze it."""
    try:
        return scope.source(select).frame.isStreaming
    except PySparkException:
        return False


def is_carried_out(query: Node) -> bool:
    """Whether the columns of the query are read by name: in FROM, in a join, in WITH."""
    holder = query.parent
    if isinstance(holder, exp.CTE):
        return not (holder.args.get("alias") and holder.args["alias"].columns)
    if not isinstance(holder, exp.Subquery) or not isinstance(holder.parent, (exp.From, exp.Join)):
        return False
    return not (holder.args.get("alias") and holder.args["alias"].columns)


def carry(scope: Scope, select: Node) -> Node:
    """Add the time as a column to a SELECT over a stream of windows, unless it has it already."""
    if select.args.get("distinct") or select.args.get("group") or select.args.get("limit"):
        return select
    try:
        source = scope.source(select).frame
        name = time_name(source) if source.isStreaming else None
        if name is None or time_fields(scope.run(select)):
            return select
    except PySparkException:
        return select  # Spark reports the error when it runs the query
    select = select.copy()
    select.append("expressions", exp.alias_(column(name), TIME, quoted=True))
    return select


def without_time(frame: DataFrame) -> DataFrame:
    """The frame without the hidden column."""
    return frame.drop(TIME) if TIME in frame.columns else frame
