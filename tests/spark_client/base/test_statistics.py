"""Statistics of calls: their addition, and the counts of a stream."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.budget import SessionBudget
from spark_client.base.config import ClientConfig
from spark_client.base.statistics import SMALLEST_SECONDS, Statistics, bucket_of, latency
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.transport import transport_for
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
    row_error,
    stream_of,
)
from udf_server.limits.settings import GuardSettings

seconds = st.floats(SMALLEST_SECONDS, 3600)


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


@given(seconds)
def test_a_latency_is_right_to_nine_percent(value):
    assert latency(bucket_of(value)) == pytest.approx(value, rel=0.091)


def test_latencies_beyond_all_bounds_have_a_bucket():
    assert bucket_of(0.0) == bucket_of(-1.0) == 0
    assert bucket_of(1e9) == bucket_of(1e12)


@given(st.lists(seconds, min_size=1, max_size=50), st.lists(seconds, max_size=50))
def test_quantiles_of_a_sum_are_those_of_all_values(some, others):
    one, other = Statistics(), Statistics()
    for value in some:
        one.answered(value)
    for value in others:
        other.answered(value)
    one.add(other)
    everything = sorted(some + others)
    median = everything[(len(everything) - 1) // 2]
    assert one.quantile(0.5) == pytest.approx(median, rel=0.091)
    assert one.quantile(1.0) == pytest.approx(everything[-1], rel=0.091)
    assert (one.batches, one.batch_seconds) == (len(everything), pytest.approx(sum(everything)))


def test_without_batches_there_is_no_quantile():
    assert Statistics().quantile(0.5) is None


def test_every_figure_is_added():
    figures = [
        each.name for each in dataclasses.fields(Statistics) if each.name not in ("spent", "latencies", "lowered")
    ]
    numbers = {name: number for number, name in enumerate(figures, 1)}
    one = Statistics(**numbers, spent={"usd": 1.0}, latencies={3: 1}, lowered={"timeout": "9 s"})
    one.add(Statistics(**numbers, spent={"usd": 1.0, "calls": 2.0}, latencies={3: 1, 4: 1}))
    doubled = {name: 2 * number for name, number in numbers.items()}
    amounts = {"usd": 2.0, "calls": 2.0}
    assert one == Statistics(**doubled, spent=amounts, latencies={3: 2, 4: 1}, lowered={"timeout": "9 s"})


class Reports(list):
    report = list.append


def reporting(call):
    """Returns the same call, and the list to which its streams report."""
    reports = Reports()
    object.__setattr__(call, "config", ClientConfig(call.config.target, reporter=reports))
    return call, reports


def test_a_stream_counts_rows_bytes_and_where_its_batches_were():
    clock = Clock()

    def server(requests):
        next(requests)
        yield opened()
        batch = next(requests)
        clock.now += 2.0
        yield result(0, [1, None, None], {1: row_error()}, skipped=1, calls=6, retries=4)
        next(requests)
        finished = pb.Finished(
            counts=pb.StreamCounts(rows_in=3, rows_ok=1, rows_failed=1, rows_skipped=1, calls=6, retries=4)
        )
        finished.times.queue.FromNanoseconds(500_000_000)
        finished.times.function.FromNanoseconds(1_200_000_000)
        assert len(numbers(batch)) == 3
        yield pb.ExecuteResponse(finished=finished).SerializeToString()

    call, reports = reporting(call_of(plus_one))
    stream = stream_of(call, Scripted(server), clock=clock, sleep=clock.sleep)
    stream.submit(chunk_of([0, 1, None]))
    everything(stream)
    stream.finish()
    clock.now += 1.0
    stream.report(0.25)
    stream.report(0.25)
    (report,) = reports
    statistics = report.statistics
    assert (report.function, report.operation_id, report.on_error) == ("plus_one@1", "operation", "fail")
    assert (statistics.rows, statistics.ok, statistics.failed, statistics.skipped) == (3, 1, 1, 1)
    assert (statistics.retries, statistics.calls, statistics.batches) == (4, 6, 1)
    assert statistics.bytes_out > 24 and statistics.bytes_in > 24
    assert (statistics.task_seconds, statistics.spark_seconds, statistics.waiting_seconds) == (3.0, 0.25, 2.0)
    assert (statistics.batch_seconds, statistics.queue_seconds, statistics.function_seconds) == (2.0, 0.5, 1.2)
    assert statistics.wire_seconds == pytest.approx(0.3)


def test_a_batch_that_is_sent_again_has_taken_all_the_time_since_it_was_first():
    clock = Clock()

    def dies(requests):
        next(requests)
        yield opened()
        next(requests)
        clock.now += 3.0
        yield from gone(requests)

    call, _ = reporting(call_of(plus_one))
    stream = stream_of(call, Scripted(dies, honest), clock=clock, sleep=clock.sleep)
    stream.submit(chunk_of([1, 2]))
    assert everything(stream) == {0: 2, 1: 3}
    assert stream.statistics.replays == 1
    assert stream.statistics.quantile(0.5) == pytest.approx(3.0, rel=0.1)


def test_rows_that_are_not_sent_are_no_calls():
    def server(requests):
        next(requests)
        yield opened(max_message_bytes=4096 + 32)

    stream = stream_of(call_of(plus_one), Scripted(server))
    (answer,) = stream.submit(chunk_of([1]))
    assert answer.errors[0].code is ErrorCode.ARGUMENT_TOO_LARGE
    assert (stream.statistics.failed, stream.statistics.calls) == (1, 0)


class Outage(Exception):
    """An error that the option retry-on makes retryable."""


def failing_kinds(called):
    """Functions of every kind. Values that end in 3 always fail, those that end in 1 once; `called` gets all calls."""

    def fail(values):
        called.append(values)
        for x in values:
            if x % 10 == 3:
                raise ValueError(x)
            if x % 10 == 1 and sum(x in earlier for earlier in called) == 1:
                raise Outage(x)

    options = {"fixed_delay": "1 ms", "retry_on": [Outage], "nulls": "skip"}

    @udf.scalar(**options)
    def rows(x: int) -> int:
        fail([x])
        return x

    @udf.scalar(**options)
    async def async_rows(x: int) -> int:
        fail([x])
        return x

    @udf.scalar(vectorized=True, **options)
    def batches(x: pa.Int64Array) -> pa.Int64Array:
        fail(x.to_pylist())
        return x

    @udf.scalar(vectorized=True, **options)
    async def async_batches(x: pa.Int64Array) -> pa.Int64Array:
        fail(x.to_pylist())
        return x

    return [rows, async_rows, batches, async_batches]


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("kind", range(4), ids=["rows", "async rows", "batches", "async batches"])
def test_calls_are_the_calls_that_were_made_whatever_fails_and_on_both_ends(serve, kind, mode):
    called = []
    function = failing_kinds(called)[kind]
    serving = serve(function)
    call, reports = reporting(call_of(function, serving.target, output_mode=mode))
    stream = stream_of(call, transport_for(call.config))
    for start in (0, 40):
        stream.submit(chunk_of([None if x % 10 == 7 else x for x in range(start, start + 40)], start=start))
    found = everything(stream)
    assert sorted(row for row, value in found.items() if isinstance(value, RowError)) == list(range(3, 80, 10))
    stream.finish()
    stream.report(0.0)
    statistics = reports[0].statistics
    assert (statistics.rows, statistics.failed, statistics.skipped) == (80, 8, 8)
    assert (
        statistics.calls == len(called) == serving.metric("udf_calls_total", function=function.spec.name, version="1")
    )
    assert statistics.retries == serving.metric("udf_retries_total", function=function.spec.name, version="1")
    assert (
        statistics.retries == 8 if "batches" not in function.spec.name else 1 <= statistics.retries < statistics.calls
    )


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("kind", range(4), ids=["rows", "async rows", "batches", "async batches"])
@pytest.mark.parametrize("most", [1, 6, 7])
def test_calls_that_a_budget_refuses_are_no_calls_and_no_retries(serve, kind, mode, most):
    called = []
    function = failing_kinds(called)[kind]
    serving = serve(function)
    call, reports = reporting(call_of(function, serving.target, output_mode=mode, batch_rows=2))
    config = dataclasses.replace(call.config, budget=SessionBudget.of({"calls": most}, "on-error"))
    stream = stream_of(dataclasses.replace(call, config=config), transport_for(config))
    stream.submit(chunk_of([10 * x + 1 for x in range(10)]))  # every row has to be called twice
    errors = [value for value in everything(stream).values() if isinstance(value, RowError)]
    stream.finish()
    stream.report(0.0)
    statistics, labels = reports[0].statistics, {"function": function.spec.name, "version": "1"}
    again = sum(any(x in earlier for x in each for earlier in called[:place]) for place, each in enumerate(called))
    assert (statistics.calls, statistics.retries) == (len(called), again) and len(called) == most
    assert serving.metric("udf_calls_total", **labels) == most
    assert serving.metric("udf_retries_total", **labels) == again
    assert {error.code for error in errors} == {ErrorCode.BUDGET_SPENT}
    assert statistics.failed == statistics.over_budget == len(errors)
    assert statistics.uncalled == 10 - len({x for each in called for x in each})


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(4), ids=["rows", "async rows", "batches", "async batches"])
@pytest.mark.parametrize("bounded", [False, True], ids=["guard", "guard and budget"])
def test_calls_that_a_guard_does_not_allow_in_time_are_no_calls_and_time_out(serve, kind, bounded):
    called = []
    function = failing_kinds(called)[kind]  # which does not retry a TimeoutError
    settings = GuardSettings.parse("f", {"rate": "2/hour"})
    serving = serve(function, guards={function.spec.name: settings})
    call, reports = reporting(call_of(function, serving.target, timeout="500 ms", batch_rows=1, buffer_capacity=1))
    budget = SessionBudget.of({"calls": 4}, "on-error") if bounded else None
    config = dataclasses.replace(call.config, budget=budget)
    for x in (0, 1, 10, 20):  # one call is made, one is not repeated, and two are not made
        stream = stream_of(dataclasses.replace(call, config=config), transport_for(config))
        stream.submit(chunk_of([x]))
        [found] = everything(stream).values()
        stream.finish()
        stream.report(0.0)
        assert x == found == 0 or found.code is ErrorCode.TIMEOUT
    assert called == [[0], [1]]
    if "async" in function.spec.name:  # a thread may notice the deadline too late
        counted = [(each.statistics.calls, each.statistics.retries, each.statistics.uncalled) for each in reports]
        assert counted == [(1, 0, 0), (1, 0, 0), (0, 0, 1), (0, 0, 1)]
        assert "the guard or the budget of the function allowed no call within 500 ms" in found.message


def test_a_real_server_tells_what_share_was_its_own(serve):
    import asyncio

    @udf.scalar
    async def slowly(x: int) -> int:
        await asyncio.sleep(0.05)
        return x

    call, reports = reporting(call_of(slowly, serve(slowly).target))
    batches = [pa.record_batch({"x": list(range(50))}) for _ in range(4)]
    engine = RowEngine(
        [PlannedCall(call, (0,))],
        Runtime(lambda call, schema: stream_of(call, transport_for(call.config), schema)),
        ordered=True,
    )
    assert sum(completed.table.num_rows for completed in engine.run(iter(batches))) == 200
    statistics = reports[0].statistics
    assert statistics.rows == statistics.ok == 200
    assert 0.05 <= statistics.function_seconds <= statistics.batch_seconds
    assert 0.0 <= statistics.queue_seconds <= statistics.batch_seconds
    assert statistics.spark_seconds + statistics.waiting_seconds <= statistics.task_seconds


def test_time_in_spark_is_input_and_output(serve):
    clock = Clock()

    def batches():
        for _ in range(3):
            clock.now += 2.0  # Spark makes a batch
            yield pa.record_batch({"x": [1, 2]})

    call, reports = reporting(call_of(plus_one, serve(plus_one).target))
    engine = RowEngine(
        [PlannedCall(call, (0,))],
        Runtime(lambda call, schema: stream_of(call, transport_for(call.config), schema, clock=clock), clock=clock),
        ordered=True,
        merging=False,
    )
    for _ in engine.run(batches()):
        clock.now += 10.0  # Spark takes one
    # The first batch is available before the stream is open.
    assert reports[0].statistics.spark_seconds == 2 * 2.0 + 3 * 10.0
    assert reports[0].statistics.task_seconds == 34.0
