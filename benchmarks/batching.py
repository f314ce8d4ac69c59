"""The suite of common calls: rows of several streams in one call, over calls per stream and an ideal batcher."""

import concurrent.futures
import json
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.batching_functions import BATCH_ROWS, CALL_SECONDS, MESSAGE_ROWS, QUEUE_DELAY, ROW_SECONDS
from benchmarks.direct import Client
from benchmarks.light_streams import rows_per_second
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.timing import alternating
from remote_udf.effective_options import ScalarOptions
from remote_udf.outcomes import RowError
from udf_server.base.fairness import Party
from udf_server.batching.merged_call import MergedCall
from udf_server.batching.row_queue import Part, RowQueue
from udf_server.declaring.declaration import scalar
from udf_server.runners.calling import Calling
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import InputBatch

__all__ = ["run_batching"]

FUNCTIONS = Path(__file__).with_name("batching_functions.py")


def run_batching(results: Results, quick: bool) -> None:
    """Measures without Spark: the client of its Python workers sends the rows, a thread per stream."""
    _measure_dispatch(results, quick)
    with server_process(FUNCTIONS) as server:
        client = Client(server.target)
        _measure_low_load(results, quick, client)
        _measure_merging(results, quick, client)
        _measure_ideal(results, quick, client, server.target)
        _measure_hedging(results, quick, client)
    _measure_ray(results, quick)


def _measure_hedging(results: Results, quick: bool, client: Client) -> None:
    """An ordered job of which 1 % of the rows take a second instead of 10 ms, unless they are called again."""
    rows, first = 400 if quick else 4_000, iter(range(0, 1 << 40, 1 << 20))

    def calls() -> int:
        return int(client.values("calls", [pa.record_batch([pa.array([0])], names=["x"])])[0])

    def seconds(function: str) -> float:
        start = next(first)
        start -= start % 100
        column = pa.array(range(start, start + rows), pa.int64())
        return client.seconds(function, [pa.record_batch([column], names=["x"])])

    extra = []

    def hedged() -> float:
        before = calls()
        found = seconds("hedged")
        extra.append((calls() - before) / rows - 1)
        return found

    sides = {"unhedged": lambda: seconds("unhedged"), "hedged": hedged}
    times = results.medians("hedging", alternating(sides, 1 if quick else 3))
    speedup = times["unhedged"] / times["hedged"]
    results.add("hedged_ordered_job_speedup", speedup, "speed-up; ordered, 1 % of rows take 1 s instead of 10 ms")
    results.add("hedged_extra_calls", max(extra), "second calls over rows in that job")
    before, count, start = calls(), rows // 4, 10**15
    column = pa.array(range(start, start + count), pa.int64())
    client.seconds("overloaded", [pa.record_batch([column], names=["x"])])
    needed = count + count // 10  # every tenth row is refused once
    results.add("hedged_extra_calls_overload", (calls() - before - needed) / count, "the same while some are refused")


def _measure_merging(results: Results, quick: bool, client: Client) -> None:
    rows = {"per_stream": 24 if quick else 80, "merged": 80 if quick else 800}
    sides = {name: _pace(client, name, 16, count) for name, count in rows.items()}
    times = results.medians("merging", alternating(sides, 1 if quick else 3, warm_up=not quick))
    results.add(
        "merged_vs_per_stream", times["merged"] / times["per_stream"],
        "rows/s over calls per stream; 16 streams, messages of 8 rows, one call at a time of 20 ms + 10 us per row",
    )  # fmt: skip
    results.add("merged_rows_per_second", times["merged"], "rows/s of common calls in that comparison")


