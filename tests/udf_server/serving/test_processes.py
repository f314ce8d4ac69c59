"""`udf-server serve --processes 2`: one port, one page of metrics, and workers that come back."""

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.base.security import Security
from spark_client.executor.stream import channels
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until
from udf_server.serving import processes, worker_process
from udf_server.serving.config import ServerConfig
from udf_server.serving.processes import Processes

pytestmark = pytest.mark.slow

PLUGIN = """
import os
import udf_server as udf

@udf.scalar
async def whose(x: int) -> int:
    return os.getpid()
"""


@contextmanager
def workers(plugin, *flags):
    command = [sys.executable, "-m", "udf_server", "serve", "--plugin", plugin, "--no-entry-points", "--processes", "2"]
    command += ["--port", "0", "--metrics-port", "0", "--log-format", "json", "--drain-seconds", "2", *flags]
    # The output is not a pipe: without a reader a server that cannot write its log hangs.
    with Path(f"{plugin}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline()
        yield process, json.loads(line) if line else {}
    finally:
        process.kill()
        process.communicate()


NUMBERS = itertools.count()


def who_answers(target, times):
    """Returns the process ids that answer on `times` connections."""
    found = set()
    for number in itertools.islice(NUMBERS, times):
        # A name of its own makes a channel of its own.
        config = ClientConfig(target, 20.0, Security(token_variable=f"T{number}"))
        os.environ[f"T{number}"] = "t"
        spec = list_functions(config).find("whose")
        call = call_of(type("Whose", (), {"spec": spec}), target)
        stream = stream_of(call, GrpcTransport(config))
        stream.submit(chunk_of([1]))
        found |= set(everything(stream).values())
        stream.finish()
    return found


def page(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def test_workers_share_a_port_and_metrics_and_a_crashed_one_comes_back(plugin, monkeypatch):
    # Otherwise all channels of this process to one address share a connection.
    options = (*channels.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)
    with workers(plugin(PLUGIN)) as (process, ready):
        pids = set(ready["processes"])
        assert len(pids) == 2
        assert who_answers(ready["target"], 20) == pids
        metrics = page(ready["metrics"] + "/metrics")
        for number in "01":
            assert f'udf_rows_total{{function="whose",outcome="ok",process="{number}",version="1"}}' in metrics
        assert metrics.count("# TYPE udf_rows_total counter") == 1
        assert page(ready["metrics"] + "/readyz") == "ok\n"
        victim = min(pids)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "udf_process_restarts_total 1.0" in page(ready["metrics"] + "/metrics"))
        wait_until(lambda: len(who_answers(ready["target"], 20) - {victim}) == 2)
        process.terminate()
        assert process.wait(30) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_workers_end_with_the_process_that_started_them(plugin):
    with workers(plugin(PLUGIN)) as (process, ready):
        process.kill()
        process.wait()

        def gone(pid):
            try:
                return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
            except FileNotFoundError:
                return True

        wait_until(lambda: all(gone(pid) for pid in ready["processes"]))


def test_a_worker_that_cannot_be_started_for_now_is_started_later(plugin, monkeypatch):
    """Memory is scarce where workers run out of it, and a fork needs some."""
    monkeypatch.setattr(worker_process, "LONGEST_PAUSE", 0.02)
    parent = Processes(
        ServerConfig(port=0, metrics_port=0), 2, ["serve", "--plugin", plugin(PLUGIN), "--no-entry-points"]
    )
    ready = parent.start()
    crashed, _ = ready["processes"]
    try:
        popen, failed = subprocess.Popen, []

        def scarce(*arguments, **keywords):
            if len(failed) < 2:
                failed.append(OSError(errno.ENOMEM, "Cannot allocate memory"))
                raise failed[-1]
            return popen(*arguments, **keywords)

        monkeypatch.setattr(subprocess, "Popen", scarce)
        os.kill(crashed, signal.SIGKILL)
        wait_until(lambda: len(failed) == 2)
        wait_until(lambda: 'udf_server_ready{process="0"} 1.0' in page(ready["metrics"] + "/metrics"))
        assert page(ready["metrics"] + "/livez") == "ok\n"
    finally:
        parent.stop()
        parent.wait()


def test_what_stops_a_worker_from_starting_stops_the_start(plugin):
    with workers(plugin("import no_such_module\n")) as (process, ready):
        assert process.wait(60) == 1
        assert ready == {}
    path = plugin(PLUGIN)
    assert "no_such_module" in Path(f"{path}.log").read_text()
    with workers(path, "--unix-socket", "/tmp/x.sock") as (process, ready):
        assert process.wait(60) == 1
        assert ready == {}
    assert "cannot listen on one Unix socket" in Path(f"{path}.log").read_text()


def opened_streams(target, tries):
    """Try to open this many streams, each on a connection of its own. Returns those that were accepted."""
    found = []
    for number in itertools.islice(NUMBERS, tries):
        os.environ[f"T{number}"] = "t"
        config = ClientConfig(target, 20.0, Security(token_variable=f"T{number}"))
        spec = list_functions(config).find("whose")
        patient = dataclasses.replace(config, connect_seconds=0.2)
        call = call_of(type("Whose", (), {"spec": spec}), target)
        with contextlib.suppress(ServerUnavailable):
            found.append(stream_of(dataclasses.replace(call, config=patient), GrpcTransport(patient)))
    return found


def test_a_limit_of_streams_is_that_of_all_workers_together(plugin, monkeypatch):
    options = (*channels.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)
    with workers(plugin(PLUGIN), "--max-streams", "2") as (_, ready):
        streams = opened_streams(ready["target"], 2)
        assert len(streams) == 2
        assert opened_streams(ready["target"], 6) == []
        for stream in streams:
            stream.close()


def test_a_worker_that_hangs_is_replaced_while_the_server_is_alive(plugin, monkeypatch):
    monkeypatch.setattr(worker_process, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(worker_process, "SCRAPE_SECONDS", 2.0)
    parent = Processes(
        ServerConfig(port=0, metrics_port=0), 2, ["serve", "--plugin", plugin(PLUGIN), "--no-entry-points"]
    )
    ready = parent.start()
    try:
        os.kill(ready["processes"][1], signal.SIGSTOP)
        wait_until(lambda: "udf_process_restarts_total 1.0" in page(ready["metrics"] + "/metrics"))
        assert page(ready["metrics"] + "/livez") == page(ready["metrics"] + "/readyz") == "ok\n"
        wait_until(lambda: 'udf_server_ready{process="1"} 1.0' in page(ready["metrics"] + "/metrics"))
    finally:
        parent.stop()
        parent.wait()
