"""Process table functions on streams when a function fails, or a server or a driver is killed."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import pytest

import udf_server as udf
from spark_client import connect
from tests.spark.process_streams import Fragile, Keyed, Mended, Seen, Sessions, run, seconds, start, stream_of, write
from udf_server import StateHint
from udf_server.process.declaration import declare_process

# A state store and Python's side of it are slow to start on a busy machine.
pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("rocksdb")]
ROOT = Path(__file__).parents[3]


def test_a_function_that_fails_ends_the_query_and_a_mended_one_goes_on(remote, spark, source, tmp_path):
    """The query restarts from the checkpoint with another server; the result is that of one run over all rows."""
    write(source, "a", [("x", 1, 1), ("y", 2, 2)])
    fragile, mended = remote(declare_process(Fragile)), remote(declare_process(Mended))

    def query(functions):
        return functions.process("fragile", stream_of(spark, source), partition_by="k")

    first = run(query(fragile), tmp_path)
    write(source, "b", [("y", 0, 3), ("x", 5, 4)])
    broken = start(query(fragile), tmp_path)
    with pytest.raises(Exception, match=r"fragile@1: a segment of the key \(k='y'\) failed: .*by zero"):
        broken.awaitTermination(300)
    assert sorted(run(query(mended), tmp_path)) == sorted([*first, ("y", -1, 2), ("x", 20, 2)])


class Gate:
    """Blocks a function until the test releases it."""

    reached, opened = threading.Event(), threading.Event()


class Gated(Sessions):
    name = "sessions"

    def eval(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        if r.v == 77:
            Gate.reached.set()
            Gate.opened.wait(300)
        yield from super().eval(ctx, seen, r)


def test_a_server_that_is_killed_in_the_middle_changes_nothing(serve, spark, source, tmp_path):
    """Another server at its address answers the remaining rows; the query does not notice, and no row is duplicated."""
    rows = {"a": [("x", 1, 5), ("y", 2, 6)], "b": [("x", 77, 8), ("y", 3, 30)], "c": [("z", 4, 90)]}
    for name, each in rows.items():
        write(source, name, each)
    first = serve(declare_process(Gated))
    remote = connect(spark, first.target)
    query = start(remote.process("sessions", stream_of(spark, source), partition_by="k", on_time="ts"), tmp_path)
    assert Gate.reached.wait(300)
    port = int(first.target.rpartition(":")[2])
    first.stop()
    Gate.opened.set()
    serve(declare_process(Sessions), port=port)
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
from tests.spark.process_streams import PROVIDER, ROCKSDB, start, stream_of

target, folder = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(PROVIDER, ROCKSDB)
spark = spark.config("spark.sql.shuffle.partitions", "1").getOrCreate()
stream = stream_of(spark, folder / "in")
query = start(connect(spark, target).process("sessions", stream, partition_by="k", on_time="ts"), folder)
query.awaitTermination()
"""


@pytest.mark.long
def test_a_driver_that_is_killed_in_a_micro_batch_changes_nothing(serve, spark, source, tmp_path):
    """Another driver continues from the checkpoint; the rows are those of an undisturbed run."""
    for name, rows in {"a": [("x", 1, 5), ("y", 2, 6)], "b": [("x", 77, 8), ("y", 3, 30)], "c": [("z", 4, 90)]}.items():
        write(source, name, rows)
    Gate.reached.clear()
    Gate.opened.clear()
    target = serve(declare_process(Gated)).target
    with (tmp_path / "log").open("wb") as log:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        driver = psutil.Popen(
            [sys.executable, "-c", JOB, target, str(tmp_path)], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        assert Gate.reached.wait(300), (tmp_path / "log").read_text()[-3000:]
        # Its JVM and Python workers are killed, too, as if the machine was lost.
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
