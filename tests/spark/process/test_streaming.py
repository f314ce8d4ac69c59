"""Process table functions on streams: state and timers are in Spark's state store, the function is on the server."""

import functools
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, windows
from tests.spark.process_streams import ALL, PROVIDER, run, seconds, stream_of, write
from udf_process import SessionAlerts
from udf_server import ArgumentTrait
from udf_server.process.declaration import declare_process

# A state store and Python's side of it are slow to start on a busy machine.
pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("rocksdb")]


@pytest.fixture
def functions(remote):
    return remote(*map(declare_process, ALL))


@pytest.mark.connect
def test_state_and_timers_go_from_micro_batch_to_micro_batch_and_over_a_restart(functions, spark, source, tmp_path):
    """The timer of x fires between its rows, that of y without another row; a late row is delivered like any other."""
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
    # The watermark is 20 by now: 7 is late, 20 is not.
    write(source, "b", [("x", 4, 7), ("x", 5, 25), ("y", 2, 40), ("z", 9, 20)])
    frame = functions.process(
        "collected", stream_of(spark, source), partition_by="k", on_time="ts", order_by=["ts", "v DESC"]
    )
    assert seconds(run(frame, tmp_path)) == [
        ("x", "2", 5), ("x", "2,1", 5), ("x", "2,1,3", 9), ("x", "2,1,3,5", 25), ("y", "1", 20), ("y", "1,2", 40),
        ("z", "9", 20),
    ]  # fmt: skip


@pytest.mark.long
def test_rows_that_order_by_releases_are_not_late_for_the_next_function(functions, spark, source, tmp_path):
    """The watermark of a micro-batch releases them, and the next function gets them with the same watermark."""
    write(source, "a", [("x", 2, 7), ("x", 1, 5)])
    write(source, "b", [("x", 3, 30)])
    rows = functions.process("through", stream_of(spark, source), partition_by="k", on_time="ts", order_by="ts")
    rows = rows.select("k", "v", "rowtime")
    frame = functions.process("collected", rows, partition_by="k", on_time="rowtime", order_by="rowtime", uid="second")
    assert seconds(run(frame, tmp_path)) == [("x", "1", 5), ("x", "1,2", 7), ("x", "1,2,3", 30)]


def test_a_function_that_takes_rows_in_order_of_time_needs_a_watermark(remote, spark, source):
    functions = remote(declare_process(SessionAlerts))
    told = "on a stream on_time, in whose order the function takes rows, needs a watermark, .* 'ts' has none"
    with pytest.raises(PlanError, match=told):
        functions.process("session_alerts", stream_of(spark, source, None), partition_by="k", on_time="ts")


@pytest.mark.long
def test_two_calls_over_the_same_rows_have_the_watermark_in_one_query(functions, spark, source, tmp_path):
    """Without their own plans Spark shuffles the rows once for both, and the second call never gets a watermark."""
    write(source, "a", [("x", 2, 7), ("x", 1, 5)])
    write(source, "b", [("y", 3, 30)])
    stream = stream_of(spark, source)
    calls = (functions.process("collected", stream, partition_by="k", order_by="ts", uid=f"u{i}") for i in range(3))
    together = functools.reduce(DataFrame.unionAll, calls)
    assert sorted(run(together, tmp_path)) == sorted([("x", "1"), ("x", "1,2"), ("y", "3")] * 3)


@pytest.mark.parametrize("kind", ["group_by", "session", "top_n", "Spark's tumble", "Spark's window", "left join"])
def test_windows_that_end_are_not_late_for_the_next_function(functions, spark, source, tmp_path, kind):
    write(source, "a", [("x", 2, 15), ("x", 1, 5)])
    write(source, "b", [("x", 3, 90)])
    frame = stream_of(spark, source)
    if kind == "session":
        rows = windows.session(frame, "ts", "5 seconds", "k")
    elif kind == "Spark's window":
        rows = frame.groupBy(F.window("ts", "10 seconds"), "k").agg(F.max("v").alias("v"))
        rows = rows.select("k", "v", F.window_time("window").alias("window_time"))
    elif kind == "left join":
        others = windows.tumble(stream_of(spark, source), "ts", "10 seconds").where("v > 2").withColumnRenamed("v", "w")
        rows = windows.window_join(windows.tumble(frame, "ts", "10 seconds"), others.drop("ts"), "k", "left")
    else:
        rows = windows.tumble(frame, "ts", "10 seconds")
        if kind == "top_n":
            rows = windows.window_top_n(rows, 1, "v", "k")
        elif kind == "Spark's tumble":
            rows = rows.groupBy("window_start", "window_end", "window_time", "k").agg(F.max("v").alias("v"))
        else:
            keys = ["window_start", "window_end", "window_time", "k"]
            rows = functions.group_by(rows, *keys).agg(F.max("v").alias("v"))
    rows = rows.select("k", "v", "window_time")
    frame = functions.process("collected", rows, partition_by="k", order_by=["window_time", "v"])
    assert sorted(run(frame, tmp_path)) == [("x", "1"), ("x", "1,2")]


@pytest.mark.long
def test_held_rows_come_in_the_order_that_they_have_in_batch(functions, spark, source, tmp_path):
    write(source, "a", [("x", v, 5) for v in range(7)])
    write(source, "b", [("y", 1, 60)])
    value = "if(v = 5, null, struct(nullif(v % 2, 0) AS a, if(v % 3 = 0, double('NaN'), v - 3D) AS b)) AS w"
    rows = stream_of(spark, source).selectExpr("k", "v", "ts", value)
    for number, direction in enumerate(("", " DESC NULLS FIRST")):
        order = ["ts", f"w{direction}", "v"]
        frame = functions.process("collected", rows, partition_by="k", order_by=order, uid=f"u{number}")
        trail = max((trail for k, trail in run(frame, tmp_path, f"{number}") if k == "x"), key=len)
        query = f"SELECT v FROM (SELECT v, {value} FROM (SELECT id AS v FROM range(7))) ORDER BY w{direction}, v"
        assert trail.split(",") == [str(row.v) for row in spark.sql(query).collect()]


