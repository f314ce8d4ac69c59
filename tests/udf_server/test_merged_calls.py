"""Merged calls: rows of several streams in one call, and what stays a matter of each row and stream."""

import asyncio
import gc
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from tests.properties import examples
from tests.udf_server.streams import Talk, batch, eventually, finish, opening
from udf_server.base.errors import DeclarationError
from udf_server.base.metrics import ServerMetrics
from udf_server.batching.row_queue import Part, RowQueue, fair_shares
from udf_server.guards.guard import Guard
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.settings import GuardSettings
from udf_server.hosting.executors import Executors
from udf_server.hosting.function_host import FunctionHost
from udf_server.hosting.registry import Registry
from udf_server.runners.runner import InputBatch
from udf_server.security.access import Caller
from udf_server.streams.accounting import StreamLimits
from udf_server.testing import FunctionEnvironment, ManualClock

DELAY = "1 min"
"""Streams that are open are waited for, so that tests do not depend on speed; nothing waits once all have sent rows."""


def recorded(calls: list[list[int]], **options: Any) -> udf.Function:
    """A list function that notes the rows of each of its calls."""

    @udf.scalar(batched=True, **{"max_queue_delay": DELAY, "name": "f", **options})
    async def f(a: list[int]) -> list[int]:
        calls.append(a)
        await asyncio.sleep(0)
        return [each + 1 for each in a]

    return f


async def test_rows_of_all_streams_meet_in_one_call(environment):
    calls: list[list[int]] = []
    results = await environment.run_streams(recorded(calls), [([1, 2],), ([3],), ([4, 5, 6],)])
    assert [result.to_pylist() for result in results] == [[2, 3], [4], [5, 6, 7]]
    assert sorted(calls[0]) == [1, 2, 3, 4, 5, 6]
    assert len(calls) == 1
    assert sum(result.counts.calls for result in results) == 1


@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
@pytest.mark.parametrize("kind", ["vectorized", "vectorized async", "batched", "batched async"])
async def test_every_kind_of_function_of_many_rows_can_be_merged(environment, kind, output_mode):
    sizes = []

    def body(a: Any) -> Any:
        sizes.append(len(a))
        return a

    code: Any
    if kind == "vectorized":

        def code(a: pa.Int64Array) -> pa.Int64Array:
            return body(a)
    elif kind == "vectorized async":

        async def code(a: pa.Int64Array) -> pa.Int64Array:
            return body(a)
    elif kind == "batched":

        def code(a: list[int]) -> list[int]:
            return body(a)
    else:

        async def code(a: list[int]) -> list[int]:
            return body(a)

    how = {"vectorized": kind.startswith("vectorized"), "batched": kind.startswith("batched")}
    function = udf.scalar(max_queue_delay=DELAY, batch_rows=8, **how)(code)
    streams = [(list(range(100 * number, 100 * number + 10)),) for number in range(4)]
    results = await environment.run_streams(function, streams, batch_rows=3, output_mode=output_mode)
    assert [result.to_pylist() for result in results] == [values for (values,) in streams]
    assert max(sizes) <= 8
    assert len(sizes) < 14  # there are 16 batches


async def test_a_call_has_no_more_bytes_than_batch_bytes(environment):
    calls: list[list[int]] = []
    await environment.run_streams(recorded(calls, batch_bytes=16), [([1, 2],), ([3, 4],)])
    assert [len(call) for call in calls] == [2, 2]


async def test_a_call_waits_for_rows_no_longer_than_max_queue_delay():
    calls: list[list[int]] = []
    clock = ManualClock()
    f = recorded(calls, max_queue_delay="5 ms")
    async with Talk(f, host=_host(f, clock), clock=clock) as one, Talk(host=one.host, clock=clock) as other:
        await one.open()
        await other.open()
        one.send(batch(0, 0, [1]))
        await clock.advance(0.0049)
        assert calls == []  # the other stream may send rows
        await clock.advance(0.0002)
        await eventually(lambda: calls == [[1]])
        await one.receive()
        await clock.advance(1.0)
        other.send(batch(0, 0, [2]))
        await eventually(lambda: calls == [[1], [2]])  # nothing was sent for long, so nothing is expected


async def test_a_single_stream_does_not_wait():
    calls: list[list[int]] = []
    clock = ManualClock()
    async with FunctionEnvironment(clock=clock) as environment:
        result = await environment.run(recorded(calls, max_queue_delay="1 h"), [1, 2], batch_rows=1)
    assert result.to_pylist() == [2, 3]


