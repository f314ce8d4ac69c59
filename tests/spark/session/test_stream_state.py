"""Streams whose query changes between two runs over one checkpoint: what Spark collects in its state must fit."""

from typing import Annotated

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import root_cause, windows
from tests.spark.aggregate.test_streaming import start, stream_of, write
from tests.spark_client.executor.aggregate.world import Total
from udf_server import ArgumentTrait, StateHint
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

WINDOW = ["window_start", "window_end", "window_time"]

pytestmark = pytest.mark.timeout(200)


class Version2(Total):
    """Other code, and the same accumulators."""

    name = "total"
    version = "2"


class Other(Total):
    """Another function, whose accumulators have the same type."""


class Wider(Total):
    """An accumulator that gains a field."""

    name = "total"
    version = "3"
    accumulator = "struct<sum:bigint,count:bigint,more:bigint>"


class InOnePlace(Total):
    """Rows in place of accumulators."""

    name = "total"
    version = "4"

    def supports_merging(self):
        return False


class Numbered(udf.ProcessTableFunction):
    """The number of each row among those of its key."""

    returns = "n bigint"

    def eval(
        self, count: Annotated[udf.ValueView[int], StateHint()],
        r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        count.value = (count.value or 0) + 1
        yield (count.value,)


@pytest.fixture
def functions(remote):
    aggregates = map(declare_aggregate, (Total, Version2, Other, Wider, InOnePlace))
    return remote(*aggregates, declare_process(Numbered))


def grouped(name, *keys):
    """Sums by keys and window, with a function."""

    def query(functions, stream):
        calls = functions.function(name)("v").alias("t"), F.expr("count(DISTINCT v) AS d")
        stream = stream.withColumn("j", F.concat("k", "k"))
        return functions.group_by(stream, F.window("at", "10 seconds"), *(keys or ["k"])).agg(*calls)

    return query


def sessions(*, typed="bigint", name="v"):
    """Rows with the bounds of their sessions."""

    def query(_, stream):
        rows = stream.selectExpr("k", f"CAST(v AS {typed}) AS {name}", "at")
        return windows.session(rows, "at", "2 seconds", "k").select(name, "window_start")

    return query


def ranked(order):
    """The first row of each window."""

    def query(_, stream):
        rows = windows.tumble(stream.withColumn("w", -F.col("v")), "at", "10 seconds")
        return windows.window_top_n(rows, 1, order, "k").select("v", "window_start")

    return query


def tumbled(stream, changelog=False):
    """Windows of ten minutes, whose bounds depend on the time zone."""
    kinds = [F.lit("+I").alias("row_kind")] if changelog else []
    return windows.tumble(stream.select("*", F.expr("v + 1 AS w"), *kinds), "at", "10 minutes")


def hopped(stream):
    return windows.hop(stream, "at", "10 minutes", "1 hour")


def in_sql(call):
    def query(functions, stream):
        stream.createOrReplaceTempView("zoned_rows")
        source = "TABLE(TUMBLE(TABLE zoned_rows, DESCRIPTOR(at), INTERVAL '10' MINUTES))"
        return functions.sql(f"SELECT window_start, {call} AS t FROM {source} GROUP BY window_start, window_end")

    return query


def joined_in_sql(functions, stream):
    stream.createOrReplaceTempView("zoned_rows")
    windowed = "TABLE(TUMBLE(TABLE zoned_rows, DESCRIPTOR(at), INTERVAL '10' MINUTES))"
    on = "l.window_start = r.window_start AND l.window_end = r.window_end"
    return functions.sql(f"SELECT l.k, l.v, r.v AS w FROM {windowed} AS l JOIN {windowed} AS r ON {on}")


def totals(window, *names):
    def query(functions, stream):
        calls = [functions.function(name)("v").alias(name) for name in names]
        calls = calls or [F.sum("v")]
        return functions.group_by(window(stream), "window_start", "window_end").agg(*calls)

    return query


def joined(*columns):
    """Rows of two streams that are in one window; the left rows have these columns, in this order."""

    def query(_, stream):
        left = tumbled(stream).select(*columns, *WINDOW)
        return windows.window_join(left, tumbled(stream).select("k", *WINDOW))

    return query


def netted(*columns):
    """The rows that remain of a changelog with these columns, in this order."""

    def query(_, stream):
        rows = tumbled(stream, changelog=True)
        return windows.window_top_n(rows.select("row_kind", *columns, *WINDOW), 1, "v", rank="rank")

    return query


def emitting(functions, stream):
    grouped = functions.group_by(tumbled(stream), "window_start", "window_end", "window_time")
    return grouped.emit(early_fire_delay="0 s").agg(functions.function("total")("v").alias("t"))


CHANGES = {
    "a function": (grouped("total@1"), grouped("other"), "total: accumulators struct<sum:bigint,count:bigint>"),
    "an accumulator": (grouped("total@1"), grouped("total@3"), "total: accumulators struct<sum:bigint,count:bigint>"),
    "keys": (grouped("total", "j", "k"), grouped("total", "k", "j"), " by (window, j, k)"),
    "merging": (grouped("total@4"), grouped("total@1"), "total: rows (bigint)"),
    "a session": (sessions(), sessions(typed="int"), "rows struct<k:string,v:bigint,at:timestamp> by (k)"),
    "a name": (sessions(), sessions(name="u"), "rows struct<k:string,v:bigint,at:timestamp> by (k)"),
    "an order": (ranked("v"), ranked("w"), " in the order of (v) by (window_start, window_end, window_time, k)"),
    "columns of a join": (joined("v", "w"), joined("w", "v"), "left rows struct<v:bigint,w:bigint"),
    "columns of changes": (netted("v", "w"), netted("w", "v"), "rows struct<v:bigint,w:bigint,"),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_query_that_would_misread_what_its_checkpoint_holds_is_refused(functions, spark, source, tmp_path, changed):
    """Spark keeps arrays as bytes, and would read those of another type or meaning without an error."""
    before, after, found = CHANGES[changed]
    write(source, "a", [("x", 1, 1), ("y", 2, 3)])
    stream = stream_of(spark, source).withWatermark("at", "10 seconds")
    first = start(before(functions, stream), tmp_path, "append", "", sink=tmp_path / "out")
    first.awaitTermination(100)
    assert first.exception() is None
    write(source, "b", [("x", 5, 55)])
    second = start(after(functions, stream), tmp_path, "append", "", sink=tmp_path / "out")
    with pytest.raises(Exception, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE") as raised:
        second.awaitTermination(100)
    assert found in str(raised.value).split("Existing value_schema=")[1].split("new value_schema=")[0]
    assert "start from a new checkpoint, or run it as it was" in root_cause(raised.value)


def test_another_version_with_the_same_accumulators_continues(functions, spark, source, tmp_path):
    for name, version, row in (("a", "1", ("x", 1, 1)), ("b", "2", ("x", 5, 2)), ("c", "2", ("x", 7, 55))):
        write(source, name, [row])
        stream = stream_of(spark, source).withWatermark("at", "10 seconds")
        query = start(grouped(f"total@{version}")(functions, stream), tmp_path, "append", "", sink=tmp_path / "out")
        query.awaitTermination(100)
        assert query.exception() is None
    assert [(row.t.sum, row.d) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [(6, 2)]


def processed(functions, stream):
    return functions.process("numbered", tumbled(stream), partition_by=["k", "window_start"], uid="n")


ZONED = {
    "an aggregate": (totals(tumbled, "total@1"), "total: accumulators struct"),
    "rows of a function": (totals(tumbled, "total@4"), "total: rows (bigint)"),
    "panes": (totals(hopped, "total@1"), "total: accumulators"),
    "SQL": (in_sql("total(v)"), "total: rows (bigint)"),
    "SQL with Spark's aggregates": (in_sql("sum(v)"), "aggregates by ("),
    "a join in SQL": (joined_in_sql, "l: rows struct<k:string,v:bigint"),
    "Spark's aggregates": (totals(tumbled), "aggregates by (window_start"),
    "a ranking": (ranked("v"), " in the order of (v)"),
    "a join": (joined("v", "w"), "left rows struct<v:bigint"),
    "changes": (netted("v", "w"), "changes struct<row_kind:string"),
    "early results": (emitting, "StateMismatch: windows that fire early or late"),
    "a process function": (processed, "StateMismatch: function numbered@1, uid 'n'"),
}


@pytest.mark.parametrize("what", ZONED)
def test_windows_do_not_continue_in_another_time_zone(functions, spark, source, tmp_path, zone, rocksdb, what):
    """Their bounds are times on the clock of the session, so the rows of an hour would be in two windows."""
    query, found = ZONED[what]
    write(source, "a", [("x", 1, 1), ("y", 2, 3)])
    for number, name in enumerate(("Europe/Berlin", "Europe/Berlin", "America/New_York")):
        zone(name)
        write(source, "abc"[number], [("x", number, 5 + number)])
        stream = stream_of(spark, source).withWatermark("at", "10 seconds")
        run = start(query(functions, stream), tmp_path, "append", "", sink=tmp_path / "out")
        if number < 2:
            run.awaitTermination(100)
            assert run.exception() is None
    with pytest.raises(Exception, match=r"SCHEMA_NOT_COMPATIBLE|StateMismatch") as raised:
        run.awaitTermination(100)
    assert found in str(raised.value)
    assert all(name in str(raised.value) for name in ("Europe/Berlin", "America/New_York"))


def test_windows_without_a_time_zone_continue_in_any(functions, spark, source, tmp_path, zone):
    sums = []
    for number, name in enumerate(("Europe/Berlin", "America/New_York")):
        zone(name)
        write(source, "ab"[number], [("x", 1, 1 + 50 * number)])
        stream = stream_of(spark, source).withColumn("local", F.lit("2024-01-01 00:00:00").cast("timestamp_ntz"))
        rows = windows.tumble(stream, "local", "10 minutes")
        call = functions.function("total@1")("v").alias("t")
        frame = functions.group_by(rows, "window_start", "window_end").agg(call)
        writer = frame.writeStream.foreachBatch(lambda rows, _: sums.extend(row.t.sum for row in rows.collect()))
        writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(100)
    assert sums == [1, 2]
