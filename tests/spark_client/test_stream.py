"""CallStream against servers that follow a script: losses, refusals, limits, accounting, and the clock."""

import threading

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from spark_client.errors import AccountingMismatch, NotARemoteUdfServer, ServerUnavailable
from spark_client.executor.chunks import Chunk
from spark_client.executor.stream import BACKOFF_SECONDS
from spark_client.executor.transport import TransportLost
from tests.spark_client.scripted import (
    SILENCE,
    Clock,
    Scripted,
    call_of,
    chunk_of,
    everything,
    finished,
    gone,
    honest,
    numbers,
    opened,
    progress,
    refused,
    result,
    row_error,
    scattered,
    stream_of,
)


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


def timed(call, transport, clock=None, **arguments):
    """A stream on a clock that moves only when somebody sleeps."""
    clock = clock or Clock()
    return stream_of(call, transport, clock=clock, sleep=clock.sleep, **arguments), clock


def answering(*responses, then=None, **options):
    """A script: opens, waits for the first batch, says these, and then what `then` does with the requests."""

    def script(requests):
        next(requests)
        yield opened(**options)
        next(requests)
        yield from responses
        if then is not None:
            yield from then(requests)

    return script


def lost(_):
    raise TransportLost("UNAVAILABLE: the machine is gone")
    yield


def to_the_end(requests):
    for message in requests:
        if message.envelope.HasField("finish"):
            return


# When all is well.


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


def test_signs_of_life_are_passed_over():
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


# Losses.


def breaking_before(count, ordered):
    """A server like `honest` that is gone instead of sending its message number `count`."""

    def script(requests):
        for sent, message in enumerate(honest(requests, ordered=ordered)):
            if sent == count:
                raise TransportLost("UNAVAILABLE: the machine is gone")
            yield message

    return script


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", range(8))
def test_a_server_lost_before_any_of_its_messages_costs_no_row_and_doubles_none(count, ordered):
    transport = Scripted(breaking_before(count, ordered), lambda requests: honest(requests, ordered=ordered))
    stream, _ = timed(call_of(plus_one), transport)
    for start in range(0, 50, 10):
        stream.submit(chunk_of(range(start, start + 10), start))
    assert everything(stream) == {row: row + 1 for row in range(50)}
    counts = stream.finish()
    resent = transport.streams[-1].batches
    if count == 0:
        assert (len(transport.streams), stream.replays, len(resent)) == (2, 0, 5)
    elif count <= 5:
        # Opened was the first message; what was answered by the others is not sent again.
        assert (len(transport.streams), stream.replays, counts.rows_in) == (2, 1, 10 * (6 - count))
    elif count == 6:
        # Only the counts were lost.
        assert (len(transport.streams), stream.replays, counts.rows_in) == (1, 0, 0)
    else:
        assert (len(transport.streams), counts.rows_in) == (1, 50)


@pytest.mark.parametrize("ordered", [True, False])
def test_of_a_batch_answered_in_part_only_the_rest_is_sent_again(ordered):
    sent_again = []

    def second(requests):
        next(requests)
        yield opened(ordered=ordered)
        message = next(requests)
        sent_again.extend(numbers(message))
        values = [x + 1 for x in sent_again]
        yield result(0, values) if ordered else scattered(range(len(values)), values)

    part = result(2, [3, 4, 5]) if ordered else scattered([4, 2, 3], [5, 3, 4])
    stream, _ = timed(call_of(plus_one), Scripted(answering(part, then=lost, ordered=ordered), second))
    stream.submit(chunk_of(range(10)))
    assert everything(stream) == {row: row + 1 for row in range(10)}
    assert sent_again == [0, 1, 5, 6, 7, 8, 9]
    stream.close()


def test_rows_sent_again_say_how_long_they_have_waited():
    clock = Clock()

    def away(requests):
        clock.now += 1.0
        raise TransportLost("UNAVAILABLE: still away")
        yield

    transport = Scripted(answering(then=lost), away, away, honest)
    stream, _ = timed(call_of(plus_one), transport, clock)
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    waited = transport.streams[-1].batches[0].waited.ToNanoseconds() / 1e9
    assert waited == pytest.approx(2.0 + sum(clock.sleeps), abs=1e-6)
    stream.close()


