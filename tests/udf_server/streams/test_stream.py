"""One Execute stream, message by message: opening, results, violations, cancellation, limits, accounting."""

import asyncio
import threading

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.arrow import read_schema
from remote_udf.errors import ErrorCode
from remote_udf.messages import encode
from remote_udf.v1 import function_pb2
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.talk import LONGS, Talk, batch, eventually, finish, opening
from udf_server.streams.services import StreamLimits


@udf.scalar(name="f", timeout="5 s")
async def same(a: int) -> int:
    if a < 0:
        raise ValueError("negative")
    return a


@udf.scalar(name="f", nulls="skip", timeout="5 s")
def thread_same(a: int) -> int:
    if a < 0:
        raise ValueError("negative")
    return a


def cancel():
    return encode(pb.ExecuteRequest(cancel=pb.Cancel(reason="enough")))


async def test_opened_pins_version_types_and_options():
    async with Talk(same) as talk:
        opened = await talk.open(options={"max-attempts": "7"})
        assert (opened.version, opened.execution) == ("1", function_pb2.EXECUTION_ASYNC_ROWS)
        assert read_schema(opened.result).field("value").type == pa.int64()
        assert (opened.options["max-attempts"], opened.options["timeout"]) == ("7", "5 s")
        assert opened.max_message_bytes == StreamLimits().message_bytes
        assert 0 < opened.progress_interval.ToMilliseconds() <= 5000


@pytest.mark.parametrize("function", [same, thread_same], ids=["async", "threads"])
async def test_every_row_is_answered_and_the_counts_add_up(function):
    async with Talk(function) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1, -1, 2]), batch(1, 3, [-5, 7]), finish())
        results = [await talk.receive() for _ in range(2)]
        assert sorted((answer.result.first_row, answer.result.rows) for answer in results) == [(0, 3), (3, 2)]
        counts = (await talk.receive()).finished.counts
        assert (counts.rows_in, counts.rows_ok, counts.rows_failed, counts.rows_skipped) == (5, 3, 2, 0)
        await talk.ended()
        labels = {"function": "f", "version": "1"}
        assert talk.metric("udf_rows_total", outcome="ok", **labels) == 3
        assert talk.metric("udf_rows_total", outcome="failed", **labels) == 2
        assert talk.metric("udf_row_errors_total", code="FUNCTION_ERROR", **labels) == 2
        assert talk.metric("udf_rows_in_flight", **labels) == 0
        assert talk.metric("udf_streams_open", **labels) == 0
        assert talk.metric("udf_streams_total", end="finished", **labels) == 1


async def test_a_stream_without_rows_finishes():
    async with Talk(same) as talk:
        await talk.open()
        talk.send(finish())
        assert (await talk.receive()).finished.counts == pb.StreamCounts()
        await talk.ended()


WRONG_BATCH = batch(0, 0, [1, 2], rows=3)
VIOLATIONS = [
    ("a batch first", [batch(0, 0, [1])], "batch while the stream is new"),
    ("nothing known", [encode(pb.ExecuteRequest())], "a message without a request in it"),
    ("not a message", [b"\xff\xff\xff"], "not a ExecuteRequest|cut short|wire type"),
    ("text", [b"GET / HTTP/1.1\r\n\r\n"], "wire type|cut short|not a ExecuteRequest|64 bits"),
    ("two opens", [opening(), opening()], "open while the stream is open"),
    ("a gap", [opening(), batch(1, 0, [1])], "batch 1 where batch 0 was due"),
    ("rows twice", [opening(), batch(0, 0, [1]), batch(1, 0, [1])], "batch 1 starts at row 0, not 1"),
    ("no rows", [opening(), batch(0, 0, [])], "batch 0 has 0 rows"),
    ("other rows than announced", [opening(), WRONG_BATCH], "announced with 3 rows has 2"),
    ("a batch after finish", [opening(), batch(0, 0, [1]), finish(), batch(1, 1, [1])], "batch while the stream is"),
    ("no schema", [opening(arguments=b"nonsense")], "not an Arrow schema"),
    (
        "batch without data",
        [opening(), encode(pb.ExecuteRequest(batch=pb.Batch(rows=1)), [b"junk"])],
        "no batch of schema",
    ),
]


