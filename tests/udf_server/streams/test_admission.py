"""Admission: the limits of a server over all streams, and the handling of streams that exceed them."""

import asyncio
import threading

import pytest

import udf_server as udf
from remote_udf.errors import StreamError
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.talk import Talk, batch, eventually
from udf_server.streams import services
from udf_server.streams.services import Admission, AdmissionLimits


async def test_streams_wait_for_room_and_one_with_nothing_in_flight_is_sent_elsewhere(monkeypatch):
    monkeypatch.setattr(services, "PATIENCE_SECONDS", 0.05)
    admission = Admission(AdmissionLimits(function_rows=100, server_bytes=1000))
    await admission.take("f@1", 500, 10, patient=lambda: False)  # larger than the limit, but nothing else is there
    await admission.take("g@1", 100, 10, patient=lambda: False)
    with pytest.raises(StreamError, match=r"OVERLOADED: function f@1 has 500 rows in flight; max_function_rows is 100"):
        await admission.take("f@1", 1, 10, patient=lambda: False)
    with pytest.raises(StreamError, match=r"the server holds 20 bytes in flight; max_server_bytes is 1000") as caught:
        await admission.take("h@1", 1, 990, patient=lambda: False)
    assert (caught.value.retryable, caught.value.retry_after) == (True, 1.0)
    waiting = asyncio.create_task(admission.take("f@1", 1, 10, patient=lambda: True))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    admission.give_back("f@1", 500, 10)
    await waiting
    assert (admission.rows("f@1"), admission.bytes) == (1, 20)


async def test_a_stream_whose_rows_are_answered_while_it_waits_for_room_is_sent_elsewhere(monkeypatch):
    """It has nothing in flight any more, so its client, which hears nothing, would take the server for lost."""
    monkeypatch.setattr(services, "PATIENCE_SECONDS", 0.05)
    admission, may_return = Admission(AdmissionLimits(function_rows=10)), threading.Event()

    @udf.scalar
    def f(x: int) -> int:
        may_return.wait(20)
        return x

    await admission.take("f@1", 9, 10, patient=lambda: False)  # of another stream
    async with Talk(f, admission=admission) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]), batch(1, 1, [2, 3]))
        await eventually(lambda: not talk.unread)
        may_return.set()
        assert (await talk.receive()).result.rows == 1
        error = (await talk.receive()).error
    assert (error.code, error.retryable) == ("OVERLOADED", True)
    assert error.message == "function f@1 has 9 rows in flight; max_function_rows is 10"


def test_a_full_server_slows_streams_down_and_loses_no_row(serve):
    @udf.scalar(name="f", timeout="60 s", buffer_capacity=500)
    async def waits(x: int) -> int:
        await asyncio.sleep(0.001)
        return x

    serving = serve(waits, max_function_rows=600)
    found = []

    def run():
        call = call_of(waits, serving.target, batch_rows=250)
        stream = stream_of(call, transport_for(call.config))
        for start in range(0, 1000, 250):
            stream.submit(chunk_of(range(start, start + 250), start))
        found.append(everything(stream))
        stream.finish()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [{row: row for row in range(1000)}] * 4
    assert serving.server.service.admission.rows("f@1") == 0
    assert serving.server.service.admission.bytes == 0


def test_messages_have_no_more_rows_than_the_server_takes(serve):
    @udf.scalar
    def plus_one(x: int) -> int:
        return x + 1

    serving = serve(plus_one, max_stream_rows=100)
    call = call_of(plus_one, serving.target)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of(range(1_000)))
    assert everything(stream) == {row: row + 1 for row in range(1_000)}
    stream.finish()
    assert stream.message_rows <= 100
