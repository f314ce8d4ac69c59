"""The regression guard: `python -m benchmarks.guard` compares ratios with the committed ones of `guard.json`.

Ratios only, each of two things that took turns in one run, so that they mean the same on another machine and
a busy one. Takes some three minutes, fails beyond the tolerance, and says by how much.
"""

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as F

from benchmarks.direct import Client
from benchmarks.functions import LOOKUP_SECONDS
from benchmarks.in_spark import gathering, local_identity
from benchmarks.server import server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, medians
from spark_client import connect

__all__ = ["TOLERANCE", "compare", "measure"]

EXPECTED = Path(__file__).with_suffix(".json")
AVERAGES = Path(__file__).with_name("aggregate_functions.py")
TOLERANCE = 0.3
"""The share of a ratio that may be lost: on a machine that others use, less than this is noise."""


def main() -> int:
    """Returns status 1 if a ratio is worse than the tolerance allows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write what is found as what is expected from now on")
    parser.add_argument("--rows", type=int, default=1_000_000, help="fewer, to see that it runs")
    chosen = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    found = measure(chosen.rows)
    if chosen.update:
        EXPECTED.write_text(json.dumps(found, indent=2) + "\n")
    lines, worse = compare(found, json.loads(EXPECTED.read_text()))
    print("\n".join(lines))
    if worse:
        print(f"slower than what is committed by more than {TOLERANCE:.0%}: {', '.join(worse)}", file=sys.stderr)
    return 1 if worse else 0


def compare(found: dict[str, float], expected: dict[str, float]) -> tuple[list[str], list[str]]:
    """Returns a line per ratio, and the names of those that are too low. Raises KeyError for an unexpected ratio."""
    lines, worse = [], []
    for name, ratio in found.items():
        change = ratio / expected[name] - 1
        lines.append(f"  {name:36} {ratio:8.3g}  expected {expected[name]:8.3g}  {change:+.0%}")
        if change < -TOLERANCE:
            worse.append(name)
    return lines, worse


def measure(rows: int) -> dict[str, float]:
    """Measures every ratio; higher is better. Cheap functions get `rows` rows, others a share of them."""
    return {name: float(f"{ratio:.3g}") for name, ratio in {**_direct(rows), **_in_spark(rows)}.items()}


def _direct(rows: int) -> dict[str, float]:
    """Ratios without Spark: waiting against the ideal, calls of a row against the conversion of its values."""
    waiting, cheap = _batches(max(rows // 20, 2000)), _batches(rows)
    count = sum(batch.num_rows for batch in waiting)
    with server_process(one_core=True) as server:
        client = Client(server.target)
        time_ = medians(alternating({
            "waiting": partial(client.seconds, "look_up", waiting, **{"buffer-capacity": "1000"}),
            **{name: partial(client.seconds, name, cheap) for name in ("convert", "async_identity", "sync_identity")},
        }, 3))  # fmt: skip
    return {
        "io_1000_fraction_of_ideal": count * LOOKUP_SECONDS / 1000 / time_["waiting"],
        "rowwise_async_vs_convert": time_["convert"] / time_["async_identity"],
        "rowwise_sync_vs_convert": time_["convert"] / time_["sync_identity"],
    }


def _in_spark(rows: int) -> dict[str, float]:
    """Ratios in Spark: vectorized calls, lookups and an average, each against the usual way without a server."""
    with local_spark() as spark, server_process() as server, server_process(AVERAGES) as averages:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        remote = connect(spark, server.target)
        cheap = spark.range(0, 2 * rows, 1, TASKS).select(F.col("id").alias("a"), F.col("id").alias("b"))
        look_ups = spark.range(0, max(rows // 50, 2000), 1, TASKS)
        keyed = spark.range(0, rows, 1, TASKS).select((F.col("id") % (rows // 20)).alias("k"), F.rand(1).alias("v"))
        keyed = keyed.cache()
        keyed.count()
        average = connect(spark, averages.target).function("vectorized_average")
        sides = {
            "vectorized": cheap.select(remote.function("first_of_two")("a", "b")),
            "local": cheap.select(local_identity()("a", "b")),
            "look_up": look_ups.select(remote.function("look_up", buffer_capacity=1000)("id")),
            "gather": look_ups.select(gathering(1000)("id")),
            "average": remote.group_by(keyed, "k").agg(average("v")),
            "identity": keyed.mapInArrow(lambda batches: batches, keyed.schema),
        }
        time_ = medians(alternating({name: partial(run_query, side) for name, side in sides.items()}, 3))
    return {
        "vectorized_vs_local_arrow_udf": time_["local"] / time_["vectorized"],
        "look_ups_vs_pandas_gather_1000": time_["gather"] / time_["look_up"],
        "average_vs_map_in_arrow_identity": time_["identity"] / time_["average"],
    }


def _batches(rows: int) -> list[pa.RecordBatch]:
    size = 10_000
    column = pa.array(range(rows), pa.int64())
    return [pa.RecordBatch.from_arrays([column.slice(first, size)], ["x"]) for first in range(0, rows, size)]


if __name__ == "__main__":
    sys.exit(main())
