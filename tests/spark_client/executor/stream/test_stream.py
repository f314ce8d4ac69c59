"""CallStream with scripted servers: the messages that it sends and counts, and the responses that it rejects."""

import itertools

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, ProtocolViolation
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.errors import AccountingMismatch
from spark_client.executor.stream.chunks import Chunk
from tests.spark_client.scripted import (
    Scripted,
    call_of,
    chunk_of,
    everything,
    finished,
    honest,
    opened,
    progress,
    result,
    row_error,
    scattered,
)
from tests.spark_client.streams import answering, plus_one, timed, to_the_end


@pytest.mark.parametrize("ordered", [True, False])
def test_every_row_comes_back_and_the_counts_are_those_of_the_server(ordered):
    stream, _ = timed(call_of(plus_one), Scripted(lambda requests: honest(requests, ordered=ordered)))
    assert stream.ordered is ordered
    for start in range(0, 30, 10):
        assert stream.submit(chunk_of(range(start, start + 10), start)) == []
    assert stream.unanswered == 30
    assert everything(stream) == {row: row + 1 for row in range(30)}
    counts = stream.finish()
    assert (counts.rows_in, counts.rows_ok, counts.rows_failed) == (30, 30, 0)


@pytest.mark.parametrize("more", [(), (progress(),), (progress(draining=True),)])
def test_a_stream_of_which_a_message_was_not_read_is_cancelled(more):
    # gRPC would keep the call, and a thread, until the message is read.
    transport = Scripted(lambda requests: itertools.chain(honest(requests), more))
    stream, _ = timed(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    assert stream.finish().rows_ok == 1
    assert transport.streams[0].cancelled.is_set() is bool(more)


def test_open_says_what_the_call_is_and_where_it_comes_from():
    transport = Scripted(honest)
    stream, _ = timed(call_of(plus_one, timeout="3 s", max_attempts=2), transport)
    stream.submit(chunk_of([1]))
    everything(stream)
    request = transport.streams[0].received[0].open
    assert (request.function, request.version) == ("plus_one", plus_one.spec.version)
    assert request.fingerprint == plus_one.spec.fingerprint
    assert dict(request.options) == {"timeout": "3 s", "max-attempts": "2"}
    assert (request.context.operation_id, request.context.micro_batch) == ("operation", -1)
    stream.close()


def test_batches_are_numbered_and_say_where_in_the_stream_they_stand():
    transport = Scripted(honest)
    stream, _ = timed(call_of(plus_one), transport)
    for size in (3, 1, 2):
        stream.submit(chunk_of(range(size)))
        stream.receive()
    stream.finish()
    batches = transport.streams[0].batches
    assert [(batch.sequence, batch.first_row, batch.rows) for batch in batches] == [(0, 0, 3), (1, 3, 1), (2, 4, 2)]
    assert not any(batch.HasField("waited") for batch in batches)


def test_a_function_without_arguments_is_called_once_per_row_all_the_same():
    @udf.scalar(parameters="")
    def now() -> int:
        return 1

    def script(requests):
        next(requests)
        yield opened()
        message = next(requests)
        assert message.data is None
        yield result(0, [7] * message.envelope.batch.rows)

    stream, _ = timed(call_of(now, arguments=0), Scripted(script), schema=pa.schema([]))
    stream.submit(Chunk("owner", range(3), [], 1))
    assert everything(stream) == {0: 7, 1: 7, 2: 7}
    stream.close()


def test_heartbeats_are_skipped():
    stream, _ = timed(call_of(plus_one), Scripted(answering(progress(), progress(), result(0, [2]))))
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    stream.close()


def test_errors_of_rows_arrive_with_everything_the_server_says():
    error = row_error("no", ErrorCode.TIMEOUT, attempts=3, retryable=True, traceback="Traceback")
    stream, _ = timed(call_of(plus_one), Scripted(answering(result(0, [2, None], {1: error}))))
    stream.submit(chunk_of([1, 2]))
    assert everything(stream) == {0: 2, 1: error}
    stream.close()


@pytest.mark.parametrize(
    "counts", [finished(3), finished(2, ok=1), finished(2, failed=1), finished(2, skipped=1), finished(0)]
)
def test_counts_that_differ_are_never_passed_over(counts):
    def then(requests):
        to_the_end(requests)
        yield counts

    stream, _ = timed(call_of(plus_one), Scripted(answering(result(0, [2, 3]), then=then)))
    stream.submit(chunk_of([1, 2]))
    everything(stream)
    with pytest.raises(
        AccountingMismatch, match=r"sent and received here: in 2, ok 2, .* unanswered 0; the server says"
    ):
        stream.finish()


def test_a_server_that_ends_before_all_is_answered_is_found_out():
    stream, _ = timed(call_of(plus_one), Scripted(answering(finished(2))))
    stream.submit(chunk_of([1, 2]))
    with pytest.raises(AccountingMismatch, match="unanswered 2"):
        stream.receive()
    stream.close()


def test_finishing_with_rows_in_flight_is_refused():
    stream, _ = timed(call_of(plus_one), Scripted(answering()))
    stream.submit(chunk_of([1, 2]))
    with pytest.raises(AccountingMismatch, match="2 rows without an outcome"):
        stream.finish()
    stream.close()


def test_retries_and_skipped_rows_are_counted():
    def then(requests):
        to_the_end(requests)
        yield finished(3, failed=1, skipped=1, calls=7, retries=5)

    first = result(0, [None, None, 4], {0: row_error()}, skipped=1, calls=7, retries=5)
    stream, _ = timed(call_of(plus_one), Scripted(answering(first, then=then)))
    stream.submit(chunk_of([1, None, 3]))
    everything(stream)
    counts = stream.finish()
    assert (counts.rows_ok, counts.rows_failed, counts.rows_skipped, counts.calls, counts.retries) == (1, 1, 1, 7, 5)


def test_calls_that_only_one_end_has_counted_are_an_error():
    def then(requests):
        to_the_end(requests)
        yield finished(1, calls=2)

    stream, _ = timed(call_of(plus_one), Scripted(answering(result(0, [2], calls=1), then=then)))
    stream.submit(chunk_of([1]))
    everything(stream)
    with pytest.raises(AccountingMismatch, match=r"skipped 0, calls 1, retries 0, .* skipped 0, calls 2, retries 0"):
        stream.finish()


@pytest.mark.parametrize(
    ("ordered", "response", "why"),
    [
        (True, result(1, [1, 2]), "exceeds its batch"),
        (True, result(-1, [1]), "never sent"),
        (True, result(0, [1, None], {2: row_error()}), "an error for row 2 of a result of 2 rows"),
        (True, encode(pb.ExecuteResponse(result=pb.Result(rows=1))), "a result without data"),
        (True, opened(), "the server sent opened in the middle of the stream"),
        (True, encode(pb.ExecuteResponse(cancelled=pb.Cancelled())), "the server sent cancelled"),
        (True, encode(pb.ExecuteResponse()), "the server sent None"),
        (True, b"\xff\xff\xff", "not a ExecuteResponse"),
        (False, scattered([5], [1]), "answered or never sent"),
        (False, scattered([1, 1], [1, 1]), "twice"),
        (False, scattered([None], [1]), "a null in column 'row'"),
    ],
)
def test_what_the_protocol_does_not_allow_is_said(ordered, response, why):
    stream, _ = timed(call_of(plus_one), Scripted(answering(response, ordered=ordered)))
    stream.submit(chunk_of([1, 2]))
    with pytest.raises(ProtocolViolation, match=why):
        stream.receive()
    stream.close()


def test_a_row_answered_twice_is_a_violation():
    stream, _ = timed(call_of(plus_one), Scripted(answering(result(0, [2, 3]), result(1, [3, 4]))))
    stream.submit(chunk_of([1, 2, 3]))
    stream.receive()
    with pytest.raises(ProtocolViolation, match="answered a row twice"):
        stream.receive()
    stream.close()


def test_an_answer_to_open_of_another_kind_is_a_violation():
    def script(requests):
        next(requests)
        yield result(0, [1])

    with pytest.raises(ProtocolViolation, match="the server answered Open with result"):
        timed(call_of(plus_one), Scripted(script))
