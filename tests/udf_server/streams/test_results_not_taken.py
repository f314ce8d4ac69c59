"""Results that a client does not read: the function waits, and neither the server nor its neighbours suffer."""

import asyncio
import gc
import threading
import weakref

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.streams.services import StreamLimits

LIMIT = 1 << 20
VALUE = 50_000
ROWS = 400
"""Their values are twenty times the limit."""
made: list[int] = []
"""Rows whose values were made."""


def value(x: int) -> str:
    made.append(x)
    return f"{x:09}" + "x" * (VALUE - 9)


@pytest.fixture(autouse=True)
def _nothing_made():
    made.clear()


@udf.scalar
async def in_a_loop(x: int) -> str:
    return value(x)


@udf.scalar
async def in_a_loop_waiting(x: int) -> str:
    await asyncio.sleep(0)
    return value(x)


@udf.scalar
def in_threads(x: int) -> str:
    return value(x)


@udf.scalar(vectorized=True)
def vectorized(x: pa.Int64Array) -> pa.StringArray:
    return pa.array([value(each) for each in x.to_pylist()])


@udf.scalar(vectorized=True)
async def vectorized_in_a_loop(x: pa.Int64Array) -> pa.StringArray:
    return pa.array([value(each) for each in x.to_pylist()])


@udf.scalar
async def nested_in_a_loop(x: int) -> list[dict[str, str]]:
    return [{"a": value(x)}]


KINDS = [in_a_loop, in_a_loop_waiting, nested_in_a_loop, in_threads, vectorized, vectorized_in_a_loop]
MODES = ["ordered", "unordered"]
each_kind = pytest.mark.parametrize("function", KINDS, ids=lambda function: function.spec.name)
each_mode = pytest.mark.parametrize("mode", MODES)
# Rows of a vectorized function come in small calls, of which each result is a fraction of the limit.
SMALL_CALLS = {"buffer-capacity": "5"}


def waits(talk, function):
    """Returns how often the function has waited so far."""
    return talk.metric("udf_result_waits_total", function=function.spec.name, version="1")


async def at_rest():
    """Waits until no result is produced any more: a call takes far less than the observed interval."""
    before = -1
    while before < len(made):
        before = len(made)
        await asyncio.sleep(0.05)


async def rest_of(talk, rows):
    """Reads on until every row is answered."""
    answered = 0
    while answered < rows:
        answered += (await talk.receive()).result.rows
    assert answered == rows


