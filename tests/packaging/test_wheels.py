"""The built wheels in empty environments: for jobs only, for servers only, for both, and for plugin authors."""

import json
import subprocess
import sys
import zipfile

import pytest

from remote_udf.version import __version__
from tests.packaging.environments import ROOT, Environment, build, requirements

PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

IMPORT_ALL = """
import importlib, pkgutil, sys
for package in {packages!r}:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if not module.name.endswith("__main__") and module.name not in {optional!r}:
            importlib.import_module(module.name)
print(sorted(name for name in {absent!r} if name in sys.modules))
"""
OPTIONAL = ["remote_udf.open_telemetry"]
"""Modules of the extra `tracing`."""

PLUGIN = '''
"""A plugin."""

import udf_server as udf


@udf.scalar(timeout="2 s")
async def shout(text: str) -> str:
    """Upper case."""
    return text.upper()


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [shout]
'''

CALL = """
import asyncio
from shout_udfs import shout
from udf_server.testing import FunctionEnvironment

async def main():
    async with FunctionEnvironment() as environment:
        return (await environment.run(shout, ["red", None])).values.to_pylist()

try:
    print(asyncio.run(main()))
except Exception as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel of the project."""
    (built,) = build(tmp_path_factory.mktemp("wheel"), ROOT)
    return built


@pytest.fixture(scope="module")
def client(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("client"), wheel, ["spark"])


@pytest.fixture(scope="module")
def server(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("server"), wheel, ["server"])


@pytest.fixture(scope="module")
def both(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("both"), wheel, ["server", "spark"])


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "shout_udfs.py").write_text(PLUGIN)
    return tmp_path


def test_the_wheel_has_types_and_templates_and_no_tests(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {"remote_udf", "udf_server", "spark_client"}
    assert {name.split("/")[0] for name in names} == {*packages, f"remote_udf-{__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert sum(name.endswith(".template") for name in names) == 6
    assert not [name for name in names if name.endswith((".proto", ".pyc")) and "v1/" not in name]


def test_plugins_have_wheels_with_types_and_entry_points(tmp_path):
    wheels = build(tmp_path, *PLUGINS)
    assert len(wheels) == len(PLUGINS)
    for plugin, wheel in zip(PLUGINS, wheels, strict=True):
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (points,) = [name for name in names if name.endswith("entry_points.txt")]
            assert archive.read(points).decode() == f"[udf_server]\n{plugin.name[4:]} = {plugin.name}\n"
        assert f"{plugin.name}/py.typed" in names
        assert {name.split("/")[0] for name in names} == {plugin.name, f"{plugin.name}-{__version__}.dist-info"}
        assert "remote-udf[server]" in map(str, requirements(wheel))


@pytest.mark.long
def test_a_job_s_environment_has_no_server(client, tmp_path):
    assert not {"uvloop", "pluggy", "structlog", "prometheus-client"} & set(client.names)
    code = IMPORT_ALL.format(
        optional=OPTIONAL, packages=["remote_udf", "spark_client"], absent=["udf_server", "uvloop", "pluggy"]
    )
    assert client.code(code, tmp_path) == "[]\n"
    assert client.run("remote-udf", "--version", cwd=tmp_path).stdout == f"remote-udf, version {__version__}\n"
    assert "Calls remote functions from Spark." in client.run("remote-udf", "--help", cwd=tmp_path).stdout


def test_a_command_without_its_extra_says_which_to_install(client, server, tmp_path):
    for environment, command, extra in ((client, "udf-server", "server"), (server, "remote-udf", "spark")):
        complaint = environment.run(command, "--version", cwd=tmp_path, fails=True).stderr
        (line,) = complaint.splitlines()
        assert line.startswith(f"{command} needs ")
        assert line.endswith(f", which is not installed here: pip install 'remote-udf[{extra}]'")


def test_the_error_of_a_job_without_a_server_says_how_to_get_one(client, tmp_path):
    code = "from spark_client.embedded import EmbeddedServer; EmbeddedServer([])"
    failed = client.run("python", "-c", code, cwd=tmp_path, fails=True).stderr.splitlines()[-1]
    assert "EmbeddedServerFailed: the embedded server needs the packages of a server here: pip install" in failed


def test_a_server_s_environment_has_no_spark(server, plugin):
    assert not {"pyspark", "pandas", "py4j"} & set(server.names)
    code = IMPORT_ALL.format(
        optional=OPTIONAL, packages=["remote_udf", "udf_server"], absent=["spark_client", "pyspark", "pandas"]
    )
    assert server.code(code, plugin) == "[]\n"
    assert "Hosts user-defined functions" in server.run("udf-server", "--help", cwd=plugin).stdout
    called = server.run("udf-server", "call", "shout", "red", "--plugin", "shout_udfs", cwd=plugin)
    assert called.stdout == '"RED"\n'
    assert server.code(CALL, plugin) == "['RED', None]\n"


def test_an_empty_environment_of_a_server_serves(server, plugin):
    options = ["--port", "0", "--metrics-port", "0", "--stop-with-stdin", "--plugin", "shout_udfs"]
    serving = subprocess.Popen(
        [server.python, "-m", "udf_server", "serve", *options], cwd=plugin, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with serving:
        ready = json.loads(serving.stdout.readline())
        serving.stdin.close()
        assert serving.wait(30) == 0
    assert ready["functions"] == ["shout@1"]


@pytest.mark.long
def test_a_job_runs_where_both_are_installed(both, plugin):
    query = "SELECT shout('red') AS loud"
    done = both.run(
        "remote-udf", "sql", "--plugin", "shout_udfs.py", "--spark", "local[1]",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1", "-e", query, cwd=plugin,
    )  # fmt: skip
    assert "RED" in done.stdout


def test_a_new_plugin_is_written_from_the_wheel(server, tmp_path):
    server.run("udf-server", "new-plugin", "acme-prices", cwd=tmp_path)
    call = ["udf-server", "call", "acme_prices_scale", "2", "3", "--plugin", "acme_prices", "--no-entry-points"]
    called = server.run(*call, cwd=tmp_path / "acme-prices")
    assert called.stdout == "6.0\n"


@pytest.mark.long
def test_a_plugin_s_types_are_checked_against_the_wheel(server, plugin):
    def mypy(text):
        (plugin / "shout_udfs.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(server.python), "shout_udfs.py"]
        return subprocess.run(command, cwd=plugin, capture_output=True, text=True, timeout=110, check=False).stdout

    assert mypy(PLUGIN) == "Success: no issues found in 1 source file\n"
    assert 'Incompatible types in assignment (expression has type "int", variable has type "str")' in mypy(
        PLUGIN + "\nshout.origin = 1\n"
    )
    assert 'Unexpected keyword argument "tiemout"' in mypy(PLUGIN.replace("timeout=", "tiemout="))
    assert 'No overload variant of "scalar" matches argument type "int"' in mypy(PLUGIN.replace('"2 s"', "2"))
    for page in ("process-table-functions", "process-table-functions-on-streams"):
        text = (ROOT / f"docs/{page}.md").read_text()
        assert "Success" in mypy(text.partition("```python\n")[2].partition("```")[0])
    assert 'Module has no attribute "absent"' in mypy(PLUGIN + "\nudf.absent()\n")
