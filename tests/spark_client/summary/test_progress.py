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
from spark_client.summary.live_rows import Answered, LiveRows
from spark_client.summary.progress import Progress, display_for
from tests.spark_client.summary.test_summary import Tracker
from udf_server.streams.stream_reports import SessionProgress, StreamProgress


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


class Fleet:
    """Servers that answer with these rows, by address. Each answer has a failed row, too."""

    def __init__(self, **rows):
        self.rows, self.asked = rows, []
        self.unanswered, self.ids, self.listed = {}, {}, None
        self.partial = False
        self.error = None

    def servers(self):
        return list(self.rows) if self.listed is None else self.listed

    def progress(self, session, seconds, servers):
        if self.error:
            raise self.error
        self.asked.append(set(servers))
        return {address: self.answer(session, address) for address in servers if address in self.rows}

    def answer(self, session, address):
        ok = self.rows[address]
        of_session = [stream(session, ok, failed=1, unanswered=self.unanswered.get(address, 0))] if ok else []
        answer = SessionProgress().of(session, of_session)
        answer.server, answer.partial = self.ids.get(address, ""), self.partial
        return answer


def live_of(fleet):
    live = LiveRows(fleet, "s")
    live.start()
    return live


def test_live_rows_are_those_of_all_servers_since_the_start():
    fleet = Fleet(a=10, b=5)
    live = live_of(fleet)
    fleet.rows = {"a": 30, "b": 5}
    assert live.since_start() == Answered(20)
    fleet.error = TransportLost("gone")
    assert live.since_start() == Answered(20)
    fleet.error, fleet.rows = None, {"a": 60, "b": 15}
    assert live.since_start() == Answered(60)


def test_rows_of_a_server_that_has_ended_are_kept():
    fleet = Fleet(a=10, b=5)
    live = live_of(fleet)
    fleet.rows = {"a": 30, "b": 7}
    assert live.since_start() == Answered(22)
    fleet.rows = {"b": 9}
    assert live.since_start() == Answered(24)


def test_a_server_that_took_the_address_of_another_one_counts_beside_it():
    fleet = Fleet(a=0)
    fleet.ids["a"] = "first"
    live = live_of(fleet)
    for server, rows, expected in (("first", 40, 41), ("second", 10, 52), ("second", 45, 87), ("first", 41, 88)):
        fleet.ids["a"], fleet.rows["a"] = server, rows
        assert live.since_start().rows == expected


def test_an_older_server_without_an_id_never_counts_less():
    fleet = Fleet(a=0)
    live = live_of(fleet)
    for rows, expected in ((40, 41), (10, 41), (60, 61)):
        fleet.rows["a"] = rows
        assert live.since_start().rows == expected


def test_servers_in_use_are_asked_each_time_and_the_others_in_turn():
    fleet = Fleet(**{f"s{number}": 0 for number in range(50)})
    live = live_of(fleet)
    assert fleet.asked == [set(fleet.rows)], "each may have answered rows before"
    for _ in range(4):
        live.since_start()
    assert set().union(*fleet.asked[1:]) == set(fleet.rows)
    assert max(map(len, fleet.asked[1:])) == 16
    fleet.rows["s7"], fleet.rows["s8"] = 5, 6
    fleet.unanswered["s7"] = 1
    for _ in range(4):
        live.since_start()
    assert live.since_start() == Answered(13, failed=2)
    for _ in range(3):
        live.since_start()
        assert "s7" in fleet.asked[-1], "its rows are not all answered"
        assert len(fleet.asked[-1]) == 17


@given(
    st.lists(
        st.tuples(st.integers(0, 39), st.integers(1, 9), st.sampled_from(["answer", "end", "hide", "away"])),
        max_size=60,
    )
)
def test_whatever_servers_do_live_rows_never_become_less_and_end_as_those_that_were_seen(steps):
    fleet = Fleet(**{f"s{number}": 0 for number in range(40)})
    live, last, answered = live_of(fleet), 0, {}
    for number, rows, what in steps:
        address = f"s{number}"
        fleet.error = TransportLost("gone") if what == "away" else None
        if what == "end":
            fleet.rows.pop(address, None)
        elif address in fleet.rows:
            fleet.rows[address] += rows
            answered[address] = fleet.rows[address] + 1
        fleet.listed = [each for each in fleet.rows if each != address] if what == "hide" else None
        now = live.since_start().rows
        assert last <= now <= sum(answered.values())
        last = now
    fleet.error = fleet.listed = None
    for _ in range(4):
        live.since_start()
    running = sum(rows for address, rows in answered.items() if address in fleet.rows)
    assert running <= live.since_start().rows <= sum(answered.values())


def test_without_permission_or_an_answer_there_are_no_live_rows():
    fleet = Fleet(a=7)
    fleet.error = AccessDenied("no token")
    live = live_of(fleet)
    assert live.since_start() == Answered()
    fleet.error, fleet.listed = None, []
    assert live.since_start() == Answered()
    fleet.listed = None
    assert live.since_start() == Answered(8, failed=1)


def test_a_server_of_several_processes_does_not_know_all_rows():
    fleet = Fleet(a=10)
    fleet.partial = True
    live = live_of(fleet)
    fleet.rows["a"] = 30
    assert live.since_start() == Answered(0, 0)
    tracker, statistics = Tracker(), [Statistics()]
    tracker.stages = {4: (0, 8)}
    progress = Progress(lambda: (0, statistics[0]), tracker, 60, io.StringIO(), lambda: 0.0, live=live)
    assert progress.line() == "0 s, rows unknown until a task ends, stage 4: 0 of 8 tasks"
    statistics[0] = Statistics(rows=10, failed=1)
    assert progress.line().startswith("0 s, 10 rows in tasks that have ended, 1 failed, 0 retries, stage 4")


def test_a_line_has_the_live_rows_until_tasks_report_more():
    now, statistics = [100.0], [Statistics()]
    tracker = Tracker()
    tracker.stages = {4: (0, 8)}
    fleet = Fleet(a=0)
    live = live_of(fleet)
    progress = Progress(lambda: (0, statistics[0]), tracker, 60, io.StringIO(), lambda: now[0], live=live)
    now[0] += 2.0
    fleet.rows["a"] = 499
    assert progress.line() == "2 s, 500 rows (250 rows/s), 1 failed, 0 retries, stage 4: 0 of 8 tasks"
    now[0] += 2.0
    fleet.rows["a"] = 899
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
