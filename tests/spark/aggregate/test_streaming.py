"""Remote aggregates on streaming DataFrames: the state is Spark's."""

import os
import threading

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError, connect
from tests.spark_client.executor.aggregate.world import ALL, Total
from udf_server.aggregate.declaration import declare_aggregate

SCHEMA = "k string, v bigint, at timestamp, row_kind string"


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, ALL))


def write(folder, name, rows):
    """Writes a file of `k,v,seconds[,row_kind]` rows atomically; each file is a micro-batch."""
    temporary = folder / f".{name}"
    lines = [f"{k},{v},2024-01-01T00:00:{second:02d},{kind[0] if kind else ''}\n" for k, v, second, *kind in rows]
    temporary.write_text("".join(lines))
    # Spark orders files by modification time, and those of the same millisecond arbitrarily.
    age = 1_700_000_000 + ord(name)
    os.utime(temporary, (age, age))
    temporary.rename(folder / f"{name}.csv")


def stream_of(spark, folder, changelog=False):
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(folder))
    return frame if changelog else frame.drop("row_kind")


def start(frame, tmp_path, mode, name, **options):
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(tmp_path / "checkpoint"))
    if "sink" in options:
        writer = writer.format("parquet").option("path", str(options["sink"]))
    else:
        writer = writer.format("memory").queryName(name)
    return writer.trigger(availableNow=True).start()


def run(frame, tmp_path, mode, name="aggregated", **options):
    """Processes all available input, then stops; returns the sink: for `update` all rows of all micro-batches."""
    query = start(frame, tmp_path, mode, name, **options)
    query.awaitTermination(100)
    assert query.exception() is None
    assert not query.isActive
    return [] if options else frame.sparkSession.table(name).collect()


FILES = {
    "a": [("x", 1, 1), ("y", 2, 3), ("x", 3, 12)],
    "b": [("x", 5, 4), ("y", 7, 13), ("x", 11, 31)],
    "c": [("y", 13, 55)],
    "d": [("x", 100, 2)],  # late: Spark drops by the watermark of the micro-batch before
}


def write_all(folder):
    for name, rows in FILES.items():
        write(folder, name, rows)


def windows(frame):
    return sorted((row.window.start.second, row.k, row.t.sum) for row in frame)


def test_append_with_a_watermark_emits_each_window_once_and_drops_late_rows(functions, spark, source, tmp_path):
    """Spark's own aggregates beside it must agree; a window is emitted when the watermark has passed it."""
    write_all(source)
    stream = stream_of(spark, source).withWatermark("at", "10 seconds")
    total = functions.function("total")
    frame = functions.group_by(stream, F.window("at", "10 seconds"), "k").agg(
        total("v").alias("t"), F.sum("v").alias("s"), total("v").filter(F.col("v") > 4).alias("some"),
        (total("v").sum + 1).alias("more"),
    )  # fmt: skip
    found = run(frame, tmp_path, "append")
    assert windows(found) == [(0, "x", 6), (0, "y", 2), (10, "x", 3), (10, "y", 7), (30, "x", 11)]
    assert all(row.t.sum == row.s == row.more - 1 for row in found)
    assert sorted(row.some.sum for row in found) == [0, 0, 5, 7, 11]


def test_without_sparks_own_only_accumulators_are_kept(functions, spark, source, tmp_path):
    write_all(source)
    stream = stream_of(spark, source).withWatermark("at", "10 seconds")
    window = F.window("at", "20 seconds", "10 seconds")
    frame = functions.group_by(stream, window, "k").agg(functions.function("total", size=2)("v").alias("t"))
    sums = stream_of(spark, source).withWatermark("at", "10 seconds").groupBy(window, "k").agg(F.sum("v").alias("s"))
    found = [(row.window, row.k, row.t.sum) for row in run(frame, tmp_path, "append")]
    expected = [(row.window, row.k, row.s) for row in run(sums, tmp_path / "spark", "append", "sums")]
    assert sorted(found) == sorted(expected)
    assert len(found) > 5


def test_update_emits_what_changed_and_complete_emits_everything(functions, spark, source, tmp_path):
    write_all(source)
    total = functions.function("total")
    frame = functions.group_by(stream_of(spark, source), "k").agg(total("v").alias("t"), F.count("*").alias("n"))
    updates = run(frame, tmp_path / "update", "update", "updates")
    assert sorted((row.k, row.t.sum, row.n) for row in updates) == [
        ("x", 4, 2), ("x", 20, 4), ("x", 120, 5), ("y", 2, 1), ("y", 9, 2), ("y", 22, 3),
    ]  # fmt: skip
    complete = run(frame, tmp_path / "complete", "complete", "everything")
    assert sorted((row.k, row.t.sum, row.n) for row in complete) == [("x", 120, 5), ("y", 22, 3)]


def test_functions_that_do_not_merge_get_their_rows_from_sparks_state(functions, spark, source, tmp_path):
    write_all(source)
    trail, total = functions.function("trail"), functions.function("total")
    stream = stream_of(spark, source)
    frame = functions.group_by(stream, "k", order_by="at").agg(
        trail("v").alias("t"), total("v").alias("s"), total("v").distinct().alias("d")
    )
    found = {row.k: row for row in run(frame, tmp_path, "complete")}
    assert {k: row.t for k, row in found.items()} == {"x": "1,100,5,3,11,", "y": "2,7,13,"}
    assert {k: (row.s.sum, row.d.sum) for k, row in found.items()} == {"x": (120, 120), "y": (22, 22)}
    with pytest.raises(PlanError, match="on a stream order_by takes columns"):
        functions.group_by(stream, "k", order_by=F.col("at").desc()).agg(trail("v"))


