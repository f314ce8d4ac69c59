"""Process table functions on streams: state and timers are in Spark's state store, the function on the server."""

import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, connect
from udf_server import ArgumentTrait, StateHint
from udf_server.process.declaration import declare_table

pytestmark = pytest.mark.timeout(400)  # a state store and Python's side of it are slow to start on a busy machine
ROOT = Path(__file__).parents[2]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SCHEMA = "k string, v bigint, ts timestamp"
Keyed = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


@dataclasses.dataclass
class Seen:
    count: int = 0
    total: int = 0


class Sessions(udf.ProcessTableFunction):
    """A row says what was seen so far; ten seconds after the last one a timer sums up and forgets."""

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
    """What the watermark was when a row came, in seconds."""

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
    """Values times the factor that a broadcast table says; counts the rows of its key."""

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


@pytest.fixture(autouse=True)
def _state_store(spark):
    """One partition, for each of them has a store, which takes its time."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set(PROVIDER, before)
    spark.conf.set("spark.sql.shuffle.partitions", "4")


@pytest.fixture
def functions(remote):
    return remote(*map(declare_table, ALL))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def write(folder, name, rows):
    """A file of `k,v,seconds` rows, there all at once; one micro-batch each."""
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
    """Everything there is, then stop; returns all rows of the sink."""
    query = start(frame, tmp_path, name)
    query.awaitTermination(300)
    assert not query.isActive
    return [tuple(row) for row in frame.sparkSession.read.parquet(str(tmp_path / name)).collect()]


def seconds(rows):
    """Rows with the time, which comes last, in seconds."""
    return sorted((*row[:-1], round(row[-1].timestamp())) for row in rows)


@pytest.mark.connect
def test_state_and_timers_go_from_micro_batch_to_micro_batch_and_over_a_restart(functions, spark, source, tmp_path):
    """The timer of x fires between its rows, that of y without another row; a late row is delivered as any other."""
    write(source, "a", [("x", 1, 5), ("y", 2, 6), ("x", 3, 7)])
    write(source, "b", [("z", 1, 30)])

    def sessions():
        return functions.process(
            "sessions", stream_of(spark, source), partition_by="k", on_time="ts", options={"buckets": 3}
        )

    first = run(sessions(), tmp_path)
    assert seconds(first) == [
        ("x", "end", 2, 4, 17), ("x", "row", 1, 1, 5), ("x", "row", 2, 4, 7), ("y", "end", 1, 2, 16),
        ("y", "row", 1, 2, 6), ("z", "row", 1, 1, 30),
    ]  # fmt: skip
    write(source, "c", [("z", 4, 32), ("x", 8, 2)])
    write(source, "d", [("w", 9, 60)])
    rest = set(seconds(run(sessions(), tmp_path))) - set(seconds(first))
    assert sorted(rest) == [
        ("w", "row", 1, 9, 60), ("x", "end", 1, 8, 12), ("x", "row", 1, 8, 2), ("z", "end", 2, 5, 42),
        ("z", "row", 2, 5, 32),
    ]  # fmt: skip


def test_rows_that_wait_for_the_watermark_come_in_order_and_late_ones_not_at_all(functions, spark, source, tmp_path):
    write(source, "a", [("x", 3, 9), ("x", 1, 5), ("x", 2, 5), ("y", 1, 20)])
    write(source, "b", [("x", 4, 7), ("x", 5, 25), ("y", 2, 40)])
    frame = functions.process(
        "collected", stream_of(spark, source), partition_by="k", on_time="ts", order_by=["ts", "v DESC"]
    )
    assert seconds(run(frame, tmp_path)) == [
        ("x", "2", 5), ("x", "2,1", 5), ("x", "2,1,3", 9), ("x", "2,1,3,5", 25), ("y", "1", 20), ("y", "1,2", 40),
    ]  # fmt: skip


def test_two_streams_meet_by_key_and_the_result_goes_through_another_function(functions, spark, tmp_path):
    """A chain: what the first emits by a timer is not late to the second, whose watermark is the same."""
    orders, payments = tmp_path / "orders", tmp_path / "payments"
    for folder in (orders, payments):
        folder.mkdir()
    write(orders, "a", [("x", 10, 1), ("y", 20, 2)])
    write(payments, "a", [("y", 21, 3), ("z", 30, 4)])
    write(payments, "b", [("x", 11, 60)])
    write(orders, "b", [("z", 31, 61)])
    pairs = functions.process(
        "pairs", {"orders": stream_of(spark, orders), "payments": stream_of(spark, payments)},
        partition_by="k", on_time="ts",
    )  # fmt: skip
    assert pairs.schema["rowtime"].metadata["spark.watermarkDelayMs"] == 0
    assert pairs.columns == ["k", "k0", "amount", "paid", "rowtime"]
    with pytest.raises(PlanError, match="Duplicate unique identifier 'pairs'"):
        functions.process("lag", pairs, partition_by="k", uid="pairs")
    stream = stream_of(spark, orders)
    one = functions.process("through", stream, partition_by="k", uid="one")
    assert functions.process("through", stream, partition_by="k", uid="one") is one
    with pytest.raises(PlanError, match="Duplicate unique identifier 'one': another call on the same stream"):
        functions.process("lag", stream, partition_by="k", on_time="ts", uid="one")
    branches = {name: functions.process("through", stream_of(spark, folder), partition_by="k", uid="one")
                for name, folder in (("orders", orders), ("payments", payments))}  # fmt: skip
    with pytest.raises(PlanError, match="Duplicate unique identifier 'one': several calls on the streams that meet"):
        functions.process("pairs", branches, partition_by="k")
    joined = branches["orders"].join(branches["payments"].select("k", F.col("v").alias("paid")), "k")
    with pytest.raises(PlanError, match="Duplicate unique identifier 'one'"):
        functions.process("doubled", joined)
    chained = functions.process("lag", pairs, partition_by="k", on_time="rowtime")
    found = seconds(run(chained, tmp_path))
    assert [(k, at) for k, _, at in found] == [("x", 60), ("y", 3), ("z", 61)]
    assert all(watermark is None or watermark < at for _, watermark, at in found)


def test_a_broadcast_table_that_ends_reaches_every_key_in_every_micro_batch(functions, spark, source, tmp_path):
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    write(source, "b", [("x", 3, 3)])
    tables = {"r": stream_of(spark, source, None), "factors": spark.createDataFrame([(10,)], "factor int")}
    found = run(functions.process("scaled", tables, partition_by="k"), tmp_path)
    assert sorted(found) == [("x", 10, 1), ("x", 30, 2), ("y", 20, 1)]
    tables["factors"] = stream_of(spark, source, None)
    with pytest.raises(PlanError, match="broadcast table 'factors' is a stream, which is not supported"):
        functions.process("scaled", tables, partition_by="k")


def test_without_a_watermark_state_is_kept_and_the_time_is_a_plain_column(functions, spark, source, tmp_path):
    """A changelog, and columns that are passed through; the third call is stateless."""
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    write(source, "b", [("x", 3, 3)])
    stream = stream_of(spark, source, None)
    counted = run(functions.process("counted", stream, partition_by="k"), tmp_path, "counted")
    assert sorted(counted) == [("x", 1, "+I"), ("x", 1, "-U"), ("x", 2, "+U"), ("y", 1, "+I")]
    doubled = functions.process("doubled", stream)
    through = functions.process("through", doubled.select(doubled.twice.alias("v")), partition_by="v")
    assert sorted(run(through, tmp_path, "through")) == [(2, None), (4, None), (6, None)]


def test_a_function_that_fails_ends_the_query_and_a_mended_one_goes_on(remote, spark, source, tmp_path):
    """From the checkpoint, with another server: exactly what one run over all rows gives."""
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    fragile, mended = remote(declare_table(Fragile)), remote(declare_table(Mended))

    def query(functions):
        return functions.process("fragile", stream_of(spark, source), partition_by="k")

    first = run(query(fragile), tmp_path)
    write(source, "b", [("y", 0, 3), ("x", 5, 4)])
    broken = start(query(fragile), tmp_path)
    with pytest.raises(Exception, match=r"fragile@1: a segment of the key \(k='y'\) failed: .*by zero"):
        broken.awaitTermination(300)
    assert sorted(run(query(mended), tmp_path)) == sorted([*first, ("y", -1, 2), ("x", 20, 2)])


class Gate:
    """Holds a function up, until a test has seen it begin."""

    reached, opened = threading.Event(), threading.Event()


class Gated(Sessions):
    name = "sessions"

    def eval(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        if r.v == 77:
            Gate.reached.set()
            Gate.opened.wait(300)
        yield from super().eval(ctx, seen, r)


def test_a_server_that_is_killed_in_the_middle_changes_nothing(serve, spark, source, tmp_path):
    """Another one at its address answers what it did not; the query does not notice, and nothing comes twice."""
    rows = {"a": [("x", 1, 5), ("y", 2, 6)], "b": [("x", 77, 8), ("y", 3, 30)], "c": [("z", 4, 90)]}
    for name, each in rows.items():
        write(source, name, each)
    first = serve(declare_table(Gated))
    remote = connect(spark, first.target)
    query = start(remote.process("sessions", stream_of(spark, source), partition_by="k", on_time="ts"), tmp_path)
    assert Gate.reached.wait(300)
    port = int(first.target.rpartition(":")[2])
    first.stop()
    Gate.opened.set()
    serve(declare_table(Sessions), port=port)
    query.awaitTermination(300)
    found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "processed")).collect()]
    assert seconds(found) == [
        ("x", "end", 2, 78, 18), ("x", "row", 1, 1, 5), ("x", "row", 2, 78, 8), ("y", "end", 2, 5, 40),
        ("y", "row", 1, 2, 6), ("y", "row", 2, 5, 30), ("z", "row", 1, 4, 90),
    ]  # fmt: skip


JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from spark_client import connect
from tests.spark.test_process_streaming import PROVIDER, ROCKSDB, start, stream_of

target, folder = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(PROVIDER, ROCKSDB)
spark = spark.config("spark.sql.shuffle.partitions", "1").getOrCreate()
stream = stream_of(spark, folder / "in")
query = start(connect(spark, target).process("sessions", stream, partition_by="k", on_time="ts"), folder)
query.awaitTermination()
"""