async def test_no_more_calls_run_at_once_than_instances():
    running, most, lock = 0, 0, threading.Lock()

    @udf.scalar(batched=True, batch_rows=1, max_queue_delay="0 s", instances=3)
    def f(a: list[int]) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return a

    async with FunctionEnvironment() as environment:
        results = await environment.run_streams(f, [(range(5),) for _ in range(4)])
    assert [result.to_pylist() for result in results] == [list(range(5))] * 4
    assert most == 3


async def test_a_poison_row_costs_no_other_row_of_any_stream(environment):
    calls = []

    @udf.scalar(vectorized=True, max_queue_delay=DELAY)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        calls.append(len(a))
        if 13 in a.to_pylist():
            raise ValueError("thirteen")
        return a

    results = await environment.run_streams(f, [(range(10 * number, 10 * number + 10),) for number in range(8)])
    for number, result in enumerate(results):
        assert result.errors.keys() == ({3} if number == 1 else set())
        good = [each for each in range(10 * number, 10 * number + 10) if each != 13]
        assert [each for each in result.values.to_pylist() if each is not None] == good
    assert results[1].errors[3].message == "ValueError: thirteen"
    assert calls[0] == 80
    assert len(calls) <= 15


async def test_only_failed_rows_are_called_again_with_their_own_attempts(environment):
    calls: list[list[int]] = []

    @udf.scalar(batched=True, max_queue_delay=DELAY, fixed_delay="1 ms")
    async def f(a: list[int]) -> list[int | udf.Failure]:
        calls.append(a)
        again = len(calls) == 1
        return [
            udf.Failure("no") if each == 2 else udf.Failure("busy", retryable=True) if each > 4 and again else each
            for each in a
        ]

    one, two = await environment.run_streams(f, [([1, 2, 3],), ([4, 5, 6],)])
    assert one.values.to_pylist() == [1, None, 3]
    assert one.errors[1].message == "no"
    assert two.to_pylist() == [4, 5, 6]
    assert sorted(calls[1]) == [5, 6]
    assert sum(each.counts.retries for each in (one, two)) == 1


@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
async def test_rows_that_fail_one_by_one_are_sent_together(output_mode):
    @udf.scalar(batched=True, max_queue_delay=DELAY, name="f")
    async def f(a: list[int]) -> list[int | udf.Failure]:
        return [udf.Failure("odd") if each % 2 else each for each in a]

    host = _host(f)
    async with Talk(host=host) as one, Talk(host=host) as two:
        for talk in (one, two):
            await talk.open(options={"output-mode": output_mode})
        one.send(batch(0, 0, range(40)), finish())
        two.send(batch(0, 0, range(1, 31)), finish())
        for talk, rows in ((one, 40), (two, 30)):
            assert (await talk.receive()).result.rows == rows
            finished = (await talk.receive()).finished
            assert (finished.counts.rows_ok, finished.counts.rows_failed) == (rows // 2, rows // 2)


async def test_a_retry_delay_does_not_occupy_the_instance():
    clock = ManualClock()
    calls: list[list[int]] = []

    @udf.scalar(batched=True, max_queue_delay="0 s", fixed_delay="10 s", name="f")
    async def f(a: list[int]) -> list[int | udf.Failure]:
        calls.append(a)
        return [udf.Failure("busy", retryable=True) if each == 1 and len(calls) == 1 else each for each in a]

    async with Talk(f, host=_host(f, clock), clock=clock) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1]), batch(1, 1, [2]))
        assert (await talk.receive()).result.first_row == 1
        assert calls == [[1], [2]]
        await clock.advance(10.1)
        assert (await talk.receive()).result.first_row == 0


async def test_a_call_that_exceeds_its_deadline_times_out(environment):
    @udf.scalar(batched=True, max_queue_delay=DELAY, timeout="100 ms", max_attempts=1, name="f")
    async def f(a: list[int]) -> list[int]:
        if 1 in a:
            await asyncio.sleep(3600)
        return a

    for result in await environment.run_streams(f, [([1],), ([2],)]):
        assert result.errors[0].code is ErrorCode.TIMEOUT
    assert (await environment.run(f, [3])).to_pylist() == [3]


