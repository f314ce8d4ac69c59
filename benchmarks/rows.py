"""Row-wise functions without Spark: many calls in flight, and the cost of dispatching one."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from benchmarks.direct import Client, process_of_calls
from benchmarks.functions import LOOKUP_SECONDS
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.timing import alternating, medians

__all__ = ["measure_dispatch", "measure_neighbours", "measure_waiting"]

SPARK_BATCH = 10_000


def measure_waiting(results: Results, quick: bool) -> None:
    """10 ms per row, 1000 rows in flight, the server on one core: the share of the theoretical maximum."""
    rows, repetitions, in_flight = (10_000, 1, 1000) if quick else (200_000, 5, 1000)
    batches = _batches(rows)
    ideal = rows * LOOKUP_SECONDS / in_flight
    with server_process(one_core=True) as server:
        client = Client(server.target)
        found = alternating(
            {"time": lambda: client.seconds("look_up", batches, **{"buffer-capacity": str(in_flight)})}, repetitions
        )
    results.add("io_1000_fraction_of_ideal", ideal / medians(found)["time"], "rows x latency / concurrency over time")
    results.add("io_1000_rows_per_second", rows / medians(found)["time"], "10 ms per row, 1000 in flight, one core")


def measure_dispatch(results: Results, quick: bool) -> None:
    """Functions that do nothing, against a vectorized one that only converts values.

    It measures CPU time of the server rather than wall-clock time, because CPU time per row does not depend on
    what else runs on the machine.
    """
    rows, repetitions = (100_000, 1) if quick else (3_000_000, 5)
    batches = _batches(rows)
    functions = ("convert", "async_identity", "sync_identity")
    with server_process() as server:
        client = Client(server.target)

        def processor(name: str) -> float:
            before = server.cpu_seconds()
            client.seconds(name, batches)
            return server.cpu_seconds() - before

        cpu = medians(alternating({name: partial(processor, name) for name in functions}, repetitions))
        time = medians(alternating({name: partial(client.seconds, name, batches) for name in functions}, repetitions))
    for kind in ("async", "sync"):
        cost = (cpu[f"{kind}_identity"] - cpu["convert"]) / rows * 1e9
        name = "rowwise_dispatch_ns" if kind == "async" else "rowwise_sync_dispatch_ns"
        results.add(name, cost, f"server CPU of one {kind} call, beyond the conversion of its values")
    for kind in ("async", "sync"):
        results.add(f"rowwise_{kind}_rows_per_second", rows / time[f"{kind}_identity"], "without Spark")


def measure_neighbours(results: Results, quick: bool) -> None:
    """Lookups of 10 ms alone, beside a function that is stuck, and beside one that is flooded with rows."""
    rows, repetitions = (2_000, 1) if quick else (50_000, 5)
    batches, flood = _batches(rows), _batches(200_000)
    with server_process() as server:
        client, options = Client(server.target), {"buffer-capacity": "500"}

        def beside(function: str, other: Sequence[pa.RecordBatch]) -> float:
            with process_of_calls(server.target, function, other):
                return client.seconds("look_up", batches, **options)

        time_ = medians(alternating({
            "alone": lambda: client.seconds("look_up", batches, **options),
            "stuck": lambda: beside("stuck", _batches(1000)),
            "flooded": lambda: beside("sync_identity", flood),
        }, repetitions))  # fmt: skip
    for name in ("stuck", "flooded"):
        note = f"rows/s of lookups beside a function that is {name}, over those alone"
        results.add(f"look_ups_beside_{name}", time_["alone"] / time_[name], note)


def _batches(rows: int) -> list[pa.RecordBatch]:
    column = pa.array(range(rows), pa.int64())
    return [
        pa.RecordBatch.from_arrays([column.slice(first, SPARK_BATCH)], ["x"]) for first in range(0, rows, SPARK_BATCH)
    ]
