"""A watermark that advances without rows, so that the last windows of an idle stream are closed.

Spark's watermark follows the rows. Here a clock also advances it: once a second it adds a row with only a time, which
is `idle_timeout` ago. Such a row counts for the watermark and is then removed.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named
from spark_client.windows.columns import elapsed, field_named, hidden
from spark_client.windows.intervals import Interval, micros_of

__all__ = ["guarded", "with_watermark"]

_TICK = hidden("tick")


def with_watermark(
    frame: DataFrame, time_col: str, delay: Interval, *, idle_timeout: Interval | None = None
) -> DataFrame:  # fmt: skip
    """Set a watermark, as DataFrame.withWatermark does, that also advances while the source is idle.

    Use `idle_timeout` only for streams whose times follow the clock, and not to read old data again. In batch the
    function has no effect.

    Args:
        frame: A stream.
        time_col: The name of the time column.
        delay: How far the watermark is behind the latest time.
        idle_timeout: The watermark is never further behind the clock than this and the delay together.

    Raises:
        PlanError: The column is not a timestamp, or a duration is invalid.
    """
    field = field_named(frame, time_col, "with_watermark: time column")
    if not isinstance(field.dataType, T.TimestampType):
        raise PlanError(
            f"with_watermark: time column {field.name!r} is of type {field.dataType.simpleString()}; expected timestamp"
        )
    micros = micros_of(delay, "with_watermark: delay")
    if micros < 0:
        raise PlanError(f"with_watermark: delay {delay!r} is negative")
    late = f"{micros // 1000} milliseconds"
    if idle_timeout is None or not frame.isStreaming:
        return frame.withWatermark(field.name, late)
    idle = micros_of(idle_timeout, "with_watermark: idle_timeout")
    if idle <= 0:
        raise PlanError(f"with_watermark: idle_timeout {idle_timeout!r} is not longer than zero")
    # The watermark depends only on the latest of the ticks.
    clock = frame.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    ticks = clock.select(
        *(
            (elapsed(F.col("timestamp"), T.TimestampType(), -idle) if each.name == field.name else F.lit(None))
            .cast(each.dataType)
            .alias(each.name)
            for each in frame.schema.fields
        ),
        F.lit(True).alias(_TICK),
    )
    both = frame.select("*", F.lit(False).alias(_TICK)).unionByName(ticks).withWatermark(field.name, late)
    return guarded(both, field.name).where(~F.col(_TICK)).drop(_TICK)


def guarded(frame: DataFrame, time_col: str) -> DataFrame:
    """The frame with a barrier behind its watermark, which conditions cannot pass.

    Otherwise Spark would move them in front, and the rows that only advance the watermark would be removed before it.
    Spark does not move nondeterministic expressions; this one always has the same result.
    """
    metadata = frame.schema[time_col].metadata
    time = F.when(F.randn() < 1e9, column_named(time_col)).alias(time_col, metadata=metadata)
    return frame.select(*(time if name == time_col else column_named(name) for name in frame.columns))
