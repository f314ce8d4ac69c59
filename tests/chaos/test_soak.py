"""The short form of `make soak`, and tests of how growth is detected."""

import subprocess
import sys

import pytest

from tests.chaos.flatness import courses

pytestmark = pytest.mark.long

MINUTES = 0.4


def samples(values, name="server memory MB"):
    return [{"seconds": float(number), name: value} for number, value in enumerate(values)]


@pytest.mark.timeout(300)
def test_a_mixed_load_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "tests.chaos.soak", "--minutes", str(MINUTES), "--out", str(tmp_path / "soak.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("short streams", "dead letters", "given up", "aggregate"):
        assert f"{kind}: 0 jobs" not in done.stdout, done.stdout
    assert (tmp_path / "soak.svg").exists()


def test_what_grows_after_the_warm_up_is_told():
    [course] = courses(samples([100, 150, 180, *range(180, 380)]))
    assert course.grew
    assert str(course) == "server memory MB: 251.5 in the second quarter, 354.5 in the last, GREW by more than 48"
    [course] = courses(samples([10] * 40 + [23] * 40, "server threads"))
    assert course.grew


def test_a_warm_up_and_single_samples_are_no_growth():
    [course] = courses(samples([20, 60, 100, 140, *[180] * 80, 900]))
    assert not course.grew
