"""CallStream with several threads: closing wakes those that wait."""

import threading

from spark_client.base.transport import TransportLost
from tests.spark_client.scripted import (
    SILENCE,
    Scripted,
    call_of,
    chunk_of,
    honest,
    stream_of,
)
from tests.spark_client.streams import answering, lost, plus_one, refusing


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
    in_flight = stream.unanswered
    reader = threading.Thread(target=stream.receive)
    reader.start()
    assert opening.wait(10)
    assert (stream.has_room(), stream.unanswered) == (False, in_flight)
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
    assert stream.statistics.replays > 20
    stream.close()
