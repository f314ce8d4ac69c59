"""`udf-server new-plugin`: the generated package passes its own checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from udf_server.commands.cli import main

pytestmark = pytest.mark.slow


def new_plugin(name, directory):
    return CliRunner().invoke(main, ["new-plugin", name, "--directory", str(directory)])


def run(*command, folder, site):
    """Runs a tool of this environment where the package is installed; gives what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A new package's folder, and the folder it was installed into."""
    folder = tmp_path_factory.mktemp("new")
    assert new_plugin("acme-prices", folder).exit_code == 0
    project, site = folder / "acme-prices", folder / "site"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(project)], check=True, timeout=110, capture_output=True)
    return project, site


def test_its_tests_pass(written):
    project, site = written
    assert "4 passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=project, site=site)


def test_its_types_and_rules_are_kept(written):
    project, site = written
    assert "no issues found in 2 source files" in run(sys.executable, "-m", "mypy", folder=project, site=site)
    # The longest name makes the longest lines.
    assert new_plugin("a" * 40, project.parent).exit_code == 0
    for folder in (project, project.parent / ("a" * 40)):
        run("ruff", "check", ".", folder=folder, site=site)
        run("ruff", "format", "--check", ".", folder=folder, site=site)


def test_it_is_found_once_it_is_installed(written):
    project, site = written
    module = project.name.replace("-", "_")
    listed = run(sys.executable, "-m", "udf_server", "functions", folder=site.parent, site=site)
    assert f"{module}_look_up(key string) -> struct<name:string,length:bigint>" in listed
    called = run(
        sys.executable, "-m", "udf_server", "call", f"{module}_scale", "2", "1.5", folder=site.parent, site=site
    )
    assert called == "3.0\n"
    assert (site / module / "py.typed").exists()
    assert not (site / "tests").exists()


def test_two_of_them_live_side_by_side(tmp_path):
    for name in ("acme-prices", "acme-stock"):
        assert new_plugin(name, tmp_path).exit_code == 0
    plugins = ["--plugin", "acme_prices", "--plugin", "acme_stock", "--no-entry-points"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/acme-prices:{tmp_path}/acme-stock"}
    done = subprocess.run(
        [sys.executable, "-m", "udf_server", "functions", *plugins], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 5, done.stdout + done.stderr


def test_the_written_files_are_listed(tmp_path):
    told = new_plugin("acme_prices", tmp_path).output.splitlines()
    assert [Path(line).relative_to(tmp_path / "acme_prices").as_posix() for line in told[:-1]] == [
        "README.md",
        "acme_prices/__init__.py",
        "acme_prices/functions.py",
        "acme_prices/py.typed",
        "pyproject.toml",
        "tests/test_acme_prices.py",
    ]
    assert "pip install -e" in told[-1]


def test_what_is_there_is_never_written_to(tmp_path):
    (tmp_path / "acme").mkdir()
    result = new_plugin("acme", tmp_path)
    assert result.exit_code == 1
    assert "File exists" in result.output
    assert list((tmp_path / "acme").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Acme", "lower case"),
        ("../acme", "lower case"),
        ("acme--prices", "lower case"),
        ("acme\n", "lower case"),
        ("-acme", "No such option"),
        ("", "lower case"),
        ("1acme", "lower case"),
        ("class", "a keyword of Python"),
        ("json", "a module json exists already"),
        ("udf-server", "a module udf_server exists already"),
        ("tests", "a folder of that name"),
        ("a" * 41, "longer than 40 characters"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path, name, message):
    result = new_plugin(name, tmp_path)
    assert result.exit_code != 0
    assert message in result.output
    assert list(tmp_path.iterdir()) == []
