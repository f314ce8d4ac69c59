"""The site, built once for the tests of its files and of what a browser shows."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EDIT_LINK = "https://code.example/edit/main/{filename}"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Builds the site, once for all processes of the test run; returns its folder and the output of Sphinx."""
    there = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        there = there.parent
    html, printed = there / "site", there / "site.txt"
    with (there / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            done = subprocess.run(
                [sys.executable, "-m", "sphinx", "-q", "-c", "docs/site", "-d", there / "doctrees", ".", html],
                check=False, cwd=ROOT, env={**os.environ, "SITE_EDIT_LINK": EDIT_LINK}, timeout=300, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout
            printed.write_text(done.stdout)
    return html, printed.read_text()


@pytest.fixture(scope="session")
def site(made: tuple[Path, str]) -> Path:
    return made[0]
