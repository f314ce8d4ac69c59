"""What the tests look for after each test."""

import os
import subprocess
import sys

import pytest

from tests.leftovers import Leftovers


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux tells of them")
def test_a_process_that_has_ended_is_left_behind_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.leftovers.GRACE_SECONDS", 0.0)
    before = Leftovers()
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert list(before.more()) == [f"process {process.pid}, which has ended and was not waited for"]
    assert not before.more()
