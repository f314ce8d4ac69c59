"""Servers with groups of plugins, as processes: two libraries of one name, crashes, tokens, and one published port."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import venv
from pathlib import Path

import pytest

from remote_udf.errors import StreamError
from remote_udf.sockets import socket_directory
from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.group_servers import LIBRARY, MINE, Site, called, page, serving
from tests.waiting import wait_until
from udf_server.security.access import hashed, new_token

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory):
    """The site of `running`. Another server would write over its settings and its log."""
    return Site(tmp_path_factory.mktemp("groups"))


@pytest.fixture(scope="module")
def running(shared_site):
    site = shared_site
    settings = site.settings(site.group("old"), site.group("new", processes=2), try_calls=True)
    with serving(site, settings) as (_, ready):
        yield ready


def test_two_versions_of_a_library_are_called_at_one_port(running):
    target = running["target"]
    assert called(target, "shape_old") == ["1.26 of a key"]
    assert called(target, "shape_new") == ["2.1 of a key"]
    assert called(target, "plus", [1, 2]) == [2, 3]
    assert called(target, "pid_old")[0] in running["groups"]["old"]
    assert relayed(running, "old") == relayed(running, "new") == 0
    assert len(set(running["ports"].values())) == 2


def relayed(ready, group):
    """The number of streams that were passed on to a group."""
    named = f'udf_relayed_streams_total{{group="default",process="0",target_group="{group}"}}'
    (line,) = [line for line in page(ready, "/metrics").splitlines() if line.startswith(named)]
    return float(line.split()[-1])


def test_a_server_with_a_unix_socket_passes_streams_on(site):
    with (
        socket_directory("udf-") as folder,
        serving(site, site.settings(site.group("old"), unix_socket=f"{folder}/s")) as (_, ready),
    ):
        assert called(ready["target"], "shape_old") == ["1.26 of a key"]
        assert (relayed(ready, "old"), ready["ports"]) == (1, {"old": 0})


def test_groups_are_seen_as_one_server(running):
    target, groups = running["target"], running["groups"]
    called(target, "shape_new")
    assert {name: len(processes) for name, processes in groups.items()} == {"default": 1, "old": 1, "new": 2}
    assert called(target, "shape_new") == ["2.1 of a key"]
    keys = [spec.key for spec in list_functions(ClientConfig(target, 20.0))]
    assert keys == running["functions"] == sorted(keys)
    found = json.loads(page(running, "/catalog.json"))
    facts = {function["name"]: function["facts"]["group"] for function in found["functions"]}
    assert (facts["plus"], facts["shape_old"], facts["shape_new"]) == ("default", "old", "new")
    assert found["server"]["processes"] == 4
    metrics = page(running, "/metrics")
    for group, number in (("old", 0), ("new", 0), ("new", 1)):
        assert (
            f'udf_rows_total{{function="shape_{group}",outcome="ok",group="{group}",process="{number}",version="1"}}'
            in metrics
        )
    assert 'udf_relayed_streams_total{group="default",process="0",target_group="new"}' in metrics
    assert metrics.count("# TYPE udf_rows_total counter") == 1
    assert (page(running, "/readyz"), page(running, "/livez")) == ("ok\n", "ok\n")


def test_log_lines_name_the_group(running, shared_site):
    called(running["target"], "shape_new")

    def ended():
        lines = [line for line in shared_site.log if line["event"] == "stream ended"]
        return {line["group"] for line in lines if line["function"] == "shape_new@1"}

    wait_until(lambda: ended() == {"new"})


def test_the_web_ui_calls_a_function_in_its_group(running):
    body = json.dumps({"function": "shape_old@1", "arguments": ["1"]}).encode()
    request = urllib.request.Request(running["metrics"] + "/try", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read())["value"] == "1.26 of a key"


def test_a_group_that_crashes_ends_no_stream_of_the_others_and_comes_back(site):
    with serving(site, site.settings(site.group("old"), site.group("new", processes=2))) as (_, running):
        target, pids = running["target"], running["groups"]
        config = ClientConfig(target, 30.0)
        spec = list_functions(config).find("pid_new")
        neighbour = stream_of(call_of(type("Called", (), {"spec": spec}), target), GrpcTransport(config))
        answered = []

        def call_neighbour():
            neighbour.submit(chunk_of([1], len(answered)))
            answered.extend(everything(neighbour).values())

        call_neighbour()
        assert [error.code for error in called(target, "end_old")] == ["SERVER_UNAVAILABLE"]
        call_neighbour()
        (victim,) = pids["old"]
        wait_until(lambda: any(line["event"] == "worker ended" and line["group"] == "old" for line in site.log))
        assert called(target, "pid_old") != [victim]
        assert called(target, "plus") == [2]
        call_neighbour()
        neighbour.finish()
        # One process, and not another one after a lost stream.
        assert len(set(answered)) == 1
        assert set(answered) < set(pids["new"])
        assert page(running, "/livez") == "ok\n"
        wait_until(lambda: page(running, "/readyz") == "ok\n")


def test_a_killed_process_costs_no_row_and_readiness_names_its_group(site):
    settings = site.settings(site.group("old"), site.group("new", required="always"))
    with serving(site, settings) as (_, ready):
        target, (victim,), (needed,) = ready["target"], ready["groups"]["old"], ready["groups"]["new"]
        config = ClientConfig(target, 60.0)
        spec = list_functions(config).find("pid_old")
        stream = stream_of(call_of(type("Called", (), {"spec": spec}), target), GrpcTransport(config))
        stream.submit(chunk_of([1]))
        assert everything(stream) == {0: victim}
        os.kill(victim, signal.SIGSTOP)  # it takes the rows and answers none
        stream.submit(chunk_of([2, 3], 1))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "ok, but group 'old' does not answer" in page(ready, "/readyz"))
        answers = everything(stream)
        assert set(answers) == {1, 2}
        assert victim not in answers.values()
        stream.finish()
        wait_until(lambda: page(ready, "/readyz") == "ok\n")
        os.kill(needed, signal.SIGKILL)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            wait_until(lambda: page(ready, "/readyz") != "ok\n")
        wait_until(lambda: is_ready(ready))


def is_ready(ready):
    try:
        return page(ready, "/readyz") == "ok\n"
    except urllib.error.HTTPError:
        return False


def test_tokens_of_one_file_hold_in_each_group(site):
    tokens = {name: new_token() for name in ("etl", "adhoc")}
    rules = site.folder / "access.toml"
    rules.write_text(
        f'[etl]\ntoken_sha256 = "{hashed(tokens["etl"])}"\n'
        f'[adhoc]\ntoken_sha256 = "{hashed(tokens["adhoc"])}"\nfunctions = ["plus"]\n'
    )
    security = {}
    for name, token in tokens.items():
        (site.folder / name).with_suffix(".token").write_text(token)
        security[name] = Security(token_file=str((site.folder / name).with_suffix(".token")))
    settings = site.settings(site.group("new"), access_file=str(rules), unix_socket=str(site.folder / "s"))
    with serving(site, settings) as (_, ready):
        target = ready["target"]
        assert target == f"unix:{site.folder}/s"
        assert called(target, "shape_new", security=security["etl"]) == ["2.1 of a key"]
        assert called(target, "plus", security=security["adhoc"]) == [2]
        assert [spec.key for spec in list_functions(ClientConfig(target, 20.0, security["adhoc"]))] == ["plus@1"]
        spec = list_functions(ClientConfig(target, 20.0, security["etl"])).find("shape_new")
        call = call_of(type("Called", (), {"spec": spec}), target)
        with pytest.raises(StreamError, match="PERMISSION_DENIED"):
            stream_of(call, GrpcTransport(ClientConfig(target, 20.0, security["adhoc"])))
        sockets = {path for pid in ready["processes"] for path in sockets_of(pid)}
        assert {Path(path).name for path in sockets} == {"s.1", "g0-0"}
        assert {Path(path).stat().st_mode & 0o777 for path in sockets} == {0o600}


def sockets_of(pid):
    """The paths of the gRPC sockets that a process listens on."""
    listening = {}
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split()
        if path and int(flags, 16) & 0x10000:
            listening[inode] = path[0]
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inode = str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]")
            if inode in listening:
                found.append(listening[inode])
    return found


def test_a_required_group_that_does_not_start_stops_the_start_and_another_one_does_not(site):
    broken = f'[groups.broken]\nplugins = ["{site.folder}/broken.py"]\n'
    (site.folder / "broken.py").write_text("import no_such_module\n")
    with serving(site, site.settings(broken)) as (process, ready):
        assert (process.wait(60), ready) == (1, {})
    log = (site.folder / "log").read_text()
    assert "no_such_module" in log
    assert "worker process 0 of group 'broken' ended with status 1 before it was ready" in log
    settings = site.settings(f"{broken}required = false\n", site.group("new"), '[guards.later]\nrate = "5/second"\n')
    with serving(site, settings) as (_, ready):
        assert called(ready["target"], "shape_new") == ["2.1 of a key"]
        assert page(ready, "/readyz").startswith("ok, but group 'broken' does not answer")
        assert any(line.get("missing_groups") == ["group 'broken'"] for line in site.log)
        (site.folder / "broken.py").write_text(MINE.replace("plus", "later"))
        wait_until(lambda: page(ready, "/readyz") == "ok\n")

        def keys():
            return [spec.key for spec in list_functions(ClientConfig(ready["target"], 20.0))]

        wait_until(lambda: "later@1" in keys())
        assert called(ready["target"], "later") == [2]


def test_a_function_in_two_groups_stops_the_start(site):
    twice = f'[groups.twice]\nplugins = ["{site.folder}/twice.py"]\n'
    (site.folder / "twice.py").write_text(MINE)
    with serving(site, site.settings(twice)) as (process, ready):
        assert (process.wait(60), ready) == (1, {})
    assert "function 'plus@1' is in group 'default' and in group 'twice'" in (site.folder / "log").read_text()


def test_a_group_may_have_an_interpreter_of_its_own(site, tmp_path):
    """A virtual environment with the server's packages by a path file, and a library that the server lacks."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())
    (packages / "server.pth").write_text("\n".join(path for path in sys.path if Path(path).is_dir()))
    (packages / "shapelib.py").write_text(LIBRARY.format(version="3.0"))
    table = f'[groups.own]\nplugins = ["{site.folder}/new.py"]\npython = "{python}"\nenvironment = {{ KEY = "k" }}\n'
    with serving(site, site.settings(table)) as (_, ready):
        assert called(ready["target"], "shape_new") == ["3.0 of k"]
        (worker,) = ready["groups"]["own"]
        assert Path(f"/proc/{worker}/cmdline").read_text().partition("\0")[0] == str(python)


def test_a_stream_of_a_group_ends_gracefully_with_the_server(site):
    with serving(site, site.settings(site.group("new"))) as (process, ready):
        config = ClientConfig(ready["target"], 20.0)
        spec = list_functions(config).find("pid_new")
        stream = stream_of(call_of(type("Called", (), {"spec": spec}), ready["target"]), GrpcTransport(config))
        stream.submit(chunk_of([1]))
        assert set(everything(stream).values()) == set(ready["groups"]["new"])
        finishing = threading.Thread(target=stream.finish)
        process.terminate()
        wait_until(lambda: any(line["event"] == "draining" and line["group"] == "new" for line in site.log))
        finishing.start()
        finishing.join(30)
        assert process.wait(30) == 0
    ends = {line["end"] for line in site.log if line["event"] == "stream ended"}
    assert ends == {"finished"}