async def test_a_thread_that_hangs_is_given_up(environment):
    released = threading.Event()

    @udf.scalar(batched=True, max_queue_delay=DELAY, timeout="100 ms", max_attempts=1, name="f")
    def f(a: list[int]) -> list[int]:
        if 1 in a:
            released.wait(60)
        return a

    result = await environment.run(f, [1])
    assert result.errors[0].code is ErrorCode.TIMEOUT
    assert (await environment.run(f, [3])).to_pylist() == [3]
    released.set()


async def test_a_thread_that_hangs_for_streams_that_are_gone_returns_its_instance():
    began, released = threading.Event(), threading.Event()

    @udf.scalar(batched=True, max_queue_delay="0 s", timeout="100 ms", max_attempts=1, name="f")
    def f(a: list[int]) -> list[int]:
        if 1 in a:
            began.set()
            released.wait(600)
        return a

    host = _host(f)
    async with Talk(host=host) as first, Talk(host=host) as lost:
        await lost.open()
        lost.send(batch(0, 0, [1]))
        await eventually(began.is_set)
        lost._stream.cancel()  # as gRPC does if a client is gone
        await asyncio.wait([lost._stream])
        await first.open(options={"timeout": "30 s"})  # its calls are separate, so it does not check the other one
        first.send(batch(0, 0, [2]), finish())
        try:
            assert (await first.receive()).WhichOneof("response") == "result"
            assert (await first.receive()).WhichOneof("response") == "finished"
        finally:
            released.set()


async def test_a_call_that_is_ready_begins_when_the_one_before_is_given_up(environment):
    released = threading.Event()

    @udf.scalar(batched=True, max_queue_delay="0 s", batch_rows=1, timeout="300 ms", max_attempts=1, name="f")
    def f(a: list[int]) -> list[int]:
        if 1 in a:
            released.wait(60)
        return a

    result = await environment.run(f, [1, 2, 3], batch_rows=1)
    released.set()
    assert {row: error.code for row, error in result.errors.items()} == {0: ErrorCode.TIMEOUT}
    assert result.values.to_pylist() == [None, 2, 3]


async def test_a_guard_counts_a_merged_call_once():
    calls: list[list[int]] = []
    waits = 0

    def waited() -> None:
        nonlocal waits
        waits += 1

    metrics = GuardMetrics(ServerMetrics(), "f", "1")
    metrics.rate_waited = waited  # type: ignore[method-assign]
    guard = Guard("f@1", GuardSettings.parse("f", {"rate": "2/hour", "max-concurrency": 1}), metrics)
    f = recorded(calls, max_queue_delay="0 s")
    async with Talk(host=FunctionHost(Registry([("test", f)]), guard=guard.wrap)) as talk:
        await talk.open()
        for number in range(2):
            talk.send(batch(number, 50 * number, range(50)))
            assert (await talk.receive()).result.rows == 50
    assert (len(calls), waits) == (2, 0)


async def test_a_loop_that_a_call_blocks_is_replaced(environment):
    released = threading.Event()

    @udf.scalar(batched=True, max_queue_delay=DELAY, timeout="100 ms", max_attempts=1, name="f")
    async def f(a: list[int]) -> list[int]:
        if 1 in a:
            released.wait(60)
        return a

    result = await environment.run(f, [1])
    assert result.errors[0].code is ErrorCode.TIMEOUT
    assert (await environment.run(f, [3])).to_pylist() == [3]
    released.set()


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

    host = _host(f)
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
            other._stream.cancel()  # as gRPC does if a client is gone
            await asyncio.wait([other._stream])
            gate.set()
            await first.receive()
            await first.receive()
    assert calls == [[0], [1]]


async def test_a_stream_that_does_not_read_holds_up_no_other():
    calls: list[list[int]] = []
    f = recorded(calls, max_queue_delay="1 ms", batch_rows=10)
    host = _host(f)
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
    gc.collect()
    gc.disable()
    try:
        async with Talk(function) as talk:
            await talk.open()
            talk.send(batch(0, 0, [0, 1, 2]), finish())
            while not (await talk.receive()).HasField("finished"):
                pass
            await talk.ended()
            talk._stream = asyncio.create_task(asyncio.sleep(0))
            await eventually(lambda: talk.running is None)
    finally:
        gc.enable()


