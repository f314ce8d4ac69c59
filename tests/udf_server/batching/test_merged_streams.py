"""Merged calls and the streams of their rows: shares, streams that end, and streams that do not read."""

import asyncio
import collections
import gc
import itertools
import weakref
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from tests.properties import examples
from tests.udf_server.merging import DELAY, host_of, recorded
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.base.fairness import Party, Priority
from udf_server.batching.row_queue import CallerRows, Part, RowQueue, caller_shares, fair_shares
from udf_server.runners.runner import InputBatch
from udf_server.security.access import Caller
from udf_server.streams.services import StreamLimits


async def test_rows_of_a_stream_that_ended_are_taken_out():
    calls: list[list[int]] = []
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    @udf.scalar(batched=True, max_queue_delay="0 s", name="f")
    def f(a: list[int]) -> list[int]:
        calls.append(a)
        if a == [0]:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)
        return a

    host = host_of(f)
    async with Talk(f, host=host) as first:
        await first.open()
        first.send(batch(0, 0, [0]))
        await eventually(lambda: calls == [[0]])
        async with Talk(host=host) as other:
            await other.open()
            other.send(batch(0, 0, [7, 7]))
            await eventually(lambda: other.unread == 0)
            first.send(batch(1, 1, [1]), finish())
            await eventually(lambda: first.unread == 0)
            await other.lose()
            gate.set()
            await first.receive()
            await first.receive()
    assert calls == [[0], [1]]


async def test_a_stream_that_does_not_read_holds_up_no_other():
    calls: list[list[int]] = []
    f = recorded(calls, max_queue_delay="1 ms", batch_rows=10)
    host = host_of(f)
    limits = StreamLimits(result_bytes=100)
    async with Talk(f, host=host, limits=limits) as slow, Talk(host=host) as other:
        await slow.open()
        await other.open()
        slow.reads.clear()
        for number in range(20):
            slow.send(batch(number, 5 * number, range(5)))
        await eventually(lambda: slow.metrics.registry.get_sample_value(
            "udf_result_waits_total", {"function": "f", "version": "1"}) == 1)  # fmt: skip
        for number in range(50):
            other.send(batch(number, number, [1]))
            assert (await other.receive()).result.rows == 1
        assert sum(call.count(0) for call in calls) < 10
        slow.reads.set()
        slow.send(finish())
        rows = 0
        while (answer := await slow.receive()).HasField("result"):
            rows += answer.result.rows
        assert (rows, answer.finished.counts.rows_ok) == (100, 100)


@pytest.mark.parametrize("kind", ["good", "raises", "flaky", "threads", "hedged"])
async def test_a_stream_that_has_ended_is_freed_without_the_collector(kind):
    def body(a: list[int]) -> Any:
        if kind == "raises" and 1 in a:
            raise ValueError
        return [udf.Failure("busy", retryable=True) if kind == "flaky" and each == 1 else each for each in a]

    def threads(a: list[int]) -> list[int]:
        return body(a)

    async def coroutines(a: list[int]) -> list[int]:
        await asyncio.sleep(0.01 if kind == "hedged" else 0.0)
        return body(a)

    hedges = {"idempotent": True, "hedge_after": "1 ms", "hedge_share": 1} if kind == "hedged" else {}
    how = {"batched": True, "max_queue_delay": DELAY, "fixed_delay": "1 ms", "name": "f", **hedges}
    function = udf.scalar(**how)(threads if kind == "threads" else coroutines)
    gc.disable()
    try:
        async with Talk(function) as talk:
            await talk.open()
            talk.send(batch(0, 0, [0, 1, 2]), finish())
            while not (await talk.receive()).HasField("finished"):
                pass
            await talk.ended()
            await talk.lose()
            await eventually(lambda: talk.running is None)
    finally:
        gc.enable()


def test_the_queue_keeps_few_parts_whose_rows_were_taken():
    queue, stuck, kept = RowQueue(), object(), []
    for number in range(10_000):
        stream, column = stuck if number == 0 else None, pa.array([1])
        kept.append(weakref.ref(column))
        queue.push(Party("caller"), Part(stream, InputBatch(0, 1, None), [column], None, 1, 1.0, float(number)))
        queue.take(10, 1000, mix_callers=True, held_up={stuck})
    assert (queue.rows, queue.oldest(())) == (1, 0.0)
    del column
    assert sum(each() is not None for each in kept) < 200


async def test_callers_and_then_streams_get_equal_shares():
    calls: list[list[int]] = []
    gate = asyncio.Event()

    @udf.scalar(batched=True, max_queue_delay="0 s", batch_rows=12, name="f")
    async def f(a: list[int]) -> list[int]:
        calls.append(a)
        if a == [0]:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), server_loop))
        return a

    server_loop = asyncio.get_running_loop()
    host = host_of(f)
    async with (
        Talk(f, host=host, caller=Caller("x")) as one, Talk(host=host, caller=Caller("x")) as two,
        Talk(host=host, caller=Caller("y")) as three,
    ):  # fmt: skip
        for talk in (one, two, three):
            await talk.open()
        one.send(batch(0, 0, [0]))
        await eventually(lambda: calls == [[0]])
        one.send(batch(1, 1, [1] * 100))
        two.send(batch(0, 0, [2] * 100))
        three.send(batch(0, 0, [3] * 100))
        await eventually(lambda: one.unread + two.unread + three.unread == 0)
        await asyncio.sleep(0)
        gate.set()
        await eventually(lambda: len(calls) > 20)
    assert [calls[1].count(each) for each in (1, 2, 3)] == [3, 3, 6]
    assert [calls[5].count(each) for each in (1, 2, 3)] == [3, 3, 6]