@pytest.mark.parametrize(("messages", "why"), [row[1:] for row in VIOLATIONS], ids=[row[0] for row in VIOLATIONS])
async def test_a_message_that_is_not_due_ends_the_stream_with_a_protocol_error(messages, why):
    block = threading.Event()

    @udf.scalar(name="f")
    def slow(a: int) -> int:
        block.wait(20)
        return a

    async with Talk(slow) as talk:
        talk.send(*messages)
        answer = await talk.receive()
        if answer.WhichOneof("response") == "opened":
            answer = await talk.receive()
        block.set()
        assert (answer.error.kind, answer.error.code) == (pb.Error.KIND_PROTOCOL, "PROTOCOL_VIOLATION")
        assert not answer.error.retryable
        import re

        assert re.search(why, answer.error.message), answer.error.message
        await talk.ended()


STRINGS = pa.schema([("a0", pa.string())])
REFUSALS = [
    ({"protocol": 99}, "UNSUPPORTED_PROTOCOL", "revision 99 of the protocol, this server 1: install"),
    ({"function": "g"}, "UNKNOWN_FUNCTION", "no function 'g' (known: f)"),
    ({"version": "9"}, "UNKNOWN_VERSION", "function 'f' has no version '9' (known: 1)"),
    ({"fingerprint": "0123456789abcdef"}, "FUNCTION_CHANGED", "it is now f(a bigint) -> bigint"),
    ({"schema": pa.schema([])}, "ARGUMENT_COUNT", "f(a bigint) -> bigint"),
    ({"schema": STRINGS}, "ARGUMENT_TYPE", "parameter 'a': expected bigint, found string"),
    ({"schema": pa.schema([("a0", pa.uint8())])}, "ARGUMENT_TYPE", "does not exist in Spark"),
    ({"options": {"time": "1 s"}}, "INVALID_OPTION", "unknown option 'time', did you mean 'timeout'?"),
    ({"options": {"timeout": "soon"}}, "INVALID_OPTION", "call of f@1: option 'timeout'"),
]


@pytest.mark.parametrize(("fields", "code", "why"), REFUSALS, ids=[row[1] for row in REFUSALS])
async def test_what_does_not_fit_is_refused_before_a_row_is_sent(fields, code, why):
    async with Talk(same) as talk:
        talk.send(opening(**fields))
        error = (await talk.receive()).error
        assert (error.kind, error.code, error.retryable) == (pb.Error.KIND_PROTOCOL, code, False)
        assert why in error.message
        await talk.ended()
        assert talk.metric("udf_streams_rejected_total", code=code) == 1


async def test_cancel_stops_the_calls_and_is_answered():
    cancelled = asyncio.Event()
    loop = asyncio.get_running_loop()
    started = asyncio.Event()

    @udf.scalar(name="f")
    async def wait(a: int) -> int:
        loop.call_soon_threadsafe(started.set)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(cancelled.set)
            raise
        return a

    async with Talk(wait) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]))
        await asyncio.wait_for(started.wait(), 20)
        talk.send(cancel())
        answer = await talk.receive()
        assert (answer.cancelled.counts.rows_in, answer.cancelled.counts.rows_ok) == (1, 0)
        await asyncio.wait_for(cancelled.wait(), 20)
        await talk.ended()
        assert talk.metric("udf_rows_in_flight", function="f", version="1") == 0


