"""The CPU time of processes, as the benchmarks measure it."""

import subprocess
import sys

from benchmarks.cpu import cpu_seconds, spent

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_the_time_of_a_child_counts_after_it_ended():
    assert cpu_seconds(lambda: subprocess.run([sys.executable, "-c", BURN], check=True)) >= 0.25


def test_a_child_that_ends_takes_no_time_away():
    with subprocess.Popen(
        [sys.executable, "-c", BURN + "print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert max(each.own for process, each in spent().items() if process.pid == child.pid) >= 0.25
        assert cpu_seconds(lambda: child.communicate(b"\n")) < 0.25


def test_no_sample_is_less_than_the_one_before_it_while_children_end():
    before = 0.0
    for _ in range(30):
        children = [subprocess.Popen([sys.executable, "-S", "-c", ""]) for _ in range(3)]
        now = sum(each.own + each.ended for each in spent().values())
        assert now >= before - 0.02  # the kernel counts in hundredths of a second
        before = now
        for child in children:
            child.wait()
