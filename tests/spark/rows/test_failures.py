"""Servers and functions that misbehave, as a Spark job sees them: a clear error or the chosen policy, in time."""

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import NotARemoteUdfServer, ServerUnavailable, connect


@contextmanager
def server_process(plugin: str, socket: str):
    """A real server process at a Unix socket."""
    command = [sys.executable, "-m", "udf_server", "serve", "--unix-socket", socket, "--metrics-port", "0"]
    process = subprocess.Popen(
        [*command, "--plugin", plugin, "--no-entry-points"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_nothing_at_the_target_is_a_clear_error_within_the_time_given(spark):
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"no remote-udf server at 127.0.0.1:1 within 1 s: UNAVAILABLE"):
        connect(spark, "127.0.0.1:1", connect_seconds=1)
    assert time.monotonic() - began < 20


def test_another_grpc_server_is_recognised(spark):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(NotARemoteUdfServer, match=r"offers no remote_udf.v1.UdfService"):
            connect(spark, f"127.0.0.1:{port}", connect_seconds=5)
    finally:
        server.stop(None)


def test_an_http_server_is_no_server(spark):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(NotARemoteUdfServer, match="is not a gRPC server"):
            connect(spark, f"127.0.0.1:{server.server_port}", connect_seconds=5)
    finally:
        server.shutdown()
        server.server_close()


def test_an_endless_function_times_out_row_by_row_and_the_job_ends(remote, spark):
    stop = threading.Event()

    @udf.scalar(timeout="500 ms")
    def endless(x: int) -> int:
        while x == 3 and not stop.wait(0.01):
            pass
        return x

    endless_ = remote(endless).function("endless", on_error="column")
    try:
        rows = spark.range(0, 10, 1, 1).select(endless_("id").alias("r")).collect()
    finally:
        stop.set()
    assert [row.r.value for row in rows] == [0, 1, 2, None, 4, 5, 6, 7, 8, 9]
    assert rows[3].r.error.code == "TIMEOUT"


def test_a_coroutine_that_blocks_its_loop_costs_no_other_function_anything(remote, spark):
    stop = threading.Event()

    @udf.scalar(timeout="500 ms")
    async def blocking(x: int) -> int:
        if x == 0:
            stop.wait(60)  # it does not await, so it blocks the loop
        return x

    @udf.scalar
    async def fine(x: int) -> int:
        return x

    session = remote(blocking, fine)
    try:
        blocked = session.function("blocking", on_error="column")
        rows = spark.range(0, 5, 1, 1).select(blocked("id").alias("r"), session.function("fine")("id").alias("f"))
        rows = rows.collect()
    finally:
        stop.set()
    assert [row.f for row in rows] == [0, 1, 2, 3, 4]
    assert [row.r.value for row in rows] == [None, 1, 2, 3, 4]
    assert rows[0].r.error.code == "TIMEOUT"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_even_exceptions_that_end_programs_fail_one_row_only(remote, spark, error):
    @udf.scalar
    async def by_loop(x: int) -> int:
        if x == 1:
            raise error("out")
        return x

    @udf.scalar
    def by_thread(x: int) -> int:
        if x == 1:
            raise error("out")
        return x

    session = remote(by_loop, by_thread)
    for name in ("by_loop", "by_thread"):
        safe = session.function(name, on_error="column")
        rows = spark.range(0, 3, 1, 1).select(safe("id").alias("r")).collect()
        assert [row.r.value for row in rows] == [0, None, 2]
        assert rows[1].r.error.message == f"{error.__name__}: out"


def test_values_of_the_wrong_type_fail_their_own_rows(remote, spark):
    @udf.scalar
    def sometimes_text(x: int) -> int:
        return "text" if x == 1 else x

    safe = remote(sometimes_text).function("sometimes_text", on_error="column")
    rows = spark.range(0, 3, 1, 1).select(safe("id").alias("r")).collect()
    assert [row.r.value for row in rows] == [0, None, 2]
    assert (rows[1].r.error.code, rows[1].r.error.message) == (
        "RESULT_TYPE",
        "TypeError: expected bigint, got a value of type str",
    )


def test_a_result_too_large_for_a_message_fails_its_row_and_large_results_are_split(remote, spark):
    @udf.scalar
    def blow_up(x: int) -> str:
        return "x" * (200_000 if x == 1 else 20_000)

    safe = remote(blow_up, max_message_bytes=100_000).function("blow_up", on_error="column")
    rows = spark.range(0, 20, 1, 1).select(F.length(safe("id").value).alias("n"), safe("id").error.code.alias("e"))
    found = rows.collect()
    assert [row.n for row in found] == [20_000 if x != 1 else None for x in range(20)]
    assert [row.e for row in found if row.e] == ["RESULT_TOO_LARGE"]


def test_arguments_too_large_for_a_message_fail_their_row(remote, spark):
    @udf.scalar
    def length(x: str) -> int:
        return len(x)

    safe = remote(length, max_message_bytes=100_000).function("length", on_error="column")
    frame = spark.range(0, 10, 1, 1).select(F.expr("repeat('x', if(id = 1, 200000, 20000))").alias("text"))
    rows = frame.select(safe("text").alias("r")).collect()
    assert [row.r.value for row in rows] == [20_000 if x != 1 else None for x in range(10)]
    assert rows[1].r.error.code == "ARGUMENT_TOO_LARGE"


PLUGIN = """
import asyncio, udf_server as udf

@udf.scalar(timeout="20 s")
async def slowly(x: int) -> int:
    await asyncio.sleep(0.02)
    return x * 2
"""


def test_a_server_killed_and_started_again_loses_and_doubles_no_row(spark, plugin, tmp_path):
    path, socket = plugin(PLUGIN), f"{tmp_path}/s.sock"
    counted = []
    with server_process(path, socket) as (ready, process):
        slowly = connect(spark, ready["target"]).function("slowly", buffer_capacity=50)
        frame = spark.range(0, 6000, 1, 2).select("id", slowly("id").alias("y"))
        job = threading.Thread(target=lambda: counted.append(frame.where("y = id * 2").count()))
        job.start()
        time.sleep(1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with server_process(path, socket):
            job.join(60)
    assert counted == [6000]


@pytest.mark.parametrize("policy", ["fail", "null", "column"])
def test_a_server_that_never_comes_back_ends_in_the_policy_within_the_deadline(spark, plugin, tmp_path, policy):
    marker = tmp_path / "called"
    path = plugin(PLUGIN.replace("0.02", "30").replace("await", f"open({str(marker)!r}, 'w').close()\n    await"))
    results: list[object] = []
    with server_process(path, f"{tmp_path}/s.sock") as (ready, process):
        session = connect(spark, ready["target"], connect_seconds=2)
        call = session.function("slowly", buffer_capacity=10, timeout="2 s", on_error=policy)("id")
        frame = session.with_columns(spark.range(0, 40, 1, 1), {"y": call})

        def run():
            try:
                results.append(frame.collect())
            except Exception as error:
                results.append(str(error))

        job = threading.Thread(target=run)
        job.start()
        while not marker.exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        job.join(60)
    if policy == "fail":
        assert "failed: SERVER_UNAVAILABLE: function slowly@1: no server at" in results[0]
    else:
        assert [(row.id, row.y) for row in results[0]] == [(x, None) for x in range(40)]
    if policy == "column":
        assert {row.y_error.code for row in results[0]} == {"SERVER_UNAVAILABLE"}