def _measure_ray(results: Results, quick: bool) -> None:
    """The same work with Ray Serve, if RAY_PYTHON names a Python that has `ray[serve]`."""
    if not (python := os.environ.get("RAY_PYTHON")):
        print("  ray_serve is not measured: RAY_PYTHON names no Python that has ray[serve]")
        return
    command = [python, str(Path(__file__).with_name("peers") / "ray_serve.py"), "16", "80" if quick else "160"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = json.loads(next(line for line in lines if line.startswith("[")))
    pace = statistics.median(found)
    results.add("ray_serve_rows_per_second", pace, "rows/s of @serve.batch; 16 streams, 8 requests at once each")
    results.add("ray_serve_or_triton", results.numbers["merged_rows_per_second"] / pace, "our rows/s over Ray Serve's")


def _measure_ideal(results: Results, quick: bool, client: Client, target: str) -> None:
    """Against one stream that sends full batches, so that all rows of a call are always there.

    The streams come from one event loop: 64 tasks in one process need all of a core, and the device waits for them.
    """
    rows = (20 if quick else 200) * BATCH_ROWS
    batch = pa.record_batch([pa.array(range(rows), pa.int64())], names=["x"])

    def ideal() -> float:
        return rows / client.seconds("per_stream", [batch], **{"batch-rows": str(BATCH_ROWS)})

    def merged() -> float:
        return rows_per_second(target, "merged", streams=64, rows=rows // 64, message_rows=MESSAGE_ROWS)

    sides = {"ideal": ideal, "merged": merged, "tasks": _pace(client, "merged", 64, rows // 64)}
    times = results.medians("ideal", alternating(sides, 1 if quick else 3, warm_up=not quick))
    share = times["merged"] / times["ideal"]
    results.add("merged_share_of_ideal", share, "rows/s of 64 streams, messages of 8 rows, over one of 256")
    share = times["tasks"] / times["ideal"]
    results.add("merged_share_of_ideal_tasks", share, "the same with 64 tasks in one process, which is the bound then")


def _measure_low_load(results: Results, quick: bool, client: Client) -> None:
    seconds = client.each_row("merged", 20 if quick else 300)
    over = float(np.quantile(seconds, 0.99)) - QUEUE_DELAY - CALL_SECONDS - ROW_SECONDS
    results.add("p99_added_delay_low_load", over, "seconds over max_queue_delay + one call; one row at a time")


def _pace(client: Client, function: str, streams: int, rows: int) -> Any:
    """Measures rows per second of all streams together."""
    column = pa.array(range(rows), pa.int64())
    batches = pa.record_batch([column], names=["x"])

    def measure() -> float:
        ready = threading.Barrier(streams + 1)

        def stream() -> None:
            ready.wait()
            client.seconds(function, [batches], **{"batch-rows": str(MESSAGE_ROWS)})

        with concurrent.futures.ThreadPoolExecutor(streams) as threads:
            running = [threads.submit(stream) for _ in range(streams)]
            ready.wait()
            began = time.perf_counter()
            for each in running:
                each.result()
        return streams * rows / (time.perf_counter() - began)

    return measure


def _measure_dispatch(results: Results, quick: bool) -> None:
    """CPU time of queue, call and scattering, without the function and without messages."""

    @scalar(vectorized=True)
    def same(x: pa.Int64Array) -> pa.Int64Array:
        return x

    rounds = 50 if quick else 2_000
    column = pa.array(range(BATCH_ROWS), pa.int64())
    streams: list[Any] = [_Stream() for _ in range(16)]
    owner, queue = _Owner(), RowQueue()
    calling, retry = Calling(same, [pa.int64()]), RetryPolicy(ScalarOptions(), Random(1))
    began = time.process_time()
    for _ in range(rounds):
        for stream in streams:
            batch = InputBatch(0, BATCH_ROWS, None)
            queue.push(Party("caller"), Part(stream, batch, [column], None, BATCH_ROWS, 180.0, 0.0))
        while queue.rows:
            slices = queue.take(BATCH_ROWS, 1 << 26, mix_callers=True, held_up=())
            owner.make(MergedCall(owner, same, calling, retry, slices, _timed_out))
    seconds = time.process_time() - began
    rows = rounds * len(streams) * BATCH_ROWS
    assert sum(stream.rows for stream in streams) == rows
    results.add("dispatch_ns_per_row", seconds / rows * 1e9, "CPU time per row of merging; batches of 256, 16 streams")


def _timed_out(attempts: int, last: str) -> RowError:
    raise AssertionError("no call takes long")


class _Stream:
    """In place of a stream: it counts outcomes."""

    closed = False

    def __init__(self) -> None:
        self.rows = 0

    def began(self, piece: Any) -> None:
        pass

    def settle(self, part: Any, rows: Any, values: Any, errors: Any, calls: int, retries: int) -> None:
        self.rows += len(values)


class _Owner:
    """In place of a batcher: it makes each attempt at once."""

    clock = staticmethod(time.monotonic)
    attempt: Any = None
    evaluate: Any = None

    def make(self, call: MergedCall) -> None:
        call.advance()

    def want_instance(self, call: MergedCall) -> None:
        call.run()
        attempt: Any = self.attempt
        call.answered(attempt, self.evaluate(), None)

    def start(self, call: MergedCall, evaluate: Any) -> Any:
        self.evaluate, self.attempt = evaluate, _Attempt()
        return self.attempt

    def later(self, seconds: float, callback: Any) -> Any:
        raise AssertionError("nothing is retried")

    def fail(self, error: BaseException, call: MergedCall) -> None:
        raise error

    def ended(self, call: MergedCall) -> None:
        pass


class _Attempt:
    told = 0.0
    overdue = False
