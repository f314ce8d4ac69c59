"""`make test TESTS=plugins/udf_geo`: the tests of a plugin run without those of the project."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_tests_of_a_plugin_have_the_profiles_of_hypothesis():
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--hypothesis-profile=quick", "plugins/udf_geo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
