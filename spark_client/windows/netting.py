"""The net rows of a changelog: of a table, or of a window when it ends.

-U and -D retract one row with the same values, from the window of their own time if there is one. Spark sums up the
kinds of equal rows. On a stream it does so until the watermark has passed the window, and then drops the state. So the
next operator, such as an aggregate, a join or a ranking, receives each row of a window once and not late.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from remote_udf.row_kinds import ROW_KIND, RowKind
from spark_client.base.changelogs import kind_code, kind_column, require_retract, sign_of
from spark_client.base.errors import PlanError
from spark_client.base.grouped import described, grouped
from spark_client.windows.columns import WINDOW_TIME, hidden, in_zone, watermark_of

__all__ = ["ARRIVAL", "changes_of", "net_changes", "net_rows", "settled"]

ARRIVAL = hidden("first_arrival")
"""When the first of equal rows arrived: its position; on a stream the time of its micro-batch."""
_NET = hidden("net")


def changes_of(frame: DataFrame, changelog: bool | None, what: str) -> str | None:
    """The column with the kinds of a changelog; None if the frame is none. Raises PlanError if one is required."""
    found = kind_column(frame)
    if changelog and found is None:
        raise PlanError(f"{what}: no column {ROW_KIND!r} or '_change_type' makes this a changelog")
    if found is None or changelog is False:
        return None
    require_retract(frame, what)
    return found


def net_changes(frame: DataFrame, kind: str) -> DataFrame:
    """A changelog without rows that cancel out. The others are +I, or -D if more were retracted than added.

    The result has the same columns, and ARRIVAL. On a stream, rows are emitted when their window ends. Raises
    PlanError.
    """
    fields = frame.schema.fields
    for field in fields:
        if isinstance(field.dataType, (T.MapType, T.VariantType)):
            raise PlanError(f"changelog: rows with a column {field.name!r} of type "
                            f"{field.dataType.simpleString()} cannot be compared; remove it")  # fmt: skip
    if frame.isStreaming and not any(field.name == WINDOW_TIME and watermark_of(field) for field in fields):
        raise PlanError(f"changelog over windows on a stream needs a watermark on {WINDOW_TIME}")
    names = [hidden(str(place)) for place in range(len(fields))]
    own = [name for name, field in zip(names, fields, strict=True) if field.name != kind]
    # A stream has no positions, so rows of one micro-batch share a time.
    arrival = F.current_timestamp() if frame.isStreaming else F.monotonically_increasing_id()
    signed = frame.select("*", sign_of(kind_code(kind)).alias(_NET), arrival.alias(ARRIVAL)).toDF(*names, _NET, ARRIVAL)
    net = F.sum(_NET).cast("int")
    if frame.isStreaming:
        net = described(net, f"changes {frame.schema.simpleString()}{in_zone(frame)}")
    summed = grouped(signed, own, [net.alias(_NET), F.min(ARRIVAL).alias(ARRIVAL)])
    left = summed.where(F.col(_NET) != 0)
    added, taken = (RowKind.INSERT.value, RowKind.DELETE.value) if kind.lower() == ROW_KIND else ("insert", "delete")
    value = F.when(F.col(_NET) > 0, added).otherwise(taken)
    copies = F.explode(F.array_repeat(value, F.abs(F.col(_NET)))).alias(_NET)
    shown = [F.col(_NET if field.name == kind else name) for name, field in zip(names, fields, strict=True)]
    return left.select(*own, copies, ARRIVAL).select(*shown, ARRIVAL).toDF(*frame.columns, ARRIVAL)


def settled(frame: DataFrame, kind: str) -> DataFrame:
    """The rows that remain after a changelog, with ARRIVAL instead of the column of their kinds.

    A retraction of a row that was never added is ignored. Raises PlanError as `net_changes`.
    """
    return net_changes(frame, kind).where(sign_of(kind_code(kind)) > 0).drop(kind)


def net_rows(frame: DataFrame, what: str) -> DataFrame:
    """The rows that remain after a changelog, each of which adds a row; any other frame unchanged.

    Raises PlanError as `changes_of` and `net_changes`.
    """
    kind = changes_of(frame, None, what)
    return frame if kind is None else net_changes(frame, kind).where(sign_of(kind_code(kind)) > 0).drop(ARRIVAL)
