"""`spark.sql.retainGroupColumns=false`: aggregates have no keys then, and what we group for ourselves keeps them."""

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import connect
from spark_client.windows import session, tumble, window_top_n
from tests.spark_client.executor.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate

SETTING = "spark.sql.retainGroupColumns"


@udf.scalar(cost=lambda v: {"usd": float(v)})
async def ask(v: int) -> int:
    if v == 2:
        raise ValueError(v)
    return v


@pytest.fixture
def remote(spark, serve):
    return connect(spark, serve(ask, *map(declare_aggregate, ALL)).target)


@pytest.fixture
def frame(spark):
    return spark.range(0, 300, 1, 2).select((F.col("id") % 7).alias("k"), (F.col("id") % 3).alias("v"))


@pytest.fixture
def under(spark):
    """The columns and rows of a frame, planned and run under a value of the setting."""

    def run(value, plan, skipped=0):
        spark.conf.set(SETTING, value)
        try:
            found = plan()
            return found.columns[skipped:], sorted(repr(tuple(row)[skipped:]) for row in found.collect())
        finally:
            spark.conf.unset(SETTING)

    return run


@pytest.mark.connect
def test_aggregates_have_keys_where_sparks_own_have(remote, frame, under):
    total, one_place = remote.function("total"), remote.function("sum_in_one_place")
    keys = "k", (F.col("v") + 1).alias("k")
    # Not on Connect, which ignores the setting.
    leaves_out = under("FALSE", lambda: frame.groupBy("k").agg(F.max("v")))[0] == ["max(v)"]
    for plan, count in [
        (lambda: remote.group_by(frame, *keys).agg(total("v").alias("k"), total("k")), 2),
        (lambda: remote.group_by(frame, "k").agg(F.sum("v"), total("v")), 1),
        (lambda: remote.rollup(frame, "k", "v").agg(one_place("v"), F.count("*")), 2),
        (lambda: remote.group_by(frame, "k").agg(total.with_options(on_error="column")("v").alias("t")), 1),
        (lambda: remote.group_by(frame).agg(total("v")), 0),
    ]:
        assert under("FALSE", plan) == under("true", plan, count if leaves_out else 0)
    plain, ours = (under("false", lambda by=by: by(frame, "k").agg(F.sum("v"))) for by in (_by_spark, remote.group_by))
    assert plain == ours


def _by_spark(frame, *keys):
    return frame.groupBy(*keys)


def test_rows_that_are_grouped_for_other_ends_keep_their_keys(remote, frame, under, spark, tmp_path):
    total, call, letters = remote.function("total"), remote.function("ask"), str(tmp_path)
    timed = frame.select("*", F.timestamp_seconds("v").alias("at"), F.lit("+I").alias("row_kind"))
    windows = tumble(timed, "at", "2 seconds")
    remote.with_columns(frame, {"a": call("v")}, on_error="dead-letter", dead_letter=letters).collect()
    estimate = []

    def replayed():
        found = remote.estimate(frame, call("v"))
        estimate.append((found.rows, found.distinct_calls, dict(found.amounts)))
        return remote.replay(letters)

    for plan in [
        lambda: remote.sql("SELECT k, total(v).sum AS s FROM {frame} GROUP BY k HAVING sum(v) > 1", frame=frame),
        replayed,
    ]:
        assert under("false", plan) == under("true", plan)

    def net():
        return remote.group_by(windows, "window_start", "window_end").agg(total("v"), F.max("v"))

    assert under("false", net) == under("true", net, 2)
    assert estimate == [(300, 3, {"usd": 3.0})] * 2
    events = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    spark.conf.set(SETTING, "false")
    try:
        sessions = session(events, "timestamp", "1 minute", partition_by="value")
        best = window_top_n(tumble(events, "timestamp", "1 minute"), 1, order_by="value")
        assert sessions.columns[:2] == best.columns[:2] == ["timestamp", "value"]
        emitted = remote.group_by(tumble(events, "timestamp", "1 minute"), "window_start", "window_end")
        assert emitted.emit(early_fire_delay="1 s").agg(total("value")).columns[:2] == ["row_kind", "window_start"]
    finally:
        spark.conf.unset(SETTING)