@pytest.mark.parametrize("messages", [[cancel()], [None], [opening(), cancel()], [opening(), None]], ids=str)
async def test_a_stream_may_be_cancelled_before_any_row(messages):
    async with Talk(same) as talk:
        talk.send(*messages)
        answers = [await talk.receive() for message in messages]
        assert answers[-1].WhichOneof("response") == "cancelled"
        await talk.ended()


async def test_cancel_after_finish_is_answered():
    async with Talk(stuck := udf.scalar(name="f")(_sleep)) as talk:
        assert stuck.spec.name == "f"
        await talk.open()
        talk.send(batch(0, 0, [1]), finish(), cancel())
        assert (await talk.receive()).WhichOneof("response") == "cancelled"
        await talk.ended()


async def _sleep(a: int) -> int:
    await asyncio.sleep(3600)
    return a


async def test_closing_the_clients_side_after_finish_changes_nothing():
    async with Talk(same) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]), finish(), None)
        assert (await talk.receive()).result.rows == 1
        assert (await talk.receive()).finished.counts.rows_ok == 1
        await talk.ended()


async def test_a_failing_server_ends_a_stream_that_waits_for_nothing_but_results():
    """The client has sent everything and waits; the server must not wait for it."""

    @udf.scalar(name="f", vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        entered.set()
        go_on.wait(20)
        return a

    entered, go_on = threading.Event(), threading.Event()
    async with Talk(f) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]), finish())
        assert await asyncio.to_thread(entered.wait, 20)
        from udf_server.runners.outputs import OutputWriter

        def fail(*_):
            raise RuntimeError("a bug")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OutputWriter, "write", fail)
            go_on.set()
            error = (await talk.receive()).error
            await talk.ended()
        assert (error.kind, error.code) == (pb.Error.KIND_WORKER, "INTERNAL")
        assert "RuntimeError: a bug" in error.message
        assert "in fail" in error.traceback


async def test_a_lost_client_cancels_what_runs():
    cancelled, started = threading.Event(), threading.Event()

    @udf.scalar(name="f")
    async def wait(a: int) -> int:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return a

    async with Talk(wait) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1, 2]))
        assert await asyncio.to_thread(started.wait, 20)
        metric = talk.metric
    assert await asyncio.to_thread(cancelled.wait, 20)
    assert metric("udf_streams_total", function="f", version="1", end="disconnected") == 1
    assert metric("udf_rows_in_flight", function="f", version="1") == 0


async def test_rows_whose_answer_was_on_its_way_to_a_client_that_left_are_counted():
    async with Talk(same) as talk:
        await talk.open()
        talk.reads.clear()
        talk.send(batch(0, 0, [1, -1, 2]))
        await eventually(lambda: talk.writes == 2)
        metric = talk.metric
    assert metric("udf_rows_total", function="f", version="1", outcome="ok") == 2
    assert metric("udf_rows_total", function="f", version="1", outcome="failed") == 1
    assert metric("udf_rows_in_flight", function="f", version="1") == 0


async def test_reading_stops_at_the_limit_of_unanswered_rows_and_goes_on_after_answers():
    gate = threading.Event()

    @udf.scalar(name="f")
    def wait(a: int) -> int:
        gate.wait(20)
        return a

    async with Talk(wait, limits=StreamLimits(unanswered_rows=10)) as talk:
        await talk.open()
        talk.send(*(batch(number, number * 4, [1] * 4) for number in range(10)), finish())
        # Two batches fit, the third waits for room and is read already; the others must not be.
        await eventually(lambda: talk.unread <= 8)
        await asyncio.sleep(0.05)
        assert talk.unread == 8
        assert talk.metric("udf_rows_in_flight", function="f", version="1") == 8
        gate.set()
        answered = 0
        while (answer := await talk.receive()).WhichOneof("response") == "result":
            answered += answer.result.rows
        assert (answered, answer.finished.counts.rows_ok) == (40, 40)


