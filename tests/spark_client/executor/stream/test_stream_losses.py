"""CallStream when servers are lost: no row is lost, and a clock limits the attempts."""

import pytest

from remote_udf.errors import ErrorCode
from spark_client.base.errors import NotARemoteUdfServer, ServerUnavailable
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.connecting import BACKOFF_SECONDS
from tests.spark_client.scripted import (
    Clock,
    Scripted,
    call_of,
    chunk_of,
    everything,
    gone,
    honest,
    numbers,
    opened,
    result,
    scattered,
)
from tests.spark_client.streams import answering, lost, plus_one, timed


def breaking_before(count, ordered):
    """A server like `honest` that disappears instead of sending its message number `count`."""

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
        assert (len(transport.streams), stream.statistics.replays, len(resent)) == (2, 0, 5)
    elif count <= 5:
        # Opened was the first message; rows that the others answered are not sent again.
        assert (len(transport.streams), stream.statistics.replays, counts.rows_in) == (2, 1, 10 * (6 - count))
    elif count == 6:
        # Only the counts were lost.
        assert (len(transport.streams), stream.statistics.replays, counts.rows_in) == (1, 0, 0)
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
    transport.scripts[len(transport.streams) :] = [honest]
    stream.submit(chunk_of([5, 6]))
    assert everything(stream) == {0: 6, 1: 7}
    assert stream.finish().rows_in == 2


def test_attempts_to_reach_a_server_back_off_with_jitter():
    stream, clock = timed(call_of(plus_one), Scripted(answering(then=lost, timeout="60 s"), gone))
    stream.submit(chunk_of([1]))
    everything(stream)
    first, longest = BACKOFF_SECONDS
    # The first attempt is immediate.
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
    assert stream.statistics.replays == 19
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