async def test_mix_callers_false_keeps_callers_apart(environment):
    calls: list[list[int]] = []
    f = recorded(calls, mix_callers=False)
    results = await environment.run_streams(f, [([1],), ([2],), ([1],)], callers=["a", "b", "a"])
    assert [result.to_pylist() for result in results] == [[2], [3], [2]]
    assert sorted(calls) == [[1, 1], [2]]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_fair(wants, total):
    shares = fair_shares(wants, total)
    assert sum(shares) == min(total, sum(wants))
    for want, share in zip(wants, shares, strict=True):
        assert 0 <= share <= want
        if share < want:
            assert max(shares, default=0) <= share + 1


@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(1, 200),
)
def test_callers_get_rows_of_common_calls_by_their_shares_and_all_of_what_is_there(drawn, total, calls):
    callers = [CallerRows(Party(str(place), share=share)) for place, (share, _) in enumerate(drawn)]
    wants = [want for _, want in drawn]
    got = [0] * len(callers)
    for _ in range(calls):
        given_ = caller_shares(callers, wants, total)
        assert sum(given_) == min(total, sum(wants))
        assert all(0 <= rows <= want for rows, want in zip(given_, wants, strict=True))
        got = [sum(pair) for pair in zip(got, given_, strict=True)]
    unmet = [place for place, want in enumerate(wants) if got[place] < want * calls]
    for one in unmet:
        for place, share in enumerate(each for each, _ in drawn):
            # Nobody gets more for its share than one that wants more, but for what is rounded in a call.
            assert got[place] / share <= (got[one] + 3) / drawn[one][0] + 3 / share


def test_callers_of_batch_get_what_interactive_ones_leave():
    callers = [
        CallerRows(Party("a")),
        CallerRows(Party("b", priority=Priority.INTERACTIVE)),
        CallerRows(Party("c", share=3.0)),
    ]
    assert caller_shares(callers, [50, 4, 50], 20) == [4, 4, 12]
    assert caller_shares(callers, [50, 30, 50], 20) == [0, 20, 0]


@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize("large_rows", [False, True])
def test_rows_of_a_queue_are_taken_three_to_one(mix, large_rows):
    queue, taken = RowQueue(), collections.Counter()
    column = pa.array(["x" * 1000 if large_rows else "x"] * 4000)
    for party in (Party("three", share=3.0), Party("one")):
        queue.push(party, Part(party.caller, InputBatch(0, 4000, None), [column], None, 4000, 1.0, 0.0))
    for _ in range(200):
        for piece in queue.take(10, 8_000, mix_callers=mix, held_up=()):
            taken[piece.part.stream] += len(piece)
    assert taken["three"] / taken["one"] == pytest.approx(3, rel=0.05)


SIZES = st.sampled_from([0, 1, 1, 10, 100, 1000, 5000])


@examples(100)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(SIZES, min_size=1, max_size=30)), min_size=1, max_size=12),
    st.integers(1, 20), st.integers(1, 6000), st.booleans(),
)  # fmt: skip
def test_calls_have_few_enough_bytes_and_no_stream_waits_for_ever(parts, most_rows, most_bytes, mix):
    """Six streams of three callers, whose rows differ in size; the first one always sends more rows."""
    queue = RowQueue()
    waiting: dict[int, collections.deque[str]] = {stream: collections.deque() for stream in range(6)}

    def push(stream: int, sizes: list[int]) -> None:
        texts = [letter * size for letter, size in zip(itertools.cycle("abc"), sizes, strict=False)]
        column = pa.array(["before", *texts], pa.string())[1:]
        rows = len(sizes)
        part = Part(stream, InputBatch(0, rows, None), [column], None, rows, 1.0, 0.0)
        queue.push(Party(f"caller {stream % 3}"), part)
        waiting[stream].extend(texts)

    for part in parts:
        push(*part)
    idle = dict.fromkeys(waiting, 0)
    for turn in range(80):
        if turn < 50:
            push(0, [10] * 20)
        slices = queue.take(most_rows, most_bytes, mix_callers=mix, held_up=())
        columns = [piece.part.columns[0].slice(piece.start, len(piece)) for piece in slices]
        for piece, column in zip(slices, columns, strict=True):
            assert column.to_pylist() == [waiting[piece.part.stream].popleft() for _ in column]
        count = sum(map(len, columns))
        assert count <= most_rows
        assert count <= 1 or sum(column.nbytes for column in columns) <= most_bytes
        served = {piece.part.stream for piece in slices}
        idle = {stream: 0 if stream in served or not waiting[stream] else turns + 1 for stream, turns in idle.items()}
        assert max(idle.values()) <= 12
        assert queue.rows == sum(map(len, waiting.values()))
    # Rows of 5,000 bytes may still wait; without rows there are no bytes.
    while queue.rows:
        queue.take(1000, 1 << 20, mix_callers=True, held_up=())
    assert queue.bytes == 0
