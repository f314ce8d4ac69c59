"""Merged calls that fail, hang or are called again: what stays a matter of each row."""

import asyncio
import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.properties import examples
from tests.udf_server.merging import DELAY, host_of
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.testing import FunctionEnvironment, ManualClock


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

    host = host_of(f)
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

    async with Talk(f, host=host_of(f, clock), clock=clock) as talk:
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


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["a thread", "a loop"])
async def test_what_hangs_is_given_up_and_replaced(environment, is_async):
    released = threading.Event()

    def answer(a: list[int]) -> list[int]:
        if 1 in a:
            released.wait(60)
        return a

    async def f(a: list[int]) -> list[int]:
        return answer(a)

    declared = udf.scalar(batched=True, max_queue_delay=DELAY, timeout="100 ms", max_attempts=1, name="f")
    function = declared(f if is_async else answer)
    result = await environment.run(function, [1])
    assert result.errors[0].code is ErrorCode.TIMEOUT
    assert (await environment.run(function, [3])).to_pylist() == [3]
    released.set()


@pytest.mark.slow
async def test_a_thread_that_hangs_for_streams_that_are_gone_returns_its_instance():
    began, released = threading.Event(), threading.Event()

    @udf.scalar(batched=True, max_queue_delay="0 s", timeout="100 ms", max_attempts=1, name="f")
    def f(a: list[int]) -> list[int]:
        if 1 in a:
            began.set()
            released.wait(600)
        return a

    host = host_of(f)
    async with Talk(host=host) as first, Talk(host=host) as lost:
        await lost.open()
        lost.send(batch(0, 0, [1]))
        await eventually(began.is_set)
        await lost.lose()
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
