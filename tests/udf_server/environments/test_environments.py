"""Environments of groups: resolved into a lock, built from a wheelhouse, used by servers and removed afterwards."""

import contextlib
import json
import stat
import subprocess
import threading

import pytest

from tests.udf_server.environments.wheels import write_wheel
from udf_server.base.errors import InvalidConfig
from udf_server.environments.environments import Environments, megabytes, resolve
from udf_server.environments.packages import LOCK, Asked, Locked, asked_by, locked_for, read_lock, write_lock
from udf_server.environments.uv import CannotBuild, Uv
from udf_server.serving.config import ServerConfig
from udf_server.serving.groups import GroupSettings
from udf_server.serving.interpreters import interpreter_of

HEADER = """
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "shapely>=2",
# ]
# ///
import udf_server as udf
"""


def test_packages_and_files_are_told_apart_and_headers_are_read(tmp_path):
    (file := tmp_path / "shapes.py").write_text(HEADER)
    assert asked_by("geo", ["geo-udfs==2.1", str(file)]) == Asked(
        "geo", ("geo-udfs==2.1", "shapely>=2"), (str(file),), ">=3.11"
    )
    assert asked_by("geo", [str(file)], "3.12").python == "3.12"
    file.write_text("import udf_server as udf\n")
    assert asked_by("geo", [str(file)]) == Asked("geo", (), (str(file),), "")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (HEADER + HEADER, "has 2 headers"), (HEADER.replace('["', "[").replace("[\n", "{\n"), "the header"),
        (HEADER.replace('"shapely>=2"', "7"), "is a list of texts"),
    ],
)  # fmt: skip
def test_a_header_that_is_none_is_an_error_that_names_the_file(tmp_path, header, found):
    (file := tmp_path / "shapes.py").write_text(header)
    with pytest.raises(InvalidConfig, match=found) as error:
        asked_by("geo", [str(file)])
    assert "groups.geo" in str(error.value) and str(file) in str(error.value)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        asked_by("geo", [str(tmp_path / "no.py")])


def test_a_lock_is_read_as_it_was_written_and_belongs_to_what_was_asked(tmp_path):
    path, asked = tmp_path / LOCK, Asked("geo", ("a==1",), (), "3.12")
    assert read_lock(path) == {}
    with pytest.raises(InvalidConfig, match=r"groups\.geo.*has no packages.*udf-server sync"):
        locked_for(asked, {}, path)
    locked = Locked(["a==1"], "3.12", ["a==1 --hash=sha256:00"])
    write_lock(path, {"geo": locked})
    assert locked_for(asked, read_lock(path), path) == locked
    with pytest.raises(InvalidConfig, match="other plugins"):
        locked_for(Asked("geo", ("a==2",), (), "3.12"), read_lock(path), path)
    with pytest.raises(InvalidConfig, match="another version of Python"):
        locked_for(Asked("geo", ("a==1",), (), "3.13"), read_lock(path), path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"groups": 1}', '{"groups": {"geo": {}}}', '{"groups": {"geo": 1}}'])
def test_a_damaged_lock_is_an_error(tmp_path, text):
    (path := tmp_path / LOCK).write_text(text)
    with pytest.raises(InvalidConfig, match=f"{path} is no lock"):
        read_lock(path)


@pytest.fixture
def uv(wheels, no_index):
    return Uv([str(wheels)], no_index=True)