CHANGES = {
    "a": [("x", 1, 0, "+I"), ("y", 2, 0, "+I"), ("z", 4, 0, "+I")],
    "b": [("x", 1, 0, "-U"), ("x", 8, 0, "+U"), ("y", 2, 0, "-D")],
}


@pytest.mark.parametrize("names", [["total"], ["sum_in_one_place"], ["total", "sum_in_one_place"]])
def test_a_changelog_on_a_stream_takes_rows_back(functions, spark, source, tmp_path, names):
    """The function merges, does not, or both are used: y has no rows left and is not in the result."""
    for name, rows in CHANGES.items():
        write(source, name, rows)
    stream = stream_of(spark, source, changelog=True)
    calls = [functions.function(name)("v").alias(f"t{i}") for i, name in enumerate(names)]
    found = run(functions.group_by(stream, "k").agg(*calls), tmp_path, "complete")
    assert {row.k: [row[f"t{i}"].sum for i in range(len(names))] for row in found} == {
        "x": [8] * len(names), "z": [4] * len(names),
    }  # fmt: skip


@pytest.mark.parametrize("beside", [False, True])
def test_a_stream_killed_and_restarted_gives_what_an_undisturbed_one_gives(spark, serve, source, tmp_path, beside):
    """The query is killed while the function processes its second micro-batch."""
    reached, stuck = threading.Event(), threading.Event()

    class Stuck(Total):
        name = "slow"

        def _applied(self, segment):
            if any(row == (7,) for row in segment.rows) and not stuck.is_set():
                reached.set()
                stuck.wait(60)
            return super()._applied(segment)

    remote = connect(spark, serve(declare_aggregate(Stuck)).target)
    write_all(source)
    sink = tmp_path / "out"

    def query():
        stream = stream_of(spark, source).withWatermark("at", "10 seconds")
        others = [F.sum("v").alias("s")] if beside else []
        call = remote.function("slow")("v").alias("t")
        return remote.group_by(stream, F.window("at", "10 seconds"), "k").agg(call, *others)

    first = start(query(), tmp_path, "append", "killed", sink=sink)
    assert reached.wait(60)
    first.stop()
    stuck.set()
    run(query(), tmp_path, "append", sink=sink)
    found = windows(spark.read.parquet(str(sink)).collect())
    assert found == [(0, "x", 6), (0, "y", 2), (10, "x", 3), (10, "y", 7), (30, "x", 11)]


def test_errors_of_a_stream_are_the_policys(functions, spark, source, tmp_path):
    write(source, "a", [("x", -13, 0), ("y", 2, 0)])
    write(source, "b", [("x", 1, 0), ("y", 3, 0)])
    total = functions.function("total", on_error="column")
    frame = functions.group_by(stream_of(spark, source), "k").agg(total("v").alias("t"))
    found = {row.k: row for row in run(frame, tmp_path, "complete")}
    assert found["x"].t is None
    assert found["x"].t_error.message == "ValueError: thirteen"
    assert (found["y"].t.sum, found["y"].t_error) == (5, None)


def state_of(spark, checkpoint):
    """The bytes of what Spark's state holds, over all operators."""
    total = 0
    for file in (checkpoint / "state").iterdir():
        rows = spark.read.format("statestore").option("operatorId", file.name).load(str(checkpoint))
        total += sum(len(row.text) for row in rows.selectExpr("to_json(struct(key, value)) AS text").collect())
    return total


@pytest.mark.long
@pytest.mark.parametrize("mode", ["update", "complete"])
def test_the_state_of_a_key_does_not_grow_with_micro_batches(functions, spark, source, tmp_path, mode):
    """One accumulator is kept for each key, also beside Spark's own aggregates, and over restarts."""
    sizes, last = [], []
    total = functions.function("total")
    for until in (2, 6):
        for number in range(len(sizes) * 2, until):
            write(source, chr(ord("a") + number), [("x", 1, 1), ("y", 10, 2), (f"k{number % 2}", 100, 3)])
        frame = functions.group_by(stream_of(spark, source), "k").agg(total("v").alias("t"), F.count("*").alias("n"))

        def keep(batch, _):
            last[:] = [(row.k, row.t.sum, row.n) for row in batch.collect()]

        writer = frame.writeStream.outputMode(mode).foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(100)
        sizes.append(state_of(spark, tmp_path / "checkpoint"))
    expected = {("x", 6, 6), ("y", 60, 6), ("k0", 300, 3), ("k1", 300, 3)}
    assert set(last) == (expected if mode == "complete" else expected - {("k0", 300, 3)})
    assert sizes[1] <= sizes[0] * 1.1


def test_one_accumulator_is_kept_without_keys_beside_a_watermark_and_with_errors(functions, spark, source, tmp_path):
    total = functions.function("total", on_error="column")
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    write(source, "b", [("x", -13, 0), ("y", 3, 0)])
    write(source, "c", [("x", 4, 0), ("y", 5, 0)])
    stream = stream_of(spark, source).withWatermark("at", "1 second")
    found = {row.k: row for row in run(functions.group_by(stream, "k").agg(total("v").alias("t")), tmp_path, "update")}
    assert (found["x"].t, found["x"].t_error.message) == (None, "ValueError: thirteen")
    assert (found["y"].t.sum, found["y"].t_error) == (10, None)
    every = functions.group_by(stream).agg(functions.function("total")("v").filter(F.col("v") > 0))
    (row,) = run(every, tmp_path / "all", "complete", "all_rows")
    assert row[0].sum == 15