async def test_one_batch_is_read_even_if_it_has_more_bytes_than_a_stream_may_hold():
    async with Talk(same, limits=StreamLimits(unanswered_bytes=10)) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1] * 50), batch(1, 50, [1] * 50), finish())
        results = [(await talk.receive()).result.rows for _ in range(2)]
        assert results == [50, 50]
        assert (await talk.receive()).finished.counts.rows_ok == 100


async def test_heartbeats_are_sent_while_results_are_owed():
    release = threading.Event()

    @udf.scalar(name="f", timeout="600 ms")
    def wait(a: int) -> int:
        if a < 0:
            release.wait(0.5)
        return a

    async with Talk(wait) as talk:
        opened = await talk.open()
        assert opened.progress_interval.ToMilliseconds() == 200
        talk.send(batch(0, 0, [1]))
        assert (await talk.receive()).result.rows == 1
        talk.send(batch(1, 1, [-1]))
        answer = await talk.receive(progress=True)
        assert answer.progress.rows_done == 1
        release.set()


@pytest.mark.slow
async def test_heartbeats_do_not_pile_up_for_a_client_that_does_not_read():
    release = threading.Event()

    @udf.scalar(name="f", timeout="600 ms")
    def wait(a: int) -> int:
        release.wait(5)
        return a

    async with Talk(wait) as talk:
        await talk.open()
        talk.reads.clear()
        talk.send(batch(0, 0, [1]))
        await asyncio.sleep(1.0)
        talk.reads.set()
        signs = 0
        while (await talk.receive(progress=True)).WhichOneof("response") == "progress":
            signs += 1
        # One being written and one behind it; there was time for five.
        assert signs <= 2
        release.set()


async def test_time_spent_on_a_lost_server_counts():
    @udf.scalar(name="f", timeout="10 s")
    async def f(a: int, context: udf.CallContext) -> int:
        remaining.append(context.remaining)
        return a

    remaining: list[float] = []

    async with Talk(f) as talk:
        await talk.open(schema=LONGS)
        message = pb.Batch(sequence=0, first_row=0, rows=1)
        message.waited.FromSeconds(9)
        from remote_udf.arrow import BatchWriter

        data = BatchWriter(LONGS).write(pa.record_batch([pa.array([1])], schema=LONGS))
        talk.send(encode(pb.ExecuteRequest(batch=message), data))
        assert (await talk.receive()).result.rows == 1
        assert 0 < remaining[0] <= 1


async def test_corrupt_values_end_the_stream_and_not_the_process():
    async with Talk(udf.scalar(name="f")(_length)) as talk:
        await talk.open(schema=STRINGS)
        good = batch(0, 0, ["some text"], schema=STRINGS)
        place = good.rindex(b"some text")
        # The end of the only string, moved far beyond its buffer.
        offsets = good.rindex((9).to_bytes(4, "little"), 0, place)
        bad = good[:offsets] + (2**30).to_bytes(4, "little") + good[offsets + 4 :]
        talk.send(bad)
        error = (await talk.receive()).error
        assert error.code == "PROTOCOL_VIOLATION"


def _length(a: str) -> int:
    return len(a)


async def test_a_batch_of_more_rows_than_a_stream_may_hold_is_refused_before_anything_is_made_of_it():
    """The function has no arguments, so its rows take no bytes."""

    @udf.scalar(name="f")
    def one() -> int:
        return 1

    none = pa.schema([])
    for rows, end in ((1_000_000_000, "error"), (1_000_001, "error"), (1_000_000, "result")):
        async with Talk(one) as talk:
            opened = await talk.open(schema=none)
            assert opened.max_batch_rows == 1_000_000
            talk.send(encode(pb.ExecuteRequest(batch=pb.Batch(rows=rows))))
            answer = await talk.receive()
            assert answer.WhichOneof("response") == end
            if end == "error":
                assert answer.error.code == ErrorCode.PROTOCOL_VIOLATION
                assert "not 1 to 1000000" in answer.error.message
