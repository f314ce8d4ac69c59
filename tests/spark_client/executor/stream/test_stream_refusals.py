"""CallStream where servers refuse, limit or end it."""

import pyarrow as pa
import pytest

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.errors import ServerUnavailable
from spark_client.executor.stream.chunks import Chunk
from spark_client.executor.stream.connecting import BACKOFF_SECONDS
from tests.spark_client.scripted import (
    Clock,
    Scripted,
    call_of,
    chunk_of,
    everything,
    finished,
    honest,
    opened,
    refused,
    result,
)
from tests.spark_client.streams import answering, lost, plus_one, refusing, timed


def test_a_refusal_for_good_ends_the_stream_with_what_the_server_says():
    with pytest.raises(StreamError, match="OPEN_FAILED: no model\nTraceback of the hook") as caught:
        timed(call_of(plus_one), Scripted(refusing(
            code="OPEN_FAILED", kind=pb.Error.KIND_USER, retryable=False, message="no model",
            traceback="Traceback of the hook",
        )))  # fmt: skip
    assert (caught.value.kind, caught.value.code) == (ErrorKind.USER, ErrorCode.OPEN_FAILED)


def test_a_refusal_for_now_is_taken_back_after_the_time_the_server_asks_for():
    transport = Scripted(refusing(retry_after=3.0), refusing(), honest)
    stream, clock = timed(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    assert clock.sleeps[0] == 3.0
    assert 0 < clock.sleeps[1] <= 2 * BACKOFF_SECONDS[0]
    stream.close()


def test_a_server_that_refuses_for_now_all_the_time_is_unavailable():
    with pytest.raises(ServerUnavailable, match="the server at test does not take the stream: OVERLOADED: not now"):
        timed(call_of(plus_one, connect_seconds=5.0), Scripted(refusing()))


def test_being_asked_to_wait_beyond_the_deadline_is_a_no():
    clock = Clock()
    with pytest.raises(ServerUnavailable, match="OVERLOADED"):
        timed(call_of(plus_one, connect_seconds=5.0), Scripted(refusing(retry_after=6.0)), clock)
    assert clock.sleeps == []


def test_a_stream_that_the_server_ends_for_now_goes_on_elsewhere():
    ending = refused("SHUTTING_DOWN", retry_after=0.5)
    stream, clock = timed(call_of(plus_one), Scripted(answering(result(0, [2]), ending), honest))
    stream.submit(chunk_of([1, 2, 3]))
    assert everything(stream) == {0: 2, 1: 3, 2: 4}
    assert clock.sleeps == [0.5]
    stream.close()


def test_a_stream_that_asks_to_come_back_after_the_deadline_fails_its_rows():
    ending = refused("OVERLOADED", retry_after=60.0)
    stream, clock = timed(call_of(plus_one), Scripted(answering(ending, timeout="5 s")))
    stream.submit(chunk_of([1]))
    error = everything(stream)[0]
    assert error.code is ErrorCode.SERVER_UNAVAILABLE
    assert error.message == f"function {plus_one.spec.key}: the server was lost: OVERLOADED: not now"
    assert clock.sleeps == []
    stream.close()


def test_a_stream_that_the_server_ends_for_good_is_not_tried_again():
    transport = Scripted(answering(refused("INTERNAL", retryable=False)))
    stream, _ = timed(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    with pytest.raises(StreamError, match="INTERNAL"):
        stream.receive()
    assert len(transport.streams) == 1
    stream.close()
    assert transport.streams[0].cancelled.is_set()


def test_a_code_of_a_newer_server_is_kept_and_its_stream_not_tried_again():
    transport = Scripted(refusing(code="TEAPOT", retryable=False, message="on fire"))
    with pytest.raises(StreamError, match="TEAPOT: on fire") as caught:
        timed(call_of(plus_one), transport)
    assert (caught.value.code, len(transport.streams)) == ("TEAPOT", 1)


def test_a_code_of_a_newer_server_is_tried_again_if_it_says_so():
    transport = Scripted(refusing(code="TEAPOT", retryable=True, message="on fire"), honest)
    stream, _ = timed(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    stream.close()


def test_a_malformed_code_is_a_violation():
    with pytest.raises(ProtocolViolation, match="the code of an Error message is malformed"):
        timed(call_of(plus_one), Scripted(refusing(code="tea pot", retryable=False, message="on fire")))


def test_a_chunk_too_large_for_a_message_goes_in_halves():
    transport = Scripted(lambda requests: honest(requests, max_message_bytes=4096 + 1024))
    stream, _ = timed(call_of(plus_one), transport)
    assert stream.submit(chunk_of(range(1000))) == []
    assert everything(stream) == {row: row + 1 for row in range(1000)}
    stream.finish()
    rows = [batch.rows for batch in transport.streams[0].batches]
    assert sum(rows) == 1000
    assert len(rows) == 16


def test_a_row_too_large_for_a_message_fails_alone_and_at_once():
    texts = pa.schema([pa.field("x", pa.string())])

    def lengths(requests):
        next(requests)
        yield opened(max_message_bytes=4096 + 2000)
        for message in requests:
            if message.envelope.HasField("finish"):
                yield finished(9)
            else:
                batch = message.envelope.batch
                yield result(batch.first_row, [1] * batch.rows)

    stream, _ = timed(call_of(plus_one), Scripted(lengths), schema=texts)
    column = pa.chunked_array([["x" * 5000 if row == 4 else "x" for row in range(10)]])
    refused_at_once = stream.submit(Chunk("owner", range(100, 110), [column], column.nbytes))
    (answer,) = refused_at_once
    assert (list(answer.rows), answer.values.to_pylist()) == ([104], [None])
    error = answer.errors[0]
    assert (error.code, error.attempts, error.retryable) == (ErrorCode.ARGUMENT_TOO_LARGE, 0, False)
    assert error.message.endswith("a message holds 2000")
    assert sorted(everything(stream)) == [row for row in range(100, 110) if row != 104]
    assert stream.finish().rows_in == 9


def test_rows_too_large_for_the_next_server_fail_when_they_are_sent_again():
    small = Scripted(answering(then=lost), lambda requests: honest(requests, max_message_bytes=4096 + 100))
    stream, _ = timed(call_of(plus_one), small)
    stream.submit(chunk_of(range(4)))
    assert {error.code for error in everything(stream).values()} == {ErrorCode.ARGUMENT_TOO_LARGE}
    stream.close()