def test_two_streams_meet_by_key_and_the_result_goes_through_another_function(functions, spark, tmp_path):
    """In a chain, output of a timer of the first function is not late for the second, which has the same watermark."""
    orders, payments = tmp_path / "orders", tmp_path / "payments"
    for folder in (orders, payments):
        folder.mkdir()
    write(orders, "a", [("x", 10, 1), ("y", 20, 2)])
    write(payments, "a", [("y", 21, 3), ("z", 30, 4)])
    write(payments, "b", [("x", 11, 60)])
    write(orders, "b", [("z", 31, 61)])
    pairs = functions.process(
        "pairs",
        {"orders": stream_of(spark, orders), "payments": stream_of(spark, payments).withColumnRenamed("ts", "at")},
        partition_by="k", on_time=["ts", "at"],
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
    """The calls have a changelog, and columns that are passed through; the third call is stateless."""
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    write(source, "b", [("x", 3, 3)])
    stream = stream_of(spark, source, None)
    counted = run(functions.process("counted", stream, partition_by="k"), tmp_path, "counted")
    assert sorted(counted) == [("x", 1, "+I"), ("x", 1, "-U"), ("x", 2, "+U"), ("y", 1, "+I")]
    doubled = functions.process("doubled", stream)
    through = functions.process("through", doubled.select(doubled.twice.alias("v")), partition_by="v")
    assert sorted(run(through, tmp_path, "through")) == [(2, None), (4, None), (6, None)]


def test_a_table_whose_time_has_no_watermark_beside_another_one_is_named_in_a_warning(functions, spark, source, caplog):
    for first, second in (("0 seconds", "1 second"), (None, None), ("0 seconds", None)):
        assert not caplog.records
        tables = {"orders": stream_of(spark, source, first), "payments": stream_of(spark, source, second)}
        frame = functions.process("pairs", tables, partition_by="k", on_time="ts")
    assert [record.getMessage() for record in caplog.records] == [
        "function pairs@1: the time 'ts' of table 'payments' has no watermark, but 'ts' of table 'orders' has one: "
        "timers wait for that one only, and the time of the result has no watermark; call withWatermark on each table "
        "before the call"
    ]
    assert "spark.watermarkDelayMs" not in frame.schema["rowtime"].metadata


class Changes(udf.ProcessTableFunction):
    returns = "kind string"

    def eval(
        self, r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.SUPPORT_UPDATES]
    ) -> Iterator[Any]:  # fmt: skip
        yield (r.kind,)


def test_an_upsert_stream_that_is_partitioned_by_another_key_is_refused(remote, spark, source):
    functions = remote(declare_process(Changes))
    frame = stream_of(spark, source, None).selectExpr("k", "v", "'+U' AS row_kind")
    call = {"changelog_mode": "+I,+U,-D", "upsert_key": "k"}
    assert functions.process("changes", frame, partition_by="k", **call).columns == ["k", "kind"]
    with pytest.raises(
        PlanError, match=r"upsert changes .* by their key [(]k[)], found PARTITION BY v: a row that moves"
    ):
        functions.process("changes", frame, partition_by="v", **call)


def test_sql_takes_streams_and_plans_are_refused_that_cannot_run(functions, spark, source, tmp_path):
    write(source, "a", [("x", 1, 5), ("y", 2, 6)])
    stream = stream_of(spark, source)
    stream.createOrReplaceTempView("events")
    query = (
        "SELECT k, what, total FROM sessions(r => TABLE events PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 's')"
    )
    assert sorted(run(functions.sql(query), tmp_path)) == [("x", "row", 1), ("y", "row", 2)]
    with pytest.raises(PlanError, match="table 'r': on a stream rows whose time is null come first: remove NULLS LAST"):
        functions.process("sessions", stream, partition_by="k", order_by="ts NULLS LAST", on_time="ts")
    for rows, name in (
        (stream_of(spark, source, None), "ts"), (stream.withColumn("later", F.expr("ts + interval 1 day")), "later"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=f"first column of ORDER BY needs a watermark, .* '{name}' has none"):
            functions.process("collected", rows, partition_by="k", order_by=name)
    collated = stream.selectExpr("k", "v", "ts", "k COLLATE UTF8_LCASE AS c", "map(k, v) AS m")
    for name in ("c", "m"):
        with pytest.raises(PlanError, match=f"function sessions@1, ORDER BY column '{name}': type .* is not supported"):
            functions.process("sessions", collated, partition_by="k", order_by=["ts", name], on_time="ts")
        with pytest.raises(PlanError, match=f"function sessions@1, key '{name}': type .* is not supported"):
            functions.process("sessions", collated, partition_by=name, on_time="ts")
    with pytest.raises(PlanError, match=r"Invalid PARTITION BY clause for table argument 'r'[.] Duplicate column 'k'"):
        functions.process("sessions", stream, partition_by=["k", "K"], on_time="ts")
    static = spark.createDataFrame([("x", 1)], "k string, v bigint")
    with pytest.raises(PlanError, match="table 'payments' is bounded and another one is a stream"):
        functions.process("pairs", {"orders": stream.drop("ts"), "payments": static}, partition_by="k")
    spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with pytest.raises(PlanError, match=r"RocksDB state store, found .*HDFSBacked"):
        functions.process("sessions", stream, partition_by="k", on_time="ts")
