"""A loop that blocks is told from one that gets no CPU time."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.serving.upkeep import LATE_SECONDS, LOOK_SECONDS, BlockedTime, ThreadReading, read_thread

SLEEPING, RUNNABLE = False, True


def blocked(looks):
    """The time after these looks: how late each is, whether the thread is runnable, and what it has run since."""
    time, cpu = BlockedTime(ThreadReading(SLEEPING, 7.0)), 7.0
    for late, runnable, ran in looks:
        cpu += ran
        time.look(late, ThreadReading(runnable, cpu))
    return time.seconds


@pytest.mark.parametrize(
    ("look", "share"),
    [
        ((0.0, SLEEPING, 0.0), 1.0),  # time.sleep, or a request of a blocking client
        ((0.0, RUNNABLE, 0.1), 1.0),  # it computes
        ((0.0, RUNNABLE, 0.02), 0.2),  # it computes, and shares its core with others
        ((0.0, RUNNABLE, 0.0), 0.0),  # it waits for a core
        ((1.0, SLEEPING, 0.0), 0.0),  # the process was suspended
        ((1.0, RUNNABLE, 0.0), 0.0),  # the process is starved
        ((1.0, RUNNABLE, 1.0), 10.0),  # it computes without the interpreter's lock, for which the others wait
    ],
)  # fmt: skip
def test_only_what_the_loop_does_itself_counts(look, share):
    assert blocked([look] * 10) == pytest.approx(10 * LOOK_SECONDS * share)


_LATE = st.floats(0.0, 3.0)


@given(
    st.lists(
        st.tuples(_LATE, st.just(RUNNABLE), st.just(0.0))
        | st.tuples(st.floats(LATE_SECONDS * 1.01, 3.0), st.booleans(), st.just(0.0))
    )
)
def test_a_starved_loop_is_never_blocked(looks):
    assert blocked(looks) == 0


@given(st.lists(st.tuples(_LATE, st.booleans(), st.floats(0.01, 0.1))))
def test_a_loop_is_blocked_for_what_it_computes(looks):
    assert blocked(looks) == pytest.approx(sum(ran for _, _, ran in looks))


def test_without_the_kernel_the_time_of_the_watching_thread_decides():
    time = BlockedTime(None)
    for late in (0.0, 0.2, 0.0):
        time.look(late, None)
    assert time.seconds == pytest.approx(2 * LOOK_SECONDS)


def test_a_thread_that_waits_sleeps_and_has_a_cpu_time():
    ready, done = threading.Event(), threading.Event()

    def wait():
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    own = read_thread(threading.get_native_id())
    assert own is not None and own.runnable
    while (reading := read_thread(thread.native_id)) is not None and reading.runnable:
        pass
    assert reading is not None and reading.cpu >= 0
    done.set()
    thread.join()
    assert read_thread(0) is None
