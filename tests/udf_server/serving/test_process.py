"""`udf-server serve` as a process: its ready line, its signals, its end."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request

import grpc
import pytest

from tests.udf_server.talk import batch, finish, opening
from udf_server.streams.service import SERVICE_NAME

pytestmark = pytest.mark.slow

PLUGIN = """
import time
import udf_server as udf

@udf.scalar(name="f", timeout="1 min")
def f(a: int) -> int:
    time.sleep(a / 1000)
    return a

@f.on_close
def closed():
    print("closed", flush=True)
"""


@pytest.fixture
def start(plugin, tmp_path):
    """Starts servers; they are killed at the end if they are still there."""
    processes = []
    path = plugin(PLUGIN)

    def start(*flags, env=None, stdin=subprocess.DEVNULL):
        command = [sys.executable, "-m", "udf_server", "serve", "--plugin", path, "--no-entry-points"]
        command += ["--port", "0", "--metrics-port", "0", "--log-format", "json", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("UDF_CONFIG_")}
        process = subprocess.Popen(
            command, env={**clean, **(env or {})}, stdin=stdin, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, json.loads(line)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


class Call(threading.Thread):
    """One stream of one batch; its client waits for Opened."""

    def __init__(self, target, values, function="f"):
        super().__init__(daemon=True)
        self.target, self.values, self.function = target, values, function
        self.opened, self.answers, self.error = threading.Event(), [], None

    def run(self):
        def requests():
            yield opening(self.function)
            self.opened.wait(20)
            yield batch(0, 0, self.values)
            yield finish()

        with grpc.insecure_channel(self.target) as channel:
            try:
                for answer in channel.stream_stream(f"/{SERVICE_NAME}/Execute")(requests(), timeout=40):
                    self.answers.append(answer)
                    self.opened.set()
            except grpc.RpcError as error:
                self.error = error.code()
            self.opened.set()


def events(stderr):
    return [json.loads(line)["event"] for line in stderr.splitlines()]


def test_the_ready_line_says_where_it_listens_and_what_it_serves(start):
    process, ready = start()
    assert ready["functions"] == ["f@1"]
    assert ready["pid"] == process.pid
    call = Call(ready["target"], [1, 2])
    call.start()
    call.join(30)
    assert (len(call.answers), call.error) == (3, None)
    with urllib.request.urlopen(f"{ready['metrics']}/metrics", timeout=20) as answer:
        assert 'udf_rows_total{function="f",outcome="ok",version="1"} 2.0' in answer.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_open_streams_finish_and_then_ends_the_process(start, number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may be run by nohup
    try:
        process, ready = start()
    finally:
        signal.signal(signal.SIGHUP, before)
    call = Call(ready["target"], [700])
    call.start()
    assert call.opened.wait(20)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    call.join(20)
    # Opened, Progress with the notice that the server drains, Result, Finished.
    assert (len(call.answers), call.error) == (4, None)
    assert process.returncode == 0
    assert stdout == "closed\n"
    assert events(stderr)[-2:] == ["stream ended", "server stopped"]
    assert "draining" in events(stderr)


def test_a_server_that_outlives_its_terminal_ignores_its_end(start):
    """As nohup starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, ready = start()
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    call = Call(ready["target"], [1])
    call.start()
    call.join(30)
    assert (len(call.answers), call.error, process.poll()) == (3, None, None)


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=str)
def test_an_interrupted_start_ends_with_one_sentence(plugin, flags):
    path = plugin("import sys, time\nprint('imported', file=sys.stderr, flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "udf_server", "serve", "--plugin", path, "--no-entry-points", *flags]
    command += ["--port", "0", "--metrics-port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr.readline() == "imported\n"
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, stdout, stderr) == (130, "", "udf-server: interrupted while it started\n")


def test_a_stream_that_outlasts_the_drain_is_cut_off_and_the_process_ends(start):
    process, ready = start("--drain-seconds", "0.1")
    call = Call(ready["target"], [50_000])
    call.start()
    assert call.opened.wait(20)
    # The call runs once the batch shows in the metrics.
    while True:
        with urllib.request.urlopen(f"{ready['metrics']}/metrics", timeout=20) as answer:
            if 'udf_rows_in_flight{function="f",version="1"} 1.0' in answer.read().decode():
                break
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    call.join(20)
    assert process.returncode == 0
    assert call.error is not None
    assert "streams cancelled after the drain timeout" in events(stderr)


@pytest.mark.parametrize("flags", [(), ("--processes", "2")], ids=str)
def test_streams_go_on_although_nobody_reads_what_the_server_writes(start, plugin, flags):
    path = plugin(
        "import logging, sys\nimport udf_server as udf\n\n@udf.scalar(name='loud')\ndef loud(a: int) -> int:\n"
        "    print('x' * 20_000)\n    print('y' * 20_000, file=sys.stderr)\n"
        "    logging.getLogger('loud').warning('z' * 20_000)\n    return a\n",
        "loud_plugin.py",
    )
    _, ready = start("--plugin", path, *flags)
    call = Call(ready["target"], list(range(300)), "loud")
    call.start()
    call.join(60)
    assert (len(call.answers), call.error) == (3, None)
    with urllib.request.urlopen(f"{ready['metrics']}/metrics", timeout=20) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("udf_output_lines_dropped_to")]
    assert sum(float(line.rpartition(" ")[2]) for line in lines if 'output="stderr"' in line) > 0


def test_it_stops_with_its_standard_input_if_asked(start):
    process, _ = start("--stop-with-stdin", stdin=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert events(stderr)[-1] == "server stopped"
    assert stdout == ""


def test_flags_win_over_the_environment(start, tmp_path):
    path = tmp_path / "flag.sock"
    _, ready = start("--unix-socket", str(path), env={"UDF_CONFIG_UNIX_SOCKET": str(tmp_path / "env.sock")})
    assert ready["target"] == f"unix:{path}"


def test_the_log_has_no_secrets_of_the_environment(start):
    process, _ = start("--log-level", "debug", env={"API_KEY": "s3cr3t-value"})
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert "server started" in events(stderr)
    assert "s3cr3t-value" not in stderr


def test_a_broken_plugin_stops_the_start_with_one_line(plugin):
    path = plugin("1 / 0", "broken.py")
    out = subprocess.run(
        [sys.executable, "-m", "udf_server", "serve", "--plugin", path, "--port", "0", "--metrics-port", "0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert out.returncode == 1
    assert out.stdout == ""
    assert out.stderr.count("\n") == 1
    assert "ZeroDivisionError" in out.stderr
