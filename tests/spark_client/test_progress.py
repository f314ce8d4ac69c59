"""Lines of progress: live rows of servers, and displays that redraw."""

import fcntl
import io
import os
import pty
import struct
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.v1 import message_pb2 as pb
from spark_client.base.errors import AccessDenied
from spark_client.base.statistics import Statistics
from spark_client.base.transport import TransportLost
from spark_client.summary.display import display_for
from spark_client.summary.live_rows import Answered, LiveRows
from spark_client.summary.progress import Progress
from tests.spark_client.test_summary import Tracker
from udf_server.streams.session_progress import SessionProgress, StreamProgress


def stream(session, ok, failed=0, unanswered=0, retries=0):
    counts = pb.StreamCounts(rows_in=ok + failed + unanswered, rows_ok=ok, rows_failed=failed, retries=retries)
    return StreamProgress(session, counts, unanswered)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.booleans(), st.integers(0, 9), st.integers(0, 9))))
def test_a_server_sums_open_and_ended_streams_of_a_session(streams):
    progress, opened = SessionProgress(), []
    for session, ends, ok, unanswered in streams:
        if ends:
            progress.ended(stream(session, ok))
        else:
            opened.append(stream(session, ok, unanswered=unanswered))
    for session in ("a", "b"):
        found = progress.of(session, [None, *opened])
        mine = [each for each in streams if each[0] == session]
        assert found.counts.rows_ok == sum(ok for _, _, ok, _ in mine)
        assert found.rows_unanswered == sum(unanswered for _, ends, _, unanswered in mine if not ends)
    assert progress.of("c", opened).counts == pb.StreamCounts()


def test_a_server_remembers_so_many_sessions_and_no_long_ids():
    progress = SessionProgress(most=2)
    for session in ("a", "b", "a", "c", "x" * 65, ""):
        progress.ended(stream(session, 1))
    progress.ended(None)
    assert [progress.of(session, []).counts.rows_ok for session in ("a", "b", "c", "x" * 65, "")] == [2, 0, 1, 0, 0]


class Answering:
    """Servers that answer with these rows in turn, or fail."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def progress(self, session, seconds):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answers(*rows, partial=False):
    progress = SessionProgress()
    found = [progress.of("a", [stream("a", count, failed=1)]) for count in rows]
    for each in found:
        each.partial = partial
    return found


def live_of(*found):
    live = LiveRows(Answering(*found), "a")
    live.start()
    return live


def test_live_rows_are_those_of_all_servers_since_the_start():
    live = live_of(answers(10, 5), answers(30, 5), answers(30), TransportLost("gone"), answers(60, 15))
    assert live.since_start() == Answered(20, 0)
    assert live.since_start() == Answered(20, 0)  # a server is missing
    assert live.since_start() == Answered(20, 0)  # all are
    assert live.since_start() == Answered(60, 0)


def test_without_permission_or_an_answer_there_are_no_live_rows():
    live = live_of(AccessDenied("no token"), [], AccessDenied("no token"), answers(7))
    assert [live.since_start() for _ in range(3)] == [Answered(), Answered(), Answered(8, failed=1)]


def test_a_server_of_several_processes_does_not_know_all_rows():
    live = live_of(answers(10, partial=True), answers(30, partial=True))
    assert live.since_start() == Answered(0, 0)


def test_a_line_has_the_live_rows_until_tasks_report_more():
    now, statistics = [100.0], [Statistics()]
    tracker = Tracker()
    tracker.stages = {4: (0, 8)}
    live = live_of(answers(0), answers(500), answers(900))
    progress = Progress(lambda: (0, statistics[0]), tracker, 60, io.StringIO(), lambda: now[0], live=live)
    now[0] += 2.0
    assert progress.line() == "2 s, 500 rows (250 rows/s), 0 failed, 0 retries, stage 4: 0 of 8 tasks"
    now[0] += 2.0
    statistics[0] = Statistics(rows=1_000, failed=3)
    tracker.stages = {4: (2, 8)}
    assert (
        progress.line() == "4 s, 1,000 rows (250 rows/s), 3 failed, 0 retries, stage 4: 2 of 8 tasks, about 12 s left"
    )


def test_the_time_left_is_that_of_the_stages_that_run():
    now, tracker = [0.0], Tracker()
    progress = Progress(lambda: (0, Statistics()), tracker, 10, io.StringIO(), lambda: now[0])

    def line(seconds, **stages):
        now[0] += seconds
        tracker.stages = {int(name[1:]): done for name, done in stages.items()}
        return progress.line().rpartition("tasks, ")[2]

    assert line(990, s1=(198, 200)) == "about 10 s left"
    assert line(10, s1=(200, 200), s2=(0, 200)).endswith("stage 2: 0 of 200 tasks")
    assert line(10, s2=(1, 200)) == "about 3980 s left"
    assert line(10, s2=(50, 200), s3=(1, 10)) == "about 90 s left"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("out", "written"), [(Terminal(), "\r\x1b[Kone\r\x1b[Ktwo\n"), (io.StringIO(), "one\ntwo\n")], ids=["tty", "log"]
)
def test_a_terminal_redraws_one_line_and_a_log_gets_lines(out, written):
    display = display_for(out)
    display.show("one")
    display.show("two")
    display.end()
    assert out.getvalue() == written


def test_a_line_is_cut_to_the_width_of_its_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    display_for(out).show("x" * 20)
    assert out.getvalue() == "\r\x1b[K" + "x" * 19
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 12, 0, 0))
    with os.fdopen(slave, "w") as terminal:
        display_for(terminal).show("y" * 40)
        assert os.read(master, 1_000).decode() == "\r\x1b[K" + "y" * 11
    os.close(master)


def test_a_notebook_redraws_one_output(monkeypatch):
    import IPython

    shown = []

    class Handle:
        def update(self, data, *, raw):
            shown.append(("update", data, raw))

    def display(data, *, raw, display_id):
        shown.append(("display", data, raw, display_id))
        return Handle()

    class Shell:
        kernel = object()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", display)
    notebook = display_for(io.StringIO())
    notebook.show("one")
    notebook.show("two")
    notebook.end()
    assert shown == [
        ("display", {"text/plain": "one"}, True, True),
        ("update", {"text/plain": "two"}, True),
    ]
