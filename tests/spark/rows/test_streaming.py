"""Remote calls on streaming DataFrames."""

import pytest
from pyspark.sql import functions as F

import udf_server as udf


@udf.scalar
async def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar
def no_threes(x: int) -> int:
    if x % 10 == 3:
        raise ValueError("three")
    return x


def write(folder, name, rows):
    """Writes a file of `x,seconds` lines atomically."""
    temporary = folder / f".{name}"
    temporary.write_text("".join(f"{x},2024-01-01T00:00:{second:02d}\n" for x, second in rows))
    temporary.rename(folder / f"{name}.csv")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def stream_of(spark, folder):
    return spark.readStream.schema("x bigint, at timestamp").option("maxFilesPerTrigger", 1).csv(str(folder))


def run(frame, tmp_path, mode="append"):
    """Processes all available input, then stops; returns the rows of every micro-batch."""
    name = "streamed"
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(90)
    assert query.exception() is None
    return frame.sparkSession.table(name).collect()


def test_calls_in_select_and_where_run_in_every_micro_batch(remote, spark, source, tmp_path):
    plus = remote(plus_ten).function("plus_ten")
    write(source, "a", [(1, 0), (2, 1)])
    write(source, "b", [(3, 2)])
    frame = stream_of(spark, source).where(plus("x") > 11).select("x", plus("x").alias("y"))
    assert sorted((row.x, row.y) for row in run(frame, tmp_path)) == [(2, 12), (3, 13)]


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_whole_row_execution_runs_on_streams_with_its_policies(remote, spark, source, tmp_path, mode):
    session = remote(plus_ten, no_threes)
    write(source, "a", [(1, 0), (3, 1)])
    write(source, "b", [(13, 2), (4, 3)])
    calls = {"y": session.function("no_threes")("x"), "z": session.function("plus_ten")("x")}
    letters = str(tmp_path / "letters")
    frame = session.with_columns(
        stream_of(spark, source), calls, output_mode=mode, on_error="dead-letter", dead_letter=letters
    )
    assert sorted((row.x, row.y, row.z) for row in run(frame, tmp_path)) == [(1, 1, 11), (4, 4, 14)]
    # Each micro-batch has its own file; one does not replace another's.
    assert sorted(row.x for row in spark.read.parquet(letters).collect()) == [3, 13]


def test_partitions_of_a_stream_that_one_task_computes_have_letters_of_their_own(remote, spark, source, tmp_path):
    session, letters = remote(no_threes), str(tmp_path / "letters")
    write(source, "a", [(x, 0) for x in range(40)])
    frame = stream_of(spark, source).repartition(4, "x")
    calls = {"y": session.function("no_threes")("x")}
    result = session.with_columns(frame, calls, on_error="dead-letter", dead_letter=letters)
    assert len(run(result.coalesce(1), tmp_path)) == 36
    assert sorted(row.x for row in spark.read.parquet(letters).collect()) == [3, 13, 23, 33]


@pytest.mark.parametrize("each", [False, True], ids=["sink", "foreachBatch"])
def test_a_micro_batch_that_runs_again_replaces_its_letters(remote, spark, source, tmp_path, each):
    session = remote(no_threes)
    letters, checkpoint = str(tmp_path / "letters"), tmp_path / "checkpoint"
    ids = set()

    def run_once(partitions):
        """Runs like a restarted job: everything is planned again."""

        def called(frame):
            calls = {"y": session.function("no_threes")("x")}
            frame = frame.repartition(partitions, "x")
            return session.with_columns(frame, calls, on_error="dead-letter", dead_letter=letters)

        frame = stream_of(spark, source)
        writer = frame.writeStream.foreachBatch(lambda batch, _: called(batch).collect())
        if not each:
            writer = called(frame).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(90)
        ids.add(query.id)

    for name, values in (("a", [3, 13, 23, 4]), ("b", [33, 43, 5])):
        write(source, name, [(x, 0) for x in values])
    run_once(3)
    # The state is that of a driver killed between the tasks of the second micro-batch and its commit.
    for commit in ("1", ".1.crc"):
        (checkpoint / "commits" / commit).unlink()
    run_once(2)
    found = spark.read.parquet(letters)
    assert sorted((row.x, row["_micro_batch"], row["_run"]) for row in found.collect()) == [
        (x, micro_batch, *ids) for x, micro_batch in ((3, 0), (13, 0), (23, 0), (33, 1), (43, 1))
    ]
    assert sorted(row.x for row in session.replay(letters).collect()) == [3, 13, 23, 33, 43]


def test_the_watermark_survives_whole_row_execution(remote, spark, source, tmp_path):
    session = remote(plus_ten)
    for name, second in (("a", 0), ("b", 15), ("c", 40)):
        write(source, name, [(1, second)])
    events = stream_of(spark, source).withWatermark("at", "0 seconds")
    called = session.with_columns(events, {"y": session.function("plus_ten")("x")})
    counts = called.groupBy(F.window("at", "10 seconds")).agg(F.sum("y").alias("s"))
    rows = run(counts.select(F.col("window.start").alias("start"), "s"), tmp_path)
    # Append mode emits a window only after the watermark has passed it: the last one stays open.
    assert sorted((row.start.second, row.s) for row in rows) == [(0, 11), (10, 11)]


def test_the_context_tells_micro_batches_apart(remote, spark, source, tmp_path):
    seen = []

    @udf.scalar
    def note(x: int, context: udf.CallContext) -> int:
        seen.append((x, context.stream.micro_batch))
        return x

    write(source, "a", [(1, 0)])
    write(source, "b", [(2, 1)])
    run(stream_of(spark, source).select(remote(note).function("note")("x").alias("y")), tmp_path)
    assert sorted(seen) == [(1, 0), (2, 1)]
