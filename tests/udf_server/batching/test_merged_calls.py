"""Merged calls: rows of several streams in one call."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import read_errors
from tests.udf_server.merging import DELAY, host_of, recorded
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.testing import FunctionEnvironment, ManualClock


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


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_may_reuse_the_memory_of_its_values(environment, is_async):
    memory = np.zeros(16, np.int64)

    def doubled(a: pa.Array) -> pa.Array:
        memory[: len(a)] = a.to_numpy() * 2
        return pa.array(memory[: len(a)])

    code: Any
    if is_async:

        async def code(a: pa.Int64Array) -> pa.Int64Array:
            return doubled(a)
    else:

        def code(a: pa.Int64Array) -> pa.Int64Array:
            return doubled(a)

    # The next call is ready before the values of this one are sent.
    function = udf.scalar(vectorized=True, max_queue_delay=DELAY, batch_rows=16, name="f")(code)
    rows = [[*range(first, first + 800)] for first in (0, 10_000)]
    results = await environment.run_streams(function, [(each,) for each in rows])
    assert [result.to_pylist() for result in results] == [[2 * row for row in each] for each in rows]


async def test_a_call_has_no_more_bytes_than_batch_bytes(environment):
    calls: list[list[int]] = []
    await environment.run_streams(recorded(calls, batch_bytes=16), [([1, 2],), ([3, 4],)])
    assert [len(call) for call in calls] == [2, 2]


async def test_a_call_waits_for_rows_no_longer_than_max_queue_delay():
    calls: list[list[int]] = []
    clock = ManualClock()
    f = recorded(calls, max_queue_delay="5 ms")
    async with Talk(f, host=host_of(f, clock), clock=clock) as one, Talk(host=one.host, clock=clock) as other:
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


async def test_a_guard_counts_a_merged_call_once():
    calls: list[list[int]] = []
    server = ServerMetrics()
    settings = GuardSettings.parse("f", {"rate": "2/hour", "max-concurrency": 1})
    guard = Limiter("f@1", settings, GuardMetrics(server, "f", "1"))
    f = recorded(calls, max_queue_delay="0 s")
    async with Talk(f, guard=guard) as talk:
        await talk.open()
        for number in range(2):
            talk.send(batch(number, 50 * number, range(50)))
            assert (await talk.receive()).result.rows == 50
    waits = server.registry.get_sample_value("udf_rate_waits_total", {"function": "f", "version": "1"})
    assert (len(calls), waits) == (2, None)


async def test_a_common_call_that_its_guard_did_not_let_begin_is_no_call():
    @udf.scalar(batched=True, max_queue_delay="0 s", timeout="100 ms")
    async def f(a: list[int]) -> list[int]:
        return a

    guard = Limiter("f@1", GuardSettings.parse("f", {"rate": "1/hour"}), GuardMetrics(ServerMetrics(), "f", "1"))
    async with Talk(f, guard=guard) as talk:
        await talk.open()
        talk.send(batch(0, 0, range(5)))
        assert (await talk.receive()).result.calls == 1
        talk.send(batch(1, 5, range(5)))
        result = (await talk.receive()).result
    errors = read_errors(result.errors)
    assert {(error.code, error.attempts) for error in errors.values()} == {(ErrorCode.TIMEOUT, 0)}
    assert (len(errors), result.calls, result.retries) == (5, 0, 0)


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
