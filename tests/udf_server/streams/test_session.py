"""The session: any order of messages either obeys the protocol or is a ProtocolViolation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from remote_udf.errors import ProtocolViolation
from remote_udf.messages import Message
from remote_udf.v1 import message_pb2 as pb
from udf_server.streams.session import Drain, Feed, Session, Start, Stop


def open_message(function="f"):
    return Message(pb.ExecuteRequest(open=pb.Open(function=function)), None)


def batch_message(sequence, first_row, rows, data=b"", waited=0.0):
    batch = pb.Batch(sequence=sequence, first_row=first_row, rows=rows)
    if waited:
        batch.waited.FromNanoseconds(round(waited * 1e9))
    return Message(pb.ExecuteRequest(batch=batch), memoryview(data))


FINISH = Message(pb.ExecuteRequest(finish=pb.Finish()), None)
CANCEL = Message(pb.ExecuteRequest(cancel=pb.Cancel(reason="enough")), None)
EMPTY = Message(pb.ExecuteRequest(), None)


def opened():
    session = Session()
    session.receive(open_message())
    session.opened()
    return session


def test_a_stream_from_open_to_finish():
    session = Session()
    assert isinstance(session.receive(open_message("geocode")), Start)
    session.opened()
    feed = session.receive(batch_message(0, 0, 5, b"abc", waited=1.5))
    assert isinstance(feed, Feed)
    assert (feed.batch.first_row, feed.batch.rows, bytes(feed.batch.data), feed.batch.waited) == (0, 5, b"abc", 1.5)
    assert isinstance(session.receive(batch_message(1, 5, 2)), Feed)
    assert isinstance(session.receive(FINISH), Drain)
    assert session.rows == 7


def test_a_negative_wait_counts_as_none():
    batch = pb.Batch(sequence=0, first_row=0, rows=1)
    batch.waited.FromSeconds(-5)
    assert opened().receive(Message(pb.ExecuteRequest(batch=batch), None)).batch.waited == 0.0


@pytest.mark.parametrize("finished", [False, True])
def test_cancel_is_legal_until_the_end(finished):
    session = opened()
    if finished:
        session.receive(FINISH)
    action = session.receive(CANCEL)
    assert isinstance(action, Stop)
    assert action.reason == "enough"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (batch_message(0, 0, 1), "batch while the stream is new"),
        (FINISH, "finish while the stream is new"),
        (open_message(""), "open without a function"),
        (EMPTY, "a message without a request in it"),
    ],
)
def test_what_may_not_come_first(message, why):
    with pytest.raises(ProtocolViolation, match=why):
        Session().receive(message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (open_message(), "open while the stream is open"),
        (EMPTY, "a message without a request in it"),
        (batch_message(1, 0, 1), "batch 1 where batch 0 was due"),
        (batch_message(-1, 0, 1), "batch -1 where batch 0 was due"),
        (batch_message(0, 1, 1), "batch 0 starts at row 1, not 0"),
        (batch_message(0, 0, 0), "batch 0 has 0 rows"),
        (batch_message(0, 0, -5), "batch 0 has -5 rows"),
    ],
)
def test_what_may_not_come_next(message, why):
    with pytest.raises(ProtocolViolation, match=why):
        opened().receive(message)


def test_a_batch_must_wait_for_opened():
    session = Session()
    session.receive(open_message())
    with pytest.raises(ProtocolViolation, match="batch while the stream is opening"):
        session.receive(batch_message(0, 0, 1))


@pytest.mark.parametrize("message", [open_message(), batch_message(0, 0, 1), FINISH], ids=["open", "batch", "finish"])
def test_after_finish_only_cancel_is_legal(message):
    session = opened()
    session.receive(FINISH)
    with pytest.raises(ProtocolViolation):
        session.receive(message)


@pytest.mark.parametrize("message", [open_message(), batch_message(0, 0, 1), FINISH, CANCEL])
def test_nothing_is_legal_after_the_end(message):
    session = opened()
    session.ended()
    with pytest.raises(ProtocolViolation, match="after the end of the stream"):
        session.receive(message)


class AnyOrder(RuleBasedStateMachine):
    """Sends messages in any order, and keeps count of what is legal in the plainest way."""

    def __init__(self):
        super().__init__()
        self.session = Session()
        self.history = []
        self.rows = 0
        self.batches = 0
        self.over = False

    def legal(self, kind):
        if self.over:
            return False
        if kind == "cancel":
            return True
        if kind == "open":
            return self.history == []
        return self.history[:1] == ["open"] and "opened" in self.history and "finish" not in self.history

    def send(self, message, kind, legal):
        if legal:
            action = self.session.receive(message)
            self.history.append(kind)
            self.over = kind == "cancel"
            assert isinstance(action, {"open": Start, "batch": Feed, "finish": Drain, "cancel": Stop}[kind])
        else:
            with pytest.raises(ProtocolViolation):
                self.session.receive(message)
            self.over = True

    @rule(function=st.sampled_from(["f", "f", "f", ""]))
    def open(self, function):
        self.send(open_message(function), "open", self.legal("open") and function != "")

    @precondition(lambda self: self.history == ["open"] and not self.over)
    @rule()
    def server_opens(self):
        self.session.opened()
        self.history.append("opened")

    @rule(sequence=st.just(0) | st.integers(-2, 2), first=st.just(0) | st.integers(-2, 2), rows=st.integers(-1, 5))
    def batch(self, sequence, first, rows):
        """Numbers are relative to what is due."""
        legal = self.legal("batch") and sequence == 0 and first == 0 and rows > 0
        self.send(batch_message(self.batches + sequence, self.rows + first, rows), "batch", legal)
        if legal:
            self.batches += 1
            self.rows += rows

    @rule()
    def finish(self):
        self.send(FINISH, "finish", self.legal("finish"))

    @precondition(lambda self: len(self.history) > 4)
    @rule()
    def cancel(self):
        self.send(CANCEL, "cancel", self.legal("cancel"))

    @precondition(lambda self: len(self.history) > 4)
    @rule()
    def empty(self):
        self.send(EMPTY, "empty", legal=False)

    @invariant()
    def rows_are_counted(self):
        assert self.session.rows == self.rows


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.integers(1, 1000), max_size=20))
def test_rows_add_up_over_any_cut(sizes):
    session = opened()
    for sequence, rows in enumerate(sizes):
        session.receive(batch_message(sequence, sum(sizes[:sequence]), rows))
    assert session.rows == sum(sizes)
