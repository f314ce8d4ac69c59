"""Streams whose query changes between two runs over one checkpoint: what Spark collects in its state must fit."""

import pytest
from pyspark.sql import functions as F

from spark_client import root_cause, windows
from tests.spark.aggregate.test_streaming import start, stream_of, write
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate

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


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, (Total, Version2, Other, Wider, InOnePlace)))


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


CHANGES = {
    "a function": (grouped("total@1"), grouped("other"), "total: accumulators struct<sum:bigint,count:bigint>"),
    "an accumulator": (grouped("total@1"), grouped("total@3"), "total: accumulators struct<sum:bigint,count:bigint>"),
    "keys": (grouped("total", "j", "k"), grouped("total", "k", "j"), " by (window, j, k)"),
    "merging": (grouped("total@4"), grouped("total@1"), "total: rows (bigint)"),
    "a session": (sessions(), sessions(typed="int"), "rows struct<k:string,v:bigint,at:timestamp> by (k)"),
    "a name": (sessions(), sessions(name="u"), "rows struct<k:string,v:bigint,at:timestamp> by (k)"),
    "an order": (ranked("v"), ranked("w"), " in the order of (v) by (window_start, window_end, window_time, k)"),
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
