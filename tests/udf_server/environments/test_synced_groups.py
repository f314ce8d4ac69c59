"""Groups with packages of their own: `udf-server sync` locks and installs them, and a server runs each in its own."""

import json
import re
import subprocess
import sys

import pytest

from tests.udf_server.serving.test_groups import called, serving

pytestmark = pytest.mark.slow

FILE = """# /// script
# dependencies = ["greeting<2"]
# ///
import greeting
import udf_server as udf


@udf.scalar
async def greet(x: int) -> str:
    return greeting.TEXT
"""


class Site:
    """A folder with the settings of a server, and the environments of its groups."""

    def __init__(self, folder, wheels):
        self.folder, self._wheels = folder, wheels
        self.path = folder / "server.toml"

    def settings(self, groups, **more):
        own = {"port": 0, "metrics_port": 0, "processes": 1, "entry_points": False, "log_format": "json"}
        own |= {"environments": str(self.folder / "environments"), **more}
        tables = "".join(
            f"[groups.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            for name, table in groups.items()
        )
        self.path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items()) + tables)

    def run(self, *command):
        line = [sys.executable, "-m", "udf_server", *command, "--config", str(self.path)]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=self.folder)

    def sync(self, *options):
        done = self.run("sync", "--find-links", str(self._wheels), "--no-index", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @property
    def lock(self):
        return self.folder / "groups.lock"


@pytest.fixture
def site(tmp_path, wheels, no_index):
    return Site(tmp_path, wheels)


TWO = {"one": {"plugins": ["plugin1==1"]}, "two": {"plugins": ["plugin2>=1"], "processes": 2}}


@pytest.mark.long
def test_two_plugins_that_need_two_versions_of_a_library_are_on_one_server(site):
    site.settings(TWO, build=False)
    missing = site.run("serve")
    assert missing.returncode == 1 and "groups.lock has no packages; run `udf-server sync`" in missing.stderr
    lines = site.sync()
    assert [line.split(":")[0] for line in lines] == ["one", "two"] and all(" MB, " in line for line in lines)
    # The same two files on another server give the same packages.
    lock = site.lock.read_text()
    assert site.sync() == lines and site.lock.read_text() == lock
    shown = site.run("functions", "--json").stdout.splitlines()
    assert {(each["name"], each["group"]) for each in map(json.loads, shown)} == {("greet1", "one"), ("greet2", "two")}
    assert site.run("call", "greet2", "1").stdout == '"hello 2.0"\n'
    site.path.write_text(site.path.read_text() + '[functions.greet2]\ntimeout = "7 s"\n')
    assert re.search(r"^timeout +7 s +functions.greet2$", site.run("functions", "--options", "greet2").stdout, re.M)
    site.settings(TWO)
    with serving(site, site.path) as (_, ready):
        assert called(ready["target"], "greet1") == ["hello 1.0"]
        assert called(ready["target"], "greet2") == ["hello 2.0"]
        # An environment that a server uses stays, also if no group has it any more.
        site.settings({"one": TWO["one"]})
        assert not any(line.startswith("removed") for line in site.sync("--prune"))
        assert called(ready["target"], "greet2") == ["hello 2.0"]
    assert [line for line in site.sync("--prune") if line.startswith("removed")] == [
        f"removed: {lines[1].split(', ')[2]}"
    ]


@pytest.mark.long
def test_a_file_brings_the_packages_of_its_header_and_a_server_builds_what_is_missing(site, monkeypatch, wheels):
    (site.folder / "greet.py").write_text(FILE)
    site.settings({"files": {"plugins": ["greet.py"]}})
    site.sync()
    site.settings({"files": {"plugins": ["greet.py"]}}, environments=str(site.folder / "elsewhere"), build=False)
    refused = site.run("serve")
    assert refused.returncode == 1 and "was not built" in refused.stderr
    site.settings({"files": {"plugins": ["greet.py"]}}, environments=str(site.folder / "elsewhere"))
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.chdir(site.folder)
    with serving(site, site.path) as (_, ready):
        assert called(ready["target"], "greet") == ["hello 1.0"]
    built = [json.loads(line) for line in (site.folder / "log").read_text().splitlines() if "is built" in line]
    assert [line["group"] for line in built] == ["files"]


@pytest.mark.long
def test_what_cannot_be_resolved_leaves_the_lock_as_it_was(site):
    site.settings(TWO)
    site.sync()
    before = site.lock.read_text()
    site.settings({**TWO, "both": {"plugins": ["plugin1>=1", "plugin2==1"]}})
    failed = site.run("sync", "--find-links", str(site._wheels), "--no-index")
    assert failed.returncode == 1 and "greeting==1.0" in failed.stderr and "greeting==2.0" in failed.stderr
    assert site.lock.read_text() == before
    late = site.run("serve")
    assert late.returncode == 1 and "groups.both" in late.stderr and "run `udf-server sync`" in late.stderr


def test_groups_without_packages_need_no_lock(site):
    (site.folder / "plain.py").write_text(FILE.partition("# ///\nimport greeting\n")[2].replace("greeting.TEXT", "'x'"))
    site.settings({"plain": {"plugins": ["plain.py"]}})
    assert site.sync() == ["no group has packages of its own"] and not site.lock.exists()
    assert site.run("call", "greet", "1").stdout == '"x"\n'
