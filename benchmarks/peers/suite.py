"""The suite of peers: the same function over the same data, each server on one core, alternating.

A side is a server, one of its functions and a setting. Ratios compare the best settings of the sides; the results
with default settings are shown, too.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.in_spark import measure_look_ups, measure_stragglers, measure_vectorized
from benchmarks.peers.processes import PEERS, peer_process
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import local_spark
from benchmarks.timing import alternating, medians

__all__ = ["run_peers"]

FUNCTIONS = Path(__file__).with_name("functions.py")
ENVIRONMENT = Path("build/bench/peers")
ROWS_PER_BATCH = {"": 10_000, "_1k": 1_000, "_64k": 65_536}
OURS = "ours"
RUN_SECONDS = 0.5
"""About how long one side is measured at a time."""


def run_peers(results: Results, quick: bool) -> None:
    """Runs the comparisons inside Spark, then all comparisons with peers."""
    _measure_in_spark(results, quick)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_process(FUNCTIONS, one_core=True))
        sides = {OURS: _Side(server.process, Client(server.target).seconds)}
        for name, package in PEERS.items():
            peer = stack.enter_context(peer_process(package, ENVIRONMENT))
            sides[name] = _Side(peer.process, peer.seconds)
        _measure_arithmetic(results, quick, sides)
        _measure_shapes(results, quick, sides)
        _measure_look_ups(results, quick, sides)


def _measure_in_spark(results: Results, quick: bool) -> None:
    """Compares with the usual PySpark ways without a server."""
    with local_spark() as spark, server_process() as server:
        measure_vectorized(results, quick, spark, server)
        rates = measure_look_ups(results, quick, spark, server)
        measure_stragglers(results, quick, spark, server)
    note = "rows/s of ours in Spark, ordered, over those of {}"
    for other, name in (
        ("blocking_udf", "vs_blocking_udf"), ("pandas_gather_1000", "vs_pandas_gather"),
        ("arrow_concurrency_level_100", "vs_arrow_concurrency_level"), ("map_in_pandas_100", "vs_map_in_pandas"),
    ):  # fmt: skip
        results.add(name, rates["remote_ordered"] / rates[other], note.format(other))


@dataclass
class _Side:
    """A server, and a way to send batches to one of its functions, with options of remote functions."""

    process: psutil.Process
    seconds: Callable[..., float]

    def processor(self) -> float:
        """CPU seconds used so far by the server and by this process."""
        times = [self.process.cpu_times(), psutil.Process().cpu_times()]
        return sum(each.user + each.system for each in times)


@dataclass
class _Run:
    """One side of a comparison."""

    side: _Side
    function: str
    batches: Sequence[pa.RecordBatch]
    options: Mapping[str, str]

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def _rates(
    results: Results, what: str, runs: Mapping[str, _Run], repetitions: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Rows per second, and per CPU second of server and client, by run."""
    processor: dict[str, list[float]] = {name: [] for name in runs}

    def measure(name: str, run: _Run) -> float:
        before = run.side.processor()
        seconds = run.side.seconds(run.function, run.batches, **run.options)
        processor[name].append(run.side.processor() - before)
        return seconds

    found = alternating({name: partial(measure, name, run) for name, run in runs.items()}, repetitions)
    seconds = results.medians(what, found)
    used = medians({name: values[1:] for name, values in processor.items()})
    return (
        {name: run.rows / seconds[name] for name, run in runs.items()},
        {name: run.rows / max(used[name], 1e-3) for name, run in runs.items()},
    )


def _measure_arithmetic(results: Results, quick: bool, sides: Mapping[str, _Side]) -> None:
    for suffix, size in ROWS_PER_BATCH.items():
        for function in ("add", "gcd"):
            _measure_function(
                results, quick, sides, function, lambda n: [pa.array(range(n)), pa.array(range(7, n + 7))], size, suffix
            )


def _measure_shapes(results: Results, quick: bool, sides: Mapping[str, _Side]) -> None:
    """Compares strings of 100 bytes, and structs."""
    _measure_function(results, quick, sides, "upper", lambda n: [pa.array([f"{i:0100d}" for i in range(n)])], 10_000)
    _measure_function(
        results, quick, sides, "swap",
        lambda n: [pa.StructArray.from_arrays([pa.array([0.5] * n), pa.array([1.5] * n)], ["x", "y"])], 10_000,
    )  # fmt: skip