def test_a_stream_that_ends_before_its_last_message_was_lost():
    stream, _ = timed(call_of(plus_one), Scripted(answering(), honest))
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    stream.close()


def test_rows_fail_with_a_clear_error_when_the_server_stays_away_beyond_their_deadline():
    stream, clock = timed(call_of(plus_one, target="there:1"), Scripted(answering(then=lost, timeout="4 s"), gone))
    began = clock.now
    stream.submit(chunk_of([1, 2]))
    found = everything(stream)
    assert {error.code for error in found.values()} == {ErrorCode.SERVER_UNAVAILABLE}
    assert (found[0].attempts, found[0].retryable) == (0, True)
    assert found[0].message == (
        f"function {plus_one.spec.key}: no server at there:1: UNAVAILABLE: nobody there "
        "(the server was lost: UNAVAILABLE: the machine is gone)"
    )
    assert 4.0 - BACKOFF_SECONDS[1] <= clock.now - began <= 4.0
    stream.close()


def test_rows_after_an_outage_try_anew():
    transport = Scripted(answering(then=lost, timeout="1 s"), *[gone] * 50)
    stream, _ = timed(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    assert everything(stream)[0].code is ErrorCode.SERVER_UNAVAILABLE
    transport._scripts[len(transport.streams) :] = [honest]
    stream.submit(chunk_of([5, 6]))
    assert everything(stream) == {0: 6, 1: 7}
    assert stream.finish().rows_in == 2


def test_attempts_to_reach_a_server_back_off_with_jitter():
    stream, clock = timed(call_of(plus_one), Scripted(answering(then=lost, timeout="60 s"), gone))
    stream.submit(chunk_of([1]))
    everything(stream)
    first, longest = BACKOFF_SECONDS
    # The first attempt is at once.
    assert clock.sleeps[0] == 0.0
    for attempt, pause in enumerate(clock.sleeps[1:]):
        most = min(first * 2**attempt, longest)
        assert most / 2 <= pause <= most
    assert len(clock.sleeps) < 60
    assert len(set(clock.sleeps)) == len(clock.sleeps)
    stream.close()


def test_a_server_that_takes_streams_and_loses_them_gets_a_rest_and_a_deadline():
    stream, clock = timed(call_of(plus_one), Scripted(answering(then=lost, timeout="30 s")))
    began = clock.now
    stream.submit(chunk_of([1]))
    assert everything(stream)[0].code is ErrorCode.SERVER_UNAVAILABLE
    assert len(clock.sleeps) < 40
    assert clock.now - began <= 30.0
    stream.close()


def test_the_deadline_begins_anew_once_results_have_come():
    def one_result_a_stream(requests):
        next(requests)
        yield opened(timeout="3 s")
        message = next(requests)
        clock.now += 2.0
        yield result(0, [numbers(message)[0] + 1])
        raise TransportLost("UNAVAILABLE: gone again")

    clock = Clock()
    stream, _ = timed(call_of(plus_one), Scripted(one_result_a_stream), clock)
    stream.submit(chunk_of(range(20)))
    assert everything(stream) == {row: row + 1 for row in range(20)}
    assert stream.replays == 19
    stream.close()


def test_nothing_at_the_target_is_an_error_after_the_time_to_connect():
    clock = Clock()
    with pytest.raises(ServerUnavailable, match=f"function {plus_one.spec.key}: no server at nowhere:1: UNAVAILABLE"):
        timed(call_of(plus_one, target="nowhere:1", connect_seconds=5.0), Scripted(gone), clock)
    assert 5.0 - BACKOFF_SECONDS[1] <= clock.now - 1000.0 <= 5.0


def test_something_else_at_the_target_is_an_error_at_once():
    def elsewhere(requests):
        raise NotARemoteUdfServer("the server at x offers no UdfService")
        yield

    clock = Clock()
    with pytest.raises(NotARemoteUdfServer):
        timed(call_of(plus_one), Scripted(elsewhere), clock)
    assert clock.sleeps == []


# Refusals.


def refusing(**arguments):
    def script(requests):
        next(requests)
        yield refused(**arguments)

    return script


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


def test_a_code_of_a_newer_server_is_an_internal_error_with_its_words():
    with pytest.raises(StreamError, match="INTERNAL: on fire"):
        timed(call_of(plus_one), Scripted(refusing(code="TEAPOT", retryable=False, message="on fire")))


# Messages too large.


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


# Accounting, and servers that break the protocol.


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


def test_finishing_with_rows_under_way_is_refused():
    stream, _ = timed(call_of(plus_one), Scripted(answering()))
    stream.submit(chunk_of([1, 2]))
    with pytest.raises(AccountingMismatch, match="2 rows without an outcome"):
        stream.finish()
    stream.close()


def test_retries_and_skipped_rows_are_counted():
    def then(requests):
        to_the_end(requests)
        yield finished(3, failed=1, skipped=1, retries=5)

    first = result(0, [None, None, 4], {0: row_error()}, skipped=1)
    stream, _ = timed(call_of(plus_one), Scripted(answering(first, then=then)))
    stream.submit(chunk_of([1, None, 3]))
    everything(stream)
    counts = stream.finish()
    assert (counts.rows_ok, counts.rows_failed, counts.rows_skipped, counts.retries) == (1, 1, 1, 5)


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


# Ends.


def test_closing_wakes_a_thread_that_waits_for_outcomes():
    transport = Scripted(answering(SILENCE))
    stream = stream_of(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    received = []
    reader = threading.Thread(target=lambda: received.append(stream.receive()))
    reader.start()
    stream.close()
    stream.close()
    reader.join(10)
    assert received == [[]]
    assert len(transport.streams) == 1


def test_closing_wakes_a_thread_that_waits_for_the_next_attempt():
    asked_to_wait = threading.Event()

    def later(requests):
        asked_to_wait.set()
        yield from refusing(retry_after=100.0)(requests)

    stream = stream_of(call_of(plus_one), Scripted(answering(then=lost), later))
    stream.submit(chunk_of([1]))
    reader = threading.Thread(target=stream.receive)
    reader.start()
    assert asked_to_wait.wait(10)
    stream.close()
    reader.join(10)
    assert not reader.is_alive()


def test_closing_wakes_a_thread_that_waits_for_a_server_to_open():
    opening = threading.Event()

    def slow(requests):
        opening.set()
        yield SILENCE

    transport = Scripted(answering(then=lost), slow)
    stream = stream_of(call_of(plus_one), transport)
    stream.submit(chunk_of([1]))
    received = []
    reader = threading.Thread(target=lambda: received.append(stream.receive()))
    reader.start()
    assert opening.wait(10)
    stream.close()
    reader.join(10)
    assert received == [[]]
    assert transport.streams[1].cancelled.is_set()


def test_room_does_not_appear_because_the_server_is_lost():
    opening, go_on = threading.Event(), threading.Event()

    def slow(requests):
        opening.set()
        assert go_on.wait(10)
        yield from honest(requests)

    full = answering(then=lost, buffer_capacity=10)
    stream = stream_of(call_of(plus_one), Scripted(full, slow))
    while stream.has_room():
        stream.submit(chunk_of(range(stream.next_rows(100, 8.0))))
    under_way = stream.unanswered
    reader = threading.Thread(target=stream.receive)
    reader.start()
    assert opening.wait(10)
    assert (stream.has_room(), stream.unanswered) == (False, under_way)
    go_on.set()
    reader.join(10)
    stream.close()


def test_one_thread_submits_while_another_receives_and_servers_come_and_go():
    def short_lived(requests):
        for sent, message in enumerate(honest(requests, ordered=False)):
            if sent == 7:
                raise TransportLost("UNAVAILABLE: gone again")
            yield message

    stream = stream_of(call_of(plus_one), Scripted(short_lived), sleep=lambda _: None)
    found, submitted = {}, threading.Event()

    def receive():
        while len(found) < 2000 and not stopped.is_set():
            for answer in stream.receive():
                for index, row in enumerate(answer.rows):
                    assert int(row) not in found
                    found[int(row)] = answer.values[index].as_py()
            submitted.wait(0.001)

    stopped = threading.Event()
    reader = threading.Thread(target=receive)
    reader.start()
    for start in range(0, 2000, 10):
        stream.submit(chunk_of(range(start, start + 10), start))
    submitted.set()
    reader.join(30)
    stopped.set()
    assert found == {row: row + 1 for row in range(2000)}
    assert stream.replays > 20
    stream.close()
