"""Shared parts of tests of process functions on streams: functions with state and timers, queries over files."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Annotated, Any

import udf_server as udf
from udf_server import ArgumentTrait, StateHint

__all__ = [
    "ALL",
    "PROVIDER",
    "ROCKSDB",
    "Fragile",
    "Keyed",
    "Mended",
    "Seen",
    "Sessions",
    "run",
    "seconds",
    "start",
    "stream_of",
    "write",
]


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SCHEMA = "k string, v bigint, ts timestamp"
Keyed = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


@dataclasses.dataclass
class Seen:
    count: int = 0
    total: int = 0


class Sessions(udf.ProcessTableFunction):
    """Each row emits the state so far; ten seconds after the last one a timer emits the sum and clears the state."""

    returns = "what string, count bigint, total bigint"

    def eval(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        seen.count += 1
        seen.total += r.v
        ctx.time_context(int).register_on_time("end", ctx.time_context(int).time() + 10_000)
        yield "row", seen.count, seen.total

    def on_timer(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()]) -> Iterator[Any]:
        yield "end", seen.count, seen.total
        ctx.clear_all()


class Lag(udf.ProcessTableFunction):
    """Emits the watermark at each row, in seconds."""

    returns = "watermark bigint"

    def eval(self, ctx: udf.ProcessContext, r: Keyed) -> Iterator[Any]:
        watermark = ctx.time_context(int).current_watermark()
        yield (None if watermark is None else watermark // 1000,)


class Pairs(udf.ProcessTableFunction):
    """Joins an order with its first payment, whichever comes first."""

    returns = "amount bigint, paid bigint"

    def eval(
        self, amounts: udf.ListView[int], paid: udf.ListView[int], orders: Keyed, payments: Keyed
    ) -> Iterator[Any]:
        if orders is not None:
            amounts.append(orders.v)
        else:
            paid.append(payments.v)
        if amounts and paid:
            yield amounts[0], paid[0]


class Collected(udf.ProcessTableFunction):
    """The values of a key in the order they came."""

    returns = "trail string"

    def eval(self, trail: udf.ListView[int], r: Keyed) -> Iterator[Any]:
        trail.append(r.v)
        yield (",".join(map(str, trail)),)


class Counted(udf.ProcessTableFunction):
    """A changelog with the count of each key."""

    returns = "count bigint"
    changelog_mode = udf.ChangelogMode.of("+I", "-U", "+U")

    def eval(self, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        if seen.count:
            yield udf.Row(seen.count, kind="-U")
        seen.count += 1
        yield udf.Row(seen.count, kind="+U" if seen.count > 1 else "+I")


class Through(udf.ProcessTableFunction):
    returns = "before bigint"

    def eval(
        self, last: udf.ValueView[int],
        r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH],
    ) -> Iterator[Any]:  # fmt: skip
        yield (last.value,)
        last.value = r.v


class Doubled(udf.ProcessTableFunction):
    returns = "twice bigint"

    def eval(self, r: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]) -> Iterator[Any]:
        yield (r.v * 2,)


class Fragile(udf.ProcessTableFunction):
    returns = "share bigint, count bigint"

    def eval(self, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        seen.count += 1
        yield 100 // r.v, seen.count


class Mended(Fragile):
    name = "fragile"
    version = "2"

    def eval(self, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        seen.count += 1
        yield 100 // r.v if r.v else -1, seen.count


class Scaled(udf.ProcessTableFunction):
    """Multiplies values by the factor of a broadcast table; counts the rows of its key."""

    returns = "scaled bigint, count bigint"

    def eval(
        self, factor: Annotated[udf.ValueView[int], StateHint(broadcast=True)], seen: Annotated[Seen, StateHint()],
        r: Keyed, factors: Annotated[udf.Row, ArgumentTrait.BROADCAST_SEMANTIC_TABLE],
    ) -> Iterator[Any]:  # fmt: skip
        if factors is not None:
            factor.value = factors.factor
            return
        seen.count += 1
        yield r.v * factor.value, seen.count


ALL = [Scaled, Sessions, Lag, Pairs, Collected, Counted, Through, Doubled]


def write(folder, name, rows):
    """Writes a file of `k,v,seconds` rows atomically; each file is a micro-batch."""
    temporary = folder / f".{name}"
    temporary.write_text("".join(f"{k},{v},1970-01-01T00:{at // 60:02d}:{at % 60:02d}Z\n" for k, v, at in rows))
    age = 1_700_000_000 + ord(name)
    os.utime(temporary, (age, age))
    temporary.rename(folder / f"{name}.csv")


def stream_of(spark, folder, delay="0 seconds"):
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(folder))
    return frame if delay is None else frame.withWatermark("ts", delay)


def start(frame, tmp_path, name="processed"):
    sink = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
    sink = sink.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
    return sink.trigger(availableNow=True).start()


def run(frame, tmp_path, name="processed"):
    """Processes all available input, then stops; returns all rows of the sink."""
    query = start(frame, tmp_path, name)
    query.awaitTermination(300)
    assert not query.isActive
    return [tuple(row) for row in frame.sparkSession.read.parquet(str(tmp_path / name)).collect()]


def seconds(rows):
    """Returns rows with their time, the last column, in seconds."""
    return sorted((*row[:-1], round(row[-1].timestamp())) for row in rows)
