"""A watermark that advances without rows, so that the last windows of an idle stream are closed.

Spark's watermark follows the rows. Here a clock also advances it while the source has nothing to read: a row with only
a time, which is `idle_timeout` ago, is added to the rows. Such a row counts for the watermark and is then removed. See
spark_client.executor.watermarks.idle_clock.
"""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named
from spark_client.base.types import map_in_arrow
from spark_client.executor.packed_batches import unpacked
from spark_client.executor.watermarks.idle_clock import PACKED, STATE, IdleClock, packed_by_task, with_ticks
from spark_client.windows.columns import field_named, hidden
from spark_client.windows.intervals import Interval, micros_of

__all__ = ["guarded", "with_watermark"]

_TICK = hidden("tick")


def with_watermark(
    frame: DataFrame, time_col: str, delay: Interval, *, idle_timeout: Interval | None = None
) -> DataFrame:  # fmt: skip
    """Set a watermark, as DataFrame.withWatermark does, that also advances while the source is idle.

    The clock advances the watermark after `idle_timeout` of micro-batches without a row of the source. A run of a query
    that continues from its checkpoint begins to measure when it starts, so a pause does not count. Use `idle_timeout`
    only for streams whose times follow the clock. In batch the function has no effect.

    Args:
        frame: A stream.
        time_col: The name of the time column.
        delay: How far the watermark is behind the latest time.
        idle_timeout: How long the source has no rows before the clock advances the watermark, which is then never
            further behind the clock than this and the delay together.

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
    clock = frame.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    seconds = clock.select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in frame.schema.fields))
    both = _ticking(
        frame.select("*", F.lit(False).alias(_TICK)).unionAll(seconds.select("*", F.lit(True).alias(_TICK))),
        frame.columns.index(field.name), idle // 1000,
    )  # fmt: skip
    timed = both.withWatermark(field.name, late)
    return guarded(timed, field.name).where(~F.col(_TICK)).drop(_TICK)


def _ticking(both: DataFrame, time: int, timeout: int) -> DataFrame:
    """The rows of the source, without the seconds of the clock, and ticks while the source is idle."""
    fields = enumerate(both.schema.fields)
    schema = T.StructType([T.StructField(f"c{i}", each.dataType, metadata=each.metadata) for i, each in fields])
    plan = IdleClock(timeout, time)

    def ticked(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        yield from with_ticks(plan, int(key[0]), frames, state)

    packed = map_in_arrow(both.toDF(*schema.names), packed_by_task, PACKED)
    buckets = packed.groupBy("bucket").applyInPandasWithState(
        ticked, "rows binary", STATE, "append", GroupStateTimeout.NoTimeout
    )
    return map_in_arrow(buckets, unpacked, schema).toDF(*both.columns)


def guarded(frame: DataFrame, time_col: str) -> DataFrame:
    """The frame with a barrier behind its watermark, which conditions cannot pass.

    Otherwise Spark would move them in front, and the rows that only advance the watermark would be removed before it.
    Spark does not move nondeterministic expressions; this one always has the same result.
    """
    metadata = frame.schema[time_col].metadata
    time = F.when(F.randn() < 1e9, column_named(time_col)).alias(time_col, metadata=metadata)
    return frame.select(*(time if name == time_col else column_named(name) for name in frame.columns))