def test_a_driver_that_is_killed_in_a_micro_batch_changes_nothing(serve, spark, source, tmp_path):
    """Another driver goes on from the checkpoint; the rows are those of a run that nobody disturbed."""
    for name, rows in {"a": [("x", 1, 5), ("y", 2, 6)], "b": [("x", 77, 8), ("y", 3, 30)], "c": [("z", 4, 90)]}.items():
        write(source, name, rows)
    Gate.reached.clear()
    Gate.opened.clear()
    target = serve(declare_table(Gated)).target
    with (tmp_path / "log").open("wb") as log:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        driver = psutil.Popen(
            [sys.executable, "-c", JOB, target, str(tmp_path)], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        assert Gate.reached.wait(300), (tmp_path / "log").read_text()[-3000:]
        # Its JVM and Python workers, too, as if the machine was lost.
        family = [*driver.children(recursive=True), driver]
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=60)
    Gate.opened.set()
    before = spark.read.parquet(str(tmp_path / "processed")).count()
    assert before == 2

    def sessions():
        return connect(spark, target).process("sessions", stream_of(spark, source), partition_by="k", on_time="ts")

    assert seconds(run(sessions(), tmp_path)) == seconds(run(sessions(), tmp_path, "undisturbed"))


def test_sql_takes_streams_and_plans_are_refused_that_cannot_run(functions, spark, source, tmp_path):
    write(source, "a", [("x", 1, 5), ("y", 2, 6)])
    stream = stream_of(spark, source)
    stream.createOrReplaceTempView("events")
    query = (
        "SELECT k, what, total FROM sessions(r => TABLE events PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 's')"
    )
    assert sorted(run(functions.sql(query), tmp_path)) == [("x", "row", 1), ("y", "row", 2)]
    static = spark.createDataFrame([("x", 1)], "k string, v bigint")
    with pytest.raises(PlanError, match="table 'payments' ends and another one is a stream"):
        functions.process("pairs", {"orders": stream.drop("ts"), "payments": static}, partition_by="k")
    spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with pytest.raises(PlanError, match=r"RocksDB state store, found .*HDFSBacked"):
        functions.process("sessions", stream, partition_by="k", on_time="ts")
