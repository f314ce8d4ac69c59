"""`udf-server dev`: fresh processes after edits, at one address, and the end of those that they replace."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.errors import EmbeddedServerFailed
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PLUGIN = """
import os
import udf_server as udf

@udf.scalar(cache_ttl="1 h")
def f(x: int) -> int:
    return x + {value}

@udf.scalar
def process(x: int) -> int:
    return os.getpid()

@udf.scalar
def wait_for(x: int) -> int:
    import pathlib, time
    while not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return {value}
"""


class Edited:
    """A plugin file, and the functions of the server that serves it."""

    def __init__(self, path, ready):
        self.path, self.ready = path, ready
        self.config = ClientConfig(ready["target"])

    def write(self, text):
        self.path.write_text(text)

    def edit(self, value):
        self.write(PLUGIN.format(value=value))

    def stream(self, name, run="", **options):
        call = call_of(SpecOf(list_functions(self.config).find(name)), self.config.target, **options)
        return stream_of(call, transport_for(call.config), task=TaskInfo(run=run))

    def call(self, name="f"):
        stream = self.stream(name)
        stream.submit(chunk_of([1]))
        (value,) = everything(stream).values()
        stream.finish()
        return value


class SpecOf:
    def __init__(self, spec):
        self.spec = spec


@contextmanager
def dev(path, *flags, unix=True):
    address = ["--unix-socket", str(path.parent / "udf.sock")] if unix else ["--port", "0"]
    command = [sys.executable, "-m", "udf_server", "dev", str(path), "--no-entry-points", "--stop-with-stdin"]
    command += [*address, "--metrics-port", "0", "--drain-seconds", "2", *flags]
    with Path(f"{path}.log").open("a") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline()
        yield process, Edited(path, json.loads(line)) if line else None
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "some_udfs.py"
    path.write_text(PLUGIN.format(value=1))
    return path


@pytest.mark.parametrize("unix", [True, False], ids=["socket", "port"])
def test_the_next_stream_after_an_edit_is_served_by_a_fresh_process_at_the_same_address(path, unix):
    with dev(path, unix=unix) as (parent, edited):
        assert edited.call() == 2
        first = edited.call("process")
        assert edited.call("process") == first != parent.pid
        for value in (2, 3):
            edited.edit(value)
            assert edited.call() == value + 1
        assert edited.call("process") != first
        with urllib.request.urlopen(f"{edited.ready['metrics']}/readyz") as answer:
            assert answer.read() == b"ok\n"
        # A process that was replaced ends once it serves nothing.
        wait_until(lambda: len(psutil.Process(parent.pid).children()) == 1)
        parent.stdin.close()
        assert parent.wait(20) == 0
    assert [each.name for each in path.parent.glob("udf.sock*")] == []


def test_what_does_not_import_is_reported_to_each_query_until_it_is_repaired(path):
    with dev(path) as (_, edited):
        before = edited.stream("f", run="7")
        edited.write("import udf_server as udf\n\ndef f(:\n")
        for _ in range(2):
            with pytest.raises(EmbeddedServerFailed, match=r"after an edit, plugin (.|\n)*line 3\n +def f\(:"):
                edited.call()
        edited.edit(5)
        assert edited.call() == 6
        before.close()


def test_a_query_that_runs_ends_in_the_process_in_which_it_began(path):
    with dev(path) as (parent, edited):
        running = edited.stream("wait_for", run="7", timeout="60 s")
        running.submit(chunk_of([1]))
        edited.edit(2)
        assert edited.call() == 3
        path.with_name("go").touch()
        assert everything(running) == {0: 1}
        running.finish()
        wait_until(lambda: len(psutil.Process(parent.pid).children()) == 1)


def test_a_process_that_crashes_is_followed_by_another_one(path):
    with dev(path) as (parent, edited):
        process = edited.call("process")
        os.kill(process, signal.SIGKILL)
        assert edited.call("process") not in (process, parent.pid)


def test_the_processes_end_with_their_parent_and_with_sigterm(path):
    with dev(path) as (parent, edited):
        os.kill(edited.call("process"), 0)
        (child,) = psutil.Process(parent.pid).children()
        parent.kill()
        psutil.wait_procs([child], timeout=20)
        assert not child.is_running()
    with dev(path) as (parent, _):
        (child,) = psutil.Process(parent.pid).children()
        parent.terminate()
        assert parent.wait(20) == 0
        assert not child.is_running()


def test_a_first_start_that_fails_ends_with_the_reason(path):
    path.write_text("1 / 0")
    with dev(path) as (parent, edited):
        assert edited is None
        assert parent.wait(20) == 1
    log = Path(f"{path}.log").read_text()
    assert "cannot be imported: ZeroDivisionError" in log
    assert "1 / 0\n" in log


@pytest.mark.parametrize("flag", [["--processes", "2"], ["--devices", "cpu"]], ids=str)
def test_settings_that_it_cannot_have_are_refused(path, flag):
    with dev(path, *flag, unix=False) as (parent, edited):
        assert edited is None
        assert parent.wait(20) == 1
    assert "Error: " in Path(f"{path}.log").read_text()


def test_a_folder_keeps_values_of_the_same_code_only(path, tmp_path):
    cache = ["--cache-url", f"file://{tmp_path}/kept"]
    with dev(path, *cache) as (parent, edited):
        assert edited.call() == 2
        edited.edit(10)
        assert edited.call() == 11
        edited.edit(1)
        stream = edited.stream("f")
        stream.submit(chunk_of([1]))
        assert everything(stream) == {0: 2}
        stream.finish()
        assert stream.statistics.cache_hits == 1
        parent.stdin.close()
        parent.wait(20)
