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


def test_a_command_has_its_status_its_environment_and_the_time_of_its_descendants():
    burn = BURN.replace("< 1", "< 2")
    code = f"""
import os, subprocess, sys

subprocess.run([sys.executable, "-c", {burn!r}])
sys.exit(3 if "GRPC_ENABLE_FORK_SUPPORT" not in os.environ else 4)
"""
    command = [sys.executable, "-m", "benchmarks.cpu", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    seconds, words = done.stdout.split(" ", 1)
    assert words == "CPU seconds, user and system, of all processes\n"
    assert 1 <= int(seconds) <= 4


def test_no_process_has_used_less_than_before_while_children_end():
    def begin_and_end() -> None:
        for child in [subprocess.Popen([sys.executable, "-S", "-c", ""]) for _ in range(10)]:
            child.wait()

    assert min(used.seconds for used in cpu_by_process(begin_and_end).values()) >= -LEAST
