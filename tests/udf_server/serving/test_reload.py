"""`udf-server reload`: new code of a group, beside streams that are open, and versions that are refused."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from remote_udf.errors import StreamError
from spark_client.base.config import ClientConfig
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.ports import free_port
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.group_servers import Site, called, opened, serving
from tests.waiting import wait_until
from udf_server.base.errors import InvalidConfig
from udf_server.serving.control import ControlServer, ask_reload

PLUGIN = """
import udf_server as udf

@udf.scalar(name="{name}", deterministic=False)
async def f(x: {type}) -> str:
    return "{answer}"
"""


class Reloaded(Site):
    """A server with a group whose plugin is `geo.py`."""

    def __init__(self, folder):
        super().__init__(folder)
        self.port = free_port()
        self.write(0)

    def write(self, answer, *, name="place", type="int", file="geo"):
        (self.folder / f"{file}.py").write_text(PLUGIN.format(name=name, type=type, answer=answer))

    def group_of(self, file):
        return f'[groups.{file}]\nplugins = ["{self.folder}/{file}.py"]\n'

    def set(self, *groups, **settings):
        return self.settings(*map(self.group_of, groups), metrics_port=self.port, **settings)

    def reload(self, *arguments):
        """Its exit status and what it prints."""
        command = [sys.executable, "-m", "udf_server", "reload", *arguments, "--metrics-port", str(self.port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()


@contextlib.contextmanager
def calling(target, function):
    """Calls a function all the time in one stream; no answer may follow that of a later version."""
    stream, answers, stopped = opened(target, function), [], threading.Event()

    def call():
        while not stopped.is_set():
            stream.submit(chunk_of([1, 2, 3], len(answers)))
            answers.extend(everything(stream).values())

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield answers
    finally:
        stopped.set()
        thread.join(60)
    stream.finish()
    stream.close()
    assert answers == sorted(answers)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return Reloaded(tmp_path_factory.mktemp("reload"))


@pytest.fixture
def processes(monkeypatch):
    """Lets a file say how many processes a server has."""
    monkeypatch.delenv("UDF_CONFIG_PROCESSES", raising=False)


@pytest.fixture(scope="module")
def server(site):
    with serving(site, site.set("geo")) as (process, ready):
        yield process, ready


@pytest.mark.long
def test_reloads_under_load_lose_and_repeat_nothing_and_leave_no_old_answer(server, site):
    _, ready = server
    target = ready["target"]
    site.write(0)
    assert site.reload("geo") == (0, "group 'geo': place@1")
    before = len(site.log)
    with calling(target, "place") as answers:
        for version in range(1, 4):
            site.write(version)
            assert site.reload("geo") == (0, "group 'geo': place@1")
            assert called(target, "place", range(20)) == [str(version)] * 20
            wait_until(lambda version=version: str(version) in answers[-1:])

    def parts():
        """The ends of the streams, one on each process that had it, whose numbers of rows are multiples of 3."""
        ends = [line for line in site.log[before:] if line["event"] == "stream ended"]
        return [line for line in ends if line["rows_in"] != 20]

    wait_until(lambda: sum(line["rows_ok"] for line in parts()) == len(answers))
    assert sum(line["calls"] for line in parts()) == len(answers)
    assert {line["end"] for line in parts()} == {"finished"}


@pytest.mark.long
def test_a_version_that_may_not_replace_the_old_one_changes_nothing_and_says_why(server, site):
    _, ready = server
    site.write("good")
    assert site.reload()[0] == 0
    (site.folder / "geo.py").write_text("def f(:\n")
    status, told = site.reload("geo")
    assert status == 1
    assert "group 'geo'" in told
    assert "SyntaxError" in told
    site.write("bad", name="plus")
    status, told = site.reload("geo")
    assert (status, "'plus@1' is in group 'default' and in group 'geo'" in told) == (1, True)
    status, told = site.reload("goe")
    assert (status, "unknown group 'goe', did you mean 'geo'" in told) == (1, True)
    assert called(ready["target"], "place") == ["good"]
    assert called(ready["target"], "plus") == [2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("groups", "is_unix"), [((), False), (("geo",), False), (("geo",), True)])
def test_the_servers_own_python_is_reloaded_under_load_and_a_broken_version_changes_nothing(
    tmp_path, groups, is_unix, processes
):
    site, folder = Reloaded(tmp_path), Path(tempfile.mkdtemp(dir="/tmp"))
    own = f"{tmp_path}/own.py"
    site.write(0, file="own", name="mine")
    address = {"unix_socket": f"{folder}/udf.sock"} if is_unix else {"processes": 2}
    # Each reload is checked beside the old processes, of which only one at a time gets streams.
    with serving(site, site.set(*groups, plugin=[own], **address)) as (_, ready):
        target, source = ready["target"], "group 'default'" if groups else "the server"
        with calling(target, "mine") as answers:
            for version in range(1, 3):
                site.write(version, file="own", name="mine")
                assert site.reload("default") == (0, f"{source}: mine@1")
                assert [called(target, "mine")[0] for _ in range(5)] == [str(version)] * 5
                wait_until(lambda version=version: str(version) in answers[-1:])
            Path(own).write_text("def f(:\n")
            status, told = site.reload()
            assert (status, "SyntaxError" in told) == (1, True)
            site.write("bad", file="own", name="mine", type="str")
            assert "function mine@1 was mine(x bigint)" in site.reload("default")[1]
            assert called(target, "mine") == ["2"]
        site.write("last", file="own", name="mine")
        assert site.reload() == (0, "\n".join([f"{source}: mine@1", *(["group 'geo': place@1"] if groups else [])]))
        assert called(target, "mine") == ["last"]
    folder.rmdir()  # no socket is left


@pytest.mark.long
def test_groups_come_to_a_server_that_had_none(tmp_path, processes):
    site = Reloaded(tmp_path)
    with serving(site, site.set(processes=2)) as (_, ready):
        site.set("geo", processes=2)
        assert site.reload("geo") == (0, "group 'default': plus@1\ngroup 'geo': place@1")
        assert called(ready["target"], "place") == ["0"]


@pytest.mark.long
def test_a_function_changes_its_types_only_if_that_is_wanted(server, site):
    _, ready = server
    target = ready["target"]
    site.write("number")
    assert site.reload()[0] == 0
    config = ClientConfig(target, 20.0)
    planned = call_of(type("Called", (), {"spec": list_functions(config).find("place")}), target)
    site.write("text", type="str")
    status, told = site.reload("geo")
    assert status == 1
    assert "function place@1 was place(x bigint) -> string and is now place(x string) -> string" in told
    assert called(target, "place") == ["number"]
    assert site.reload("geo", "--changed") == (0, "group 'geo': place@1")
    with pytest.raises(StreamError, match="FUNCTION_CHANGED"):
        stream_of(planned, GrpcTransport(config))
    site.write("number")
    assert site.reload("--changed")[0] == 0


@pytest.mark.long
@pytest.mark.slow
def test_groups_come_and_go_by_a_signal_and_other_settings_wait_for_a_restart(server, site):
    process, ready = server
    target = ready["target"]

    def keys():
        return [spec.key for spec in list_functions(ClientConfig(target, 20.0))]

    site.write(0)
    site.write("river", name="river", file="water")
    site.set("geo", "water", max_streams=17)
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "river@1" in keys())
    assert called(target, "river") == ["river"]
    (line,) = [line for line in site.log if line["event"] == "settings have changed that need a restart"]
    assert line["settings"] == ["max_streams"]
    site.set("geo")
    assert site.reload("water") == (0, "group 'water' is gone")
    assert "river@1" not in keys()
    assert called(target, "plus") == [2]


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_only_the_own_user_can_open_the_socket_for_commands(temporary):
    with contextlib.closing(ControlServer(9464, lambda groups, changed: [f"{groups} {changed}"])):
        assert ask_reload(9464, ["geo"], changed=True) == ["['geo'] True"]
        (folder,) = temporary.iterdir()
        (path,) = folder.iterdir()
        assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert not list(folder.iterdir())
    with pytest.raises(
        InvalidConfig, match="no server with worker processes and metrics_port=9464 of this user answers"
    ):
        ask_reload(9464, [], changed=False)
    folder.chmod(0o755)
    with pytest.raises(InvalidConfig, match="is not a folder that only this user can open"):
        ControlServer(9464, lambda groups, changed: [])


def test_what_a_server_refuses_is_the_error_of_who_asks(temporary):
    def refuse(groups, changed):
        raise InvalidConfig("not now")

    with contextlib.closing(ControlServer(9464, refuse)), pytest.raises(InvalidConfig, match="not now"):
        ask_reload(9464, [], changed=False)