def test_the_queue_keeps_few_parts_whose_rows_were_taken():
    queue, stuck = RowQueue(), object()
    column = pa.array([1])
    for number in range(10_000):
        stream = stuck if number == 0 else None
        queue.push("caller", Part(stream, InputBatch(0, 1, None), [column], None, 1, 1.0, float(number)))
        queue.take(10, 1000, mix_callers=True, held_up=lambda stream: stream is stuck)
    assert (queue.rows, queue.oldest(lambda stream: False)) == (1, 0.0)
    assert len(queue._parts) < 200


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
    host = _host(f)
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


async def test_a_batch_context_has_the_context_of_each_row(environment):
    seen = []

    @udf.scalar(batched=True, max_queue_delay=DELAY)
    async def f(a: list[int], context: udf.BatchContext) -> list[int]:
        seen.append([(row.stream.partition, row.row, row.attempt) for row in context.rows])
        assert len({row.idempotency_key for row in context.rows}) == len(a)
        assert context.rows[0].idempotency_key == context.rows[:1][0].idempotency_key
        return a

    await environment.run_streams(f, [([5, 6],), ([7],)])
    assert sorted(seen[0]) == [(0, 0, 1), (0, 1, 1), (1, 0, 1)]


@pytest.mark.parametrize("vectorized", [True, False])
async def test_a_batch_context_is_available_without_merging(environment, vectorized):
    seen = []

    def body(a: Any, context: udf.BatchContext) -> Any:
        seen.append([row.row for row in context.rows])
        if len(a) > 2:
            raise ValueError
        return a

    if vectorized:

        @udf.scalar(vectorized=True, nulls="skip")
        def f(a: pa.Int64Array, context: udf.BatchContext) -> pa.Int64Array:
            return body(a, context)
    else:

        @udf.scalar(batched=True, nulls="skip")
        def f(a: list[int], context: udf.BatchContext) -> list[int]:
            return body(a, context)

    assert (await environment.run(f, [1, None, 2, 3])).to_pylist() == [1, None, 2, 3]
    assert seen == [[0, 2, 3], [0], [2, 3]]


async def test_nulls_are_skipped_and_the_order_is_kept(environment):
    @udf.scalar(batched=True, max_queue_delay=DELAY, nulls="skip")
    async def f(a: list[int]) -> list[int]:
        assert None not in a
        return a

    for mode in ("ordered", "unordered"):
        values = [None, 1, 2, None, None, 3]
        results = await environment.run_streams(f, [(values,), ([None, None],)], output_mode=mode)
        assert [result.to_pylist() for result in results] == [values, [None, None]]
        assert [result.counts.rows_skipped for result in results] == [3, 2]


async def test_the_cache_answers_rows_before_they_are_merged(environment):
    calls: list[list[int]] = []
    f = recorded(calls, cache_ttl="1 h")
    await environment.run_streams(f, [([1, 2, 2],), ([2, 3],)])
    results = await environment.run_streams(f, [([3, 4],), ([1, 2],)])
    assert [result.to_pylist() for result in results] == [[4, 5], [2, 3]]
    assert sorted(each for call in calls for each in call) == [1, 2, 3, 4]


async def test_streams_with_other_options_have_other_calls(environment):
    calls: list[list[int]] = []
    f = recorded(calls)
    one, two = await asyncio.gather(environment.run(f, [1], timeout="1 s"), environment.run(f, [2], timeout="2 s"))
    assert (one.to_pylist(), two.to_pylist()) == ([2], [3])
    assert sorted(calls) == [[1], [2]]


async def test_the_metrics_have_rows_per_call_and_the_queue_delay():
    calls: list[list[int]] = []
    f = recorded(calls)
    async with Talk(f) as talk:
        await talk.open()
        talk.send(batch(0, 0, [1, 2, 3]), finish())
        await talk.receive()
        assert (await talk.receive()).HasField("finished")
        labels = {"function": "f", "version": "1"}
        assert talk.metric("udf_call_rows_sum", **labels) == 3
        assert talk.metric("udf_call_rows_count", **labels) == 1
        assert talk.metric("udf_queue_delay_seconds_count", **labels) == 3


REFUSED = [
    ({"max_queue_delay": "1 ms"}, False, "is for functions that are called for many rows"),
    ({"instances": 2}, False, "is for functions that are called for many rows"),
    ({"batched": True, "max_queue_delay": "soon"}, False, "option 'max-queue-delay': "),
    ({"batched": True, "instances": 0}, False, "not a whole number of at least 1"),
    ({"batched": True, "max_queue_delay": "1 ms"}, True, "there is no CallContext of the call"),
]


