"""The CPU time of processes, as the benchmarks measure it."""

import subprocess
import sys

import pytest

from benchmarks.cpu import cpu_by_process, cpu_seconds

LEAST = 0.05
"""The kernel counts in hundredths of a second, and the time of the thread that reads is subtracted exactly."""
BURN = "import time\nwhile time.process_time() < 1: pass\n"
IGNORING = f"""
import signal, subprocess, sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {BURN!r}]).wait()
"""
"""Has a child whose time it does not get, as PySpark's daemon."""


@pytest.mark.parametrize("code", [BURN, IGNORING])
def test_the_time_of_a_process_counts_after_it_ended(code):
    assert 0.8 <= cpu_seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True)) < 2


def test_a_child_that_ends_takes_no_time_away():
    with subprocess.Popen(
        [sys.executable, "-c", BURN + "print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert -LEAST <= cpu_seconds(lambda: child.communicate(b"\n")) < 0.5


def test_no_process_has_used_less_than_before_while_children_end():
    def begin_and_end() -> None:
        for child in [subprocess.Popen([sys.executable, "-S", "-c", ""]) for _ in range(10)]:
            child.wait()

    assert min(used.seconds for used in cpu_by_process(begin_and_end).values()) >= -LEAST
