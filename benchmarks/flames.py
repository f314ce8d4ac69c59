"""Flame graphs of the server, one per kind of function: where the time of its hot path goes.

    python -m benchmarks.flames                 # all, into docs/images/flames
    python -m benchmarks.flames table --output build/flames

Each is sampled by py-spy, two hundred times a second for some seconds, while rows come as fast as they are
taken. Where the system forbids a process to look into another one, this needs root. The width of a frame is
its share of the time the interpreter was held: what gRPC and Arrow do without it is not in the picture.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks.aggregate import FUNCTIONS as AGGREGATES
from benchmarks.direct import Client
from benchmarks.peers.suite import FUNCTIONS as SCALARS
from benchmarks.process import FUNCTIONS as TABLES
from benchmarks.process import events
from benchmarks.server import ServerProcess, server_process
from benchmarks.spark import TASKS, local_spark, run_query
from spark_client import connect

SECONDS, PER_SECOND = 6, 200
SCALAR = {"look_ups": "look_up", "async_rows": "add_async", "threaded_rows": "add_row", "vectorized": "add_batch"}
"""The function by the name of the graph. Lookups wait 10 ms, the others add two numbers."""


@contextlib.contextmanager
def _again_and_again(work: Callable[[], object]) -> Iterator[None]:
    """Repeats the work in a thread until the block ends; runs it once before the block begins."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()

    work()
    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _record(server: ServerProcess, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.svg"
    command = [
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(server.process.pid),
        "--function", "--gil", "--duration", str(SECONDS), "--rate", str(PER_SECOND),
        "--format", "flamegraph", "--output", str(file),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    # The title that py-spy writes is the command, which contains paths of this machine.
    titled = re.sub(r'(<text id="title"[^>]*>)[^<]*', rf"\g<1>{name}", file.read_text(), count=1)
    file.write_text(titled)
    print(file)


def _scalar(name: str, folder: Path) -> None:
    waits = name == "look_ups"
    rows = 10_000 if name != "vectorized" else 65_536
    columns = [pa.array(range(rows))] * (1 if waits else 2)
    batch = pa.RecordBatch.from_arrays(columns, [f"a{index}" for index in range(len(columns))])
    batches = [batch] * (10 if waits else 100)
    options = {"buffer-capacity": "1000"} if waits else {}
    with server_process(SCALARS, one_core=True) as server:
        client = Client(server.target)
        with _again_and_again(partial(client.seconds, SCALAR[name], batches, **options)):
            _record(server, name, folder)


def _aggregate(name: str, folder: Path) -> None:
    with local_spark() as spark, server_process(AGGREGATES) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        numbers = spark.range(0, 2_000_000, 1, TASKS)
        frame = numbers.select((F.col("id") % 100_000).alias("k"), F.col("id").cast("double").alias("v")).cache()
        remote = connect(spark, server.target)
        averages = remote.group_by(frame, "k").agg(remote.function(f"{name}_average")("v").alias("v"))
        with _again_and_again(partial(run_query, averages)):
            _record(server, f"aggregate_{name}", folder)


def _process(folder: Path) -> None:
    with local_spark() as spark, server_process(TABLES) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        frame = events(spark, 500_000, 50_000).cache()
        counts = connect(spark, server.target).process("count_with_timeout", frame, partition_by="k", on_time="ts")
        with _again_and_again(partial(run_query, counts)):
            _record(server, "process", folder)


GRAPHS: dict[str, Callable[[Path], None]] = {
    **{name: partial(_scalar, name) for name in SCALAR},
    "aggregate_vectorized": partial(_aggregate, "vectorized"),
    "aggregate_classic": partial(_aggregate, "classic"),
    "process": _process,
}


def main() -> None:
    """Draws the graphs that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flames", description=__doc__)
    parser.add_argument("graphs", nargs="*", metavar="graph", help=f"of {', '.join(GRAPHS)}; by default all")
    parser.add_argument("--output", type=Path, default=Path("docs/images/flames"))
    chosen = parser.parse_args()
    if unknown := set(chosen.graphs) - GRAPHS.keys():
        parser.error(f"no graph {', '.join(sorted(unknown))}; there are {', '.join(GRAPHS)}")
    for name in chosen.graphs or GRAPHS:
        GRAPHS[name](chosen.output)


if __name__ == "__main__":
    main()