@each_mode
@each_kind
async def test_a_function_waits_while_its_results_are_not_taken(function, mode):
    async with Talk(function, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open(function.spec.name, options={"output-mode": mode, **SMALL_CALLS})
        talk.reads.clear()
        talk.send(batch(0, 0, range(ROWS // 2)), batch(1, ROWS // 2, range(ROWS // 2)), finish())
        await eventually(lambda: waits(talk, function))
        await at_rest()
        # The limit, what is in flight, and what a turn of a loop makes before it looks.
        assert len(made) * VALUE < 4 * LIMIT + 64 * VALUE
        assert talk.stream.results_held[1] < 4 * LIMIT
        talk.reads.set()
        await rest_of(talk, ROWS)
        assert (await talk.receive()).finished.counts.rows_in == ROWS
        await talk.ended()
    assert len(made) == ROWS


@pytest.mark.slow
async def test_errors_are_results_too():
    @udf.scalar
    def fails(x: int) -> int:
        raise ValueError(value(x))

    async with Talk(fails, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open("fails")
        talk.reads.clear()
        talk.send(batch(0, 0, range(5_000)), finish())
        await eventually(lambda: waits(talk, fails))
        await at_rest()
        # A thousand characters of each travel.
        assert len(made) * 1_000 < 4 * LIMIT
        talk.reads.set()
        await rest_of(talk, 5_000)


@each_kind
async def test_a_result_larger_than_the_limit_is_alone_in_the_room(function):
    async with Talk(function, limits=StreamLimits(result_bytes=1)) as talk:
        await talk.open(function.spec.name, options={"buffer-capacity": "1"})
        talk.send(batch(0, 0, range(20)), finish())
        await rest_of(talk, 20)
        assert (await talk.receive()).WhichOneof("response") == "finished"
        await talk.ended()


async def test_ordered_rows_behind_a_slow_one_wait_for_it_and_then_leave():
    go_on = threading.Event()

    @udf.scalar(buffer_capacity=10)
    def f(x: int) -> str:
        if x == 0:
            go_on.wait(20)
        return value(x)

    async with Talk(f, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open("f")
        talk.send(batch(0, 0, range(ROWS)), finish())
        await eventually(lambda: waits(talk, f))
        await at_rest()
        assert len(made) * VALUE < 2 * LIMIT + 64 * VALUE
        go_on.set()
        await rest_of(talk, ROWS)


async def test_a_row_that_is_given_up_does_not_hold_the_others_for_ever():
    @udf.scalar(buffer_capacity=10, timeout="0.3 s")
    async def f(x: int) -> str:
        if x == 0:
            await asyncio.sleep(3600)
        return value(x)

    async with Talk(f, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open("f")
        talk.send(batch(0, 0, range(ROWS)), finish())
        await rest_of(talk, ROWS)
        counts = (await talk.receive()).finished.counts
        assert (counts.rows_ok, counts.rows_failed) == (ROWS - 1, 1)


@udf.scalar(nulls="skip")
async def skipping(x: int) -> str:
    return value(x)


@udf.scalar(nulls="skip")
def skipping_in_threads(x: int) -> str:
    return value(x)


@udf.scalar(nulls="skip", vectorized=True)
def skipping_vectorized(x: pa.Int64Array) -> pa.StringArray:
    return pa.array([value(each) for each in x.to_pylist()])


@each_mode
@pytest.mark.parametrize(
    "function", [skipping, skipping_in_threads, skipping_vectorized], ids=lambda function: function.spec.name
)
async def test_skipped_rows_are_counted_where_they_are_however_the_results_of_a_batch_are_cut(function, mode):
    """Most of them at the end, beside values that leave in many messages."""
    values = [None, *range(60), None, *range(200, 260), *([None] * 200)]
    async with Talk(function, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open(function.spec.name, options={"output-mode": mode, **SMALL_CALLS})
        talk.send(batch(0, 0, values), finish())
        results, rows = [], 0
        while rows < len(values):
            results.append((await talk.receive()).result)
            rows += results[-1].rows
        assert len(results) > 5
        assert all(result.skipped <= result.rows for result in results)
        counts = (await talk.receive()).finished.counts
        assert (counts.rows_in, counts.rows_ok, counts.rows_skipped) == (322, 120, 202)


@pytest.mark.slow
@each_kind
async def test_a_neighbour_of_a_client_that_reads_nothing_is_served(function):
    """Many such clients call the same function, on the same threads and the same loop."""
    limits = StreamLimits(result_bytes=LIMIT)
    async with Talk(function, limits=limits) as first:
        talks = [first]
        try:
            for _ in range(70):
                talk = await Talk(host=first.host, limits=limits, metrics=first.metrics).__aenter__()
                talks.append(talk)
                await talk.open(function.spec.name, options=SMALL_CALLS)
                talk.reads.clear()
                before = waits(first, function)
                talk.send(batch(0, 0, range(60)))
                await eventually(lambda before=before: waits(first, function) > before)
            await first.open(function.spec.name, options=SMALL_CALLS)
            first.send(batch(0, 0, range(ROWS)), finish())
            await rest_of(first, ROWS)
        finally:
            for talk in talks[1:]:
                await talk.lose()


@each_mode
@each_kind
async def test_a_stream_whose_client_vanishes_in_the_middle_of_a_write_is_freed_at_once(function, mode):
    gc.disable()
    try:
        async with Talk(function, limits=StreamLimits(result_bytes=LIMIT)) as talk:
            await talk.open(function.spec.name, options={"output-mode": mode, **SMALL_CALLS})
            talk.reads.clear()
            talk.send(batch(0, 0, range(ROWS)))
            await eventually(lambda: waits(talk, function))
            stream, runner = weakref.ref(talk.stream), weakref.ref(talk.stream.call.runner)
            room = weakref.ref(talk.stream.call.room)
            await talk.lose()
            await eventually(lambda: stream() is None and runner() is None and room() is None)
    finally:
        gc.enable()