def functions_of(folder):
    command = [folder / "bin" / "python", "-m", "udf_server", "functions", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return [json.loads(line)["name"] for line in done.stdout.splitlines()]


@pytest.mark.long
def test_two_groups_have_two_versions_of_a_library(uv, tmp_path):
    environments = Environments(tmp_path / "environments")
    locks = {name: resolve(asked_by(name, [f"plugin{name}"]), uv) for name in ("1", "2")}
    pinned = [line.partition(" ")[0] for line in locks["2"].requirements]
    assert {"plugin2==1", "greeting==2.0"} < set(pinned) and not any("remote-udf" in each for each in pinned)
    assert all("--hash=sha256:" in line for line in locks["2"].requirements)
    folders = [environments.build(name, locked, uv) for name, locked in locks.items()]
    assert [functions_of(folder) for folder in folders] == [["greet1"], ["greet2"]]
    assert all(megabytes(folder) > 1 for folder in folders)
    # What is there is taken, also from a folder that cannot be written.
    before = folders[0].stat().st_ctime_ns
    assert environments.build("1", locks["1"], uv) == folders[0] and folders[0].stat().st_ctime_ns == before
    assert Environments(tmp_path / "environments").python_of("1", locks["1"]) == folders[0] / "bin" / "python"
    # What no lock names is removed, unless a server uses it.
    with Environments.use(folders[1]):
        assert environments.prune({"1": locks["1"]}) == []
    assert environments.prune({"1": locks["1"]}) == [folders[1]]
    assert functions_of(folders[0]) == ["greet1"]
    with pytest.raises(InvalidConfig, match=r"groups\.2: its environment .* was not built; run `udf-server sync`"):
        environments.python_of("2", locks["2"])


@pytest.mark.slow
def test_what_disagrees_is_named(uv):
    with pytest.raises(CannotBuild, match=r"groups\.both, plugin1, plugin2") as error:
        resolve(asked_by("both", ["plugin1", "plugin2"]), uv)
    assert "greeting==1.0" in str(error.value) and "greeting==2.0" in str(error.value)
    with pytest.raises(CannotBuild, match="no-such-plugin was not found"):
        resolve(asked_by("none", ["no-such-plugin"]), uv)
    with pytest.raises(CannotBuild, match=r"Python 9\.9"):
        resolve(asked_by("old", ["plugin1"], "9.9"), uv)


@pytest.mark.long
def test_packages_that_do_not_work_together_are_an_error(no_index, wheels, tmp_path):
    (odd := tmp_path / "odd").mkdir()
    write_wheel(odd, "h11", "99", "raise ImportError('h11 99 is for another Python')\n")
    uv, folder = Uv([str(wheels), str(odd)], no_index=True), tmp_path / "environments"
    with pytest.raises(CannotBuild, match=r"groups\.one: its packages do not work together: .*h11 99 is for another"):
        Environments(folder).build("one", resolve(asked_by("one", ["greeting==1.0", "h11==99"]), uv), uv)
    assert [each.name for each in folder.iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_wheel_with_other_content_than_the_lock_has_is_refused(uv, wheels, tmp_path):
    locked = resolve(asked_by("one", ["plugin1"]), uv)
    requirements = [line.replace("--hash=sha256:", "--hash=sha256:0")[:-1] for line in locked.requirements]
    with pytest.raises(CannotBuild, match=r"(?s)groups\.one: .*Hash mismatch"):
        Environments(tmp_path).build("one", Locked(locked.asked, "", requirements), uv)
    assert [each.name for each in tmp_path.iterdir()] == [".lock"]


@pytest.mark.long
def test_servers_that_build_at_the_same_time_build_once(uv, tmp_path):
    locked, found = resolve(asked_by("one", ["greeting==1.0"]), uv), []
    builds = [
        threading.Thread(target=lambda: found.append(Environments(tmp_path).build("one", locked, uv))) for _ in range(3)
    ]
    for build in builds:
        build.start()
    for build in builds:
        build.join()
    assert len(found) == 3 and len(set(found)) == 1


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (blocked := tmp_path / "file").write_text("")
    with pytest.raises(CannotBuild, match=r"'environments'.*cannot be written"):
        Environments(blocked / "environments").prune({})


@pytest.mark.slow
def test_credentials_of_an_index_are_in_no_message_and_on_no_command_line(wheels, tmp_path, monkeypatch):
    pytest.importorskip("uv")
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:s3cret@127.0.0.1:9/simple")
    (seen := tmp_path / "seen").touch()
    (fake := tmp_path / "uv").write_text(f'#!/bin/sh\necho "$@" >>{seen}\nexec {Uv()._uv} "$@"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(fake))
    with pytest.raises(CannotBuild) as error:
        resolve(asked_by("one", ["anything"]), Uv())
    assert "s3cret" not in str(error.value) and "127.0.0.1:9" in str(error.value)
    assert "compile" in seen.read_text() and "s3cret" not in seen.read_text()


def test_where_uv_is_missing_the_error_names_the_environment_that_is_missing(tmp_path, monkeypatch):
    asked = GroupSettings(plugins=("geo==1",)).asked("geo")
    write_lock(tmp_path / LOCK, {"geo": Locked(list(asked.packages), asked.python, ["geo==1 --hash=sha256:0"])})
    config = ServerConfig(
        groups={"geo": GroupSettings(plugins=("geo==1",))}, groups_lock=str(tmp_path / LOCK), environments=str(tmp_path)
    )
    monkeypatch.setattr(Uv, "is_installed", lambda: False)
    with (
        contextlib.ExitStack() as used,
        pytest.raises(
            InvalidConfig, match=f"groups.geo: its environment {tmp_path}/geo-.* was not built; run `udf-server"
        ),
    ):
        interpreter_of(config, "geo", used)
