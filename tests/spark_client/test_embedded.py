"""The server that `connect(spark)` starts by default: its process, its socket, its end, and its failures."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from spark_client import embedded
from spark_client.base.config import ClientConfig
from spark_client.base.errors import EmbeddedServerFailed
from spark_client.embedded import EmbeddedServer, embedded_server, require_local_executors
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PLUGIN = """
import sys, udf_server as udf
print("a plugin that talks while it is imported")

@udf.scalar
def plus_one(x: int) -> int:
    print("x" * 1000)
    return x + 1
"""


class Named:
    def __init__(self, target, name):
        self.spec = list_functions(ClientConfig(target)).find(name)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "some_udfs.py"
    path.write_text(PLUGIN)
    server = EmbeddedServer([str(path)])
    yield server
    server.stop()


def test_it_starts_where_the_path_of_a_socket_in_tmpdir_would_be_too_long(tmp_path, monkeypatch):
    (tmp_path / "some_udfs.py").write_text(PLUGIN)
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    server = EmbeddedServer([str(tmp_path / "some_udfs.py")])
    try:
        assert list_functions(ClientConfig(server.target)).find("plus_one").key == "plus_one@1"
    finally:
        server.stop()
    assert not Path(server.directory.name).exists()


def test_it_serves_the_plugins_on_a_socket_only_its_owner_reaches(server):
    assert server.running
    assert [spec.name for spec in list_functions(ClientConfig(server.target))] == ["plus_one"]
    socket = Path(server.target.removeprefix("unix:"))
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert socket.parent.stat().st_uid == os.getuid()


def test_a_function_may_print_more_than_a_pipe_holds(server):
    call = call_of(Named(server.target, "plus_one"), server.target, timeout="20 s")
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of(range(300)))
    assert everything(stream) == {row: row + 1 for row in range(300)}
    stream.finish()
    assert "a plugin that talks while it is imported" in server.log.read_text()


def test_threads_that_ask_at_once_get_one_server_and_its_code_as_it_is_now(monkeypatch, plugin):
    ends = []
    monkeypatch.setattr(embedded, "atexit", SimpleNamespace(register=ends.append))
    monkeypatch.setattr(embedded, "_servers", {})
    file = plugin(PLUGIN)

    def described(_):
        server = embedded_server([file])
        return server, list_functions(ClientConfig(server.target)).find("plus_one").signature

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(described, range(4)))
        plugin(PLUGIN.replace("x: int", "x: int, y: int"))
        edited = set(threads.map(described, range(4)))
    try:
        assert [signature for _, signature in (*found, *edited)] == [
            "plus_one(x bigint) -> bigint",
            "plus_one(x bigint, y bigint) -> bigint",
        ]
        assert len({server for server, _ in found | edited}) == 1
    finally:
        for end in ends:
            end()


def test_a_forked_process_does_not_stop_the_server_of_the_one_it_was_forked_from(server):
    pid = os.fork()
    if not pid:
        server.stop()
        os._exit(0)
    os.waitpid(pid, 0)
    assert server.running
    assert list_functions(ClientConfig(server.target)).find("plus_one")


def test_ctrl_c_in_the_shell_is_not_for_the_server(server):
    children = {
        child.pid for child in psutil.Process().children() if str(server.log.parent) in " ".join(child.cmdline())
    }
    assert children and os.getsid(0) not in map(os.getsid, children)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()"])
def test_it_ends_with_the_process_that_started_it_however_that_ends(end, tmp_path):
    script = (
        "import os, sys\nfrom spark_client.embedded import embedded_server\n"
        f"server = embedded_server([])\nprint(server._process.pid, flush=True)\n{end}"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    pid = int(parent.stdout)
    # The server does not outlive its parent.
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_process_has_one_server_per_set_of_plugins_and_a_new_one_after_its_end(monkeypatch):
    ends = []
    monkeypatch.setattr(embedded, "atexit", SimpleNamespace(register=ends.append))
    monkeypatch.setattr(embedded, "_servers", {})
    first = embedded_server([])
    folder = Path(first.directory.name)
    try:
        assert embedded_server([]) is first
        first.stop()
        first.stop()
        assert not first.running
        assert not folder.exists()
        second = embedded_server([])
        assert second is not first
        assert second.running
        assert embedded_server([]) is second
    finally:
        for end in ends:
            end()
    assert not second.running
    assert len(ends) == 2


def test_a_plugin_that_fails_to_import_ends_in_an_error_with_the_end_of_the_log(plugin):
    with pytest.raises(EmbeddedServerFailed, match=r"ended with status 1; its log ends with:\n(.|\n)*no such library"):
        EmbeddedServer([plugin("raise ImportError('no such library')")])


def test_a_server_that_crashes_is_not_called_late(plugin):
    with pytest.raises(EmbeddedServerFailed, match="ended with status -6"):
        EmbeddedServer([plugin("import os; os.abort()")])


def test_a_server_that_hangs_is_ended_after_a_while(plugin):
    began = time.monotonic()
    with pytest.raises(EmbeddedServerFailed, match=r"was not ready within 0\.5 s; its log ends with:"):
        EmbeddedServer([plugin("import time; time.sleep(100)")], start_seconds=0.5)
    assert time.monotonic() - began < 50


class Session:
    """The part of a Spark session that is used."""

    def __init__(self, master):
        self.conf = {"spark.master": master}


def test_executors_elsewhere_cannot_reach_it():
    require_local_executors(Session("local[4]"))
    with pytest.raises(EmbeddedServerFailed, match=r"executors of master 'spark://there:7077' .*udf-server serve"):
        require_local_executors(Session("spark://there:7077"))