@pytest.mark.parametrize(("options", "context", "why"), REFUSED)
def test_a_declaration_that_cannot_be_merged_is_refused(options, context, why):
    def many(a: list[int]) -> list[int]: ...
    def one(a: int) -> int: ...
    def with_context(a: list[int], c: udf.CallContext) -> list[int]: ...

    code = with_context if context else many if options.get("batched") else one
    with pytest.raises(DeclarationError) as refused:
        udf.scalar(**options)(code)
    assert why in str(refused.value)


def test_a_function_of_one_row_has_no_batch_context():
    with pytest.raises(DeclarationError, match="a BatchContext is for vectorized and batched functions"):

        @udf.scalar
        def f(a: int, context: udf.BatchContext) -> int: ...


async def test_the_operator_may_merge_calls_and_is_told_if_that_is_not_possible():
    calls: list[list[int]] = []
    f = recorded(calls, max_queue_delay=None)

    @udf.scalar(batched=True)
    def single(a: list[int], context: udf.CallContext) -> list[int]:
        return a

    defaults = {"*": {"max-queue-delay": "20 ms"}}
    host = FunctionHost(Registry([("test", f), ("test", single)]), defaults=defaults)
    async with Talk(host=host) as talk:
        await talk.open()
        assert host.find("f").merging is not None
        async with Talk(host=host) as other:
            other.send(opening("single"))
            error = (await other.receive()).error
            assert "have the function take a BatchContext" in error.message


async def test_a_call_cannot_set_what_concerns_all_calls(environment):
    with pytest.raises((StreamError, ValueError), match="concerns all calls of a scalar function"):
        await environment.run(recorded([]), [1], max_queue_delay="1 s")


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_fair(wants, total):
    shares = fair_shares(wants, total)
    assert sum(shares) == min(total, sum(wants))
    for want, share in zip(wants, shares, strict=True):
        assert 0 <= share <= want
        if share < want:
            assert max(shares, default=0) <= share + 1


KINDS = st.sampled_from(["good", "good", "good", "bad", "flaky", "raises", "null"])


@examples(60)
@given(
    st.lists(st.lists(KINDS, min_size=1, max_size=12), min_size=1, max_size=5), st.integers(1, 20), st.integers(1, 5),
    st.sampled_from(["ordered", "unordered"]), st.integers(1, 3), st.booleans(),
)  # fmt: skip
async def test_every_row_has_the_outcome_that_it_would_have_alone(kinds, most_rows, batch_rows, mode, instances, skip):
    seen: dict[int, int] = {}

    @udf.scalar(
        batched=True, fixed_delay="0.1 ms", batch_rows=most_rows, max_queue_delay="1 ms", instances=instances,
        nulls="skip" if skip else "call",
    )  # fmt: skip
    async def f(rows: list[int]) -> list[int | udf.Failure]:
        assert len(rows) <= most_rows
        for row in rows:
            seen[row] = seen.get(row, 0) + 1
        await asyncio.sleep(0)
        of = [None if row is None else kinds[row // 100][row % 100] for row in rows]
        if "raises" in of:
            raise ValueError("somewhere")
        return [
            udf.Failure("bad") if kind == "bad"
            else udf.Failure("busy", retryable=True) if kind == "flaky" and seen[row] % 2
            else row
            for row, kind in zip(rows, of, strict=True)
        ]  # fmt: skip

    streams = [
        ([None if kind == "null" else 100 * number + row for row, kind in enumerate(each)],)
        for number, each in enumerate(kinds)
    ]
    async with FunctionEnvironment() as environment:
        results = await environment.run_streams(f, streams, batch_rows=batch_rows, output_mode=mode)
    for (values,), each, result in zip(streams, kinds, results, strict=True):
        for row, kind in enumerate(each):
            if kind in ("good", "flaky", "null"):
                assert row not in result.errors
                assert result.values[row].as_py() == values[row]
            else:
                assert result.errors[row].message == ("bad" if kind == "bad" else "ValueError: somewhere")


def _host(function: udf.Function, clock: ManualClock | None = None) -> FunctionHost:
    executors = Executors(clock=clock, later=clock.later) if clock is not None else None
    return FunctionHost(Registry([("test", function)]), executors=executors)