def _measure_function(
    results: Results, quick: bool, sides: Mapping[str, _Side], function: str,
    columns: Callable[[int], list[pa.Array]], size: int, suffix: str = "",
) -> None:  # fmt: skip
    """One function, row by row and batch by batch, on every server; there are batches for about half a second."""
    arrays = columns(size)
    batch = pa.RecordBatch.from_arrays(arrays, [f"a{index}" for index in range(len(arrays))])

    def run(side: str, way: str) -> _Run:
        measure = partial(sides[side].seconds, f"{function}_{way}")
        measure([batch])  # opens channels and pools, which are opened only once
        several = 1 if quick else max(1, min(20, int(0.2 / measure([batch]))))
        count = 1 if quick else max(1, int(RUN_SECONDS * several / measure([batch] * several)))
        return _Run(sides[side], f"{function}_{way}", [batch] * count, {})

    asynchronous = {OURS + "_async": run(OURS, "async")} if function in ("add", "gcd") else {}
    runs = {
        f"{OURS}_row": run(OURS, "row"),
        **asynchronous,
        f"{OURS}_batch": run(OURS, "batch"),
        **{f"{name}_{way}": run(name, way) for name in PEERS for way in ("row", "batch")},
    }
    name = f"{function}{suffix}"
    rates, per_cpu = _rates(results, name, runs, 1 if quick else 5)
    results.add_all({f"{name}_{run}": rate for run, rate in rates.items()}, f"rows/s, {size} rows per batch")
    short = "" if name == "add" else f"_{name}"
    for peer in PEERS:
        for measured, unit in ((rates, ""), (per_cpu, "_per_cpu_second")):
            note = f"{name}: ours over {PEERS[peer]}, both called {{}}" + (", per CPU second" if unit else "")
            row, batch = measured[f"{peer}_row"], measured[f"{peer}_batch"]
            results.add(f"rowwise{short}_vs_{peer}{unit}", measured[f"{OURS}_row"] / row, note.format("row by row"))
            if asynchronous:
                results.add(
                    f"rowwise_async{short}_vs_{peer}{unit}", measured[f"{OURS}_async"] / row,
                    note.format("row by row, ours `async def`"),
                )  # fmt: skip
            results.add(
                f"vectorized{short}_vs_{peer}{unit}", measured[f"{OURS}_batch"] / batch, note.format("by batches")
            )


def _measure_look_ups(results: Results, quick: bool, sides: Mapping[str, _Side]) -> None:
    """Lookups of 10 ms per row: a peer has a thread per row in flight, a remote function an option. Each takes 1 s.

    A peer may be slower with more threads, so ratios use the best of its measured numbers of threads.
    """
    rates: dict[int, dict[str, float]] = {}
    per_cpu: dict[int, dict[str, float]] = {}
    for in_flight in (100, 1000, 4000):
        rows = in_flight // 10 if quick else min(100 * in_flight, 30_000)
        runs = {
            OURS: _Run(
                sides[OURS], "look_up", _numbers((10 if quick else 200) * in_flight),
                {"buffer-capacity": str(in_flight)},
            ),
            **{
                name: _Run(sides[name], f"look_up_{in_flight}", _numbers(rows), {})
                for name in PEERS
            },
        }  # fmt: skip
        if in_flight == 1000:
            runs |= {
                f"{name}_default": _Run(sides[name], "look_up_default", _numbers(50 if quick else 300), {})
                for name in PEERS
            }
        rates[in_flight], per_cpu[in_flight] = _rates(results, f"io_{in_flight}", runs, 1 if quick else 3)
        ours = rates[in_flight]
        results.add_all({f"io_{in_flight}_{run}": rate for run, rate in ours.items()}, "rows/s, 10 ms each, one core")
        fraction = ours[OURS] * 0.01 / in_flight
        results.add(f"io_{in_flight}_fraction_of_ideal", fraction, "rows x latency / concurrency")
    for in_flight in rates:
        for peer in PEERS:
            note = f"{in_flight} in flight, ours over {PEERS[peer]} with its best number of threads"
            for measured, unit in ((rates, ""), (per_cpu, "_per_cpu_second")):
                best = max(of_threads[peer] for of_threads in measured.values())
                results.add(
                    f"io_{in_flight}_vs_{peer}{unit}", measured[in_flight][OURS] / best,
                    note + (", per CPU second" if unit else ""),
                )  # fmt: skip


def _numbers(rows: int) -> list[pa.RecordBatch]:
    size = 10_000
    column = pa.array(range(rows), pa.int64())
    return [
        pa.RecordBatch.from_arrays([column.slice(first, size)], ["x"])
        for first in range(0, math.ceil(rows / size) * size, size)
    ]
