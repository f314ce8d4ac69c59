"""Estimates: what calls would cost, from the `cost` of a declaration, without a call."""

import dataclasses
import logging

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import Scripted, call_of, chunk_of, everything, honest, stream_of
from tests.waiting import wait_until
from udf_server.limits.settings import GuardSettings

CALLED = []


def tokens(x):
    return {"tokens": x, "usd": 0.5}


def many_tokens(x):
    values = x.to_pylist() if isinstance(x, pa.Array) else x
    return {"tokens": float(sum(values))}


@udf.scalar(cost=tokens, cache_ttl="1 h", max_attempts=3)
async def ask(context: udf.CallContext, x: int) -> str:
    CALLED.append(x)
    return str(x)


@udf.scalar(cost=tokens, nulls="skip")
def ask_thread(x: int) -> int:
    CALLED.append(x)
    return x


@udf.scalar(cost=many_tokens, vectorized=True)
def ask_all(x: pa.Int64Array) -> pa.Int64Array:
    CALLED.extend(x)
    return x


@udf.scalar(cost=many_tokens, batched=True, max_queue_delay="50 ms")
async def ask_list(context: udf.BatchContext, x: list[int]) -> list[int]:
    CALLED.extend(x)
    return x


@udf.scalar
async def free(x: int) -> int:
    CALLED.append(x)
    return x


@pytest.fixture(autouse=True)
def _nothing_is_called():
    yield
    assert CALLED == []


def estimates(target, function, values):
    call = call_of(function, target)
    call = dataclasses.replace(call, config=dataclasses.replace(call.config, estimates=True))
    stream = stream_of(call, transport_for(call.config))
    try:
        stream.submit(chunk_of(values))
        found = everything(stream)
        stream.finish()
        return found, stream.statistics
    finally:
        stream.close()


@pytest.mark.parametrize("function", [ask, ask_thread], ids=lambda function: function.spec.name)
def test_rows_have_the_cost_of_their_calls(serve, function):
    found, statistics = estimates(serve(function).target, function, [1, 2, 2])
    assert [dict(found[row]) for row in range(3)] == [{"tokens": x, "usd": 0.5} for x in (1, 2, 2)]
    assert statistics.spent == {}


@pytest.mark.parametrize("function", [ask_all, ask_list], ids=lambda function: function.spec.name)
def test_rows_of_one_call_have_equal_parts_of_its_cost(serve, function):
    found, _ = estimates(serve(function).target, function, [1, 2, 6])
    assert sum(dict(found[row])["tokens"] for row in range(3)) == pytest.approx(9)


def test_rows_with_nulls_that_are_skipped_cost_nothing(serve):
    found, statistics = estimates(serve(ask_thread).target, ask_thread, [None, 4])
    assert found[0] is None and dict(found[1]) == {"tokens": 4, "usd": 0.5}
    assert statistics.skipped == 1


def test_a_guard_does_not_hold_estimates_up(serve):
    serving = serve(ask, guards={"ask": GuardSettings.parse("ask", {"rate": "1 tokens/hour"})})
    found, _ = estimates(serving.target, ask, list(range(100)))
    assert dict(found[99])["tokens"] == 99


def test_estimates_are_not_counted_as_calls(serve, caplog):
    serving = serve(ask)
    with caplog.at_level(logging.INFO, "udf_server.audit"):
        estimates(serving.target, ask, [1, 2, 2])
        wait_until(lambda: any(line.name == "udf_server.audit" for line in caplog.records))
    [line] = [vars(line) for line in caplog.records if line.name == "udf_server.audit"]
    assert (line["rows_in"], line["calls"], line["estimate"]) == (3, 0, True)
    counted = [
        (sample.name, sample.labels, sample.value)
        for family in serving.server.metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("function") == "ask" and sample.value and sample.name.endswith(("_total", "_count"))
    ]
    assert counted == []


def test_a_cost_that_raises_is_the_error_of_its_row(serve):
    found, _ = estimates(serve(ask).target, ask, [1, -1])
    assert found[1].code is ErrorCode.FUNCTION_ERROR and "-1" in found[1].message


def test_a_function_without_cost_has_no_estimate(serve):
    with pytest.raises(StreamError, match=r"function free@1: its declaration has no cost=\.\.\."):
        estimates(serve(free).target, free, [1])


def test_a_server_that_is_too_old_gets_no_rows():
    """It would call the function."""
    call = call_of(ask)
    call = dataclasses.replace(call, config=dataclasses.replace(call.config, estimates=True))
    with pytest.raises(StreamError, match="too old for estimates; update it"):
        stream_of(call, Scripted(honest))
