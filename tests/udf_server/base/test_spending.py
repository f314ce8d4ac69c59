"""What calls report with `context.spend`: the sums of streams, functions and callers."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.amounts import MOST_UNITS, OTHER, add_amounts, is_unit
from spark_client.base.statistics import Statistics
from spark_client.executor.stream.transport import transport_for
from spark_client.summary.summary_row import SummaryRow, paragraph
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from udf_server.base.call_scope import StreamSpending, checked_amounts
from udf_server.base.errors import InvalidCost
from udf_server.runners.outputs import OutputWriter, Taken


@udf.scalar
async def ask(x: int, context: udf.CallContext) -> int:
    context.spend(tokens=x, usd=0.25)
    if x % 2:
        await asyncio.to_thread(context.spend, tokens=100)
    return x


@udf.scalar
def ask_thread(x: int, context: udf.CallContext) -> int:
    context.spend(tokens=x)
    return x


@udf.scalar(vectorized=True)
def ask_all(x: pa.Int64Array, context: udf.BatchContext) -> pa.Int64Array:
    context.spend(tokens=10 * len(x))
    return x


@udf.scalar(max_attempts=3, retry_strategy="fixed-delay", fixed_delay="1 ms")
async def ask_again(x: int, context: udf.CallContext) -> int:
    context.spend(tokens=1)
    if context.attempt < 3:
        raise udf.RetryableError("busy")
    return x


def spent(serving, function, values, **options):
    """What the statistics of a stream say that its calls have spent."""
    call = call_of(function, serving.target, **options)
    stream = stream_of(call, transport_for(call.config))
    for first in range(0, len(values), 3):
        stream.submit(chunk_of(values[first : first + 3], first))
    everything(stream)
    stream.finish()
    return stream.statistics.spent


@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
def test_a_task_counts_what_its_calls_have_spent(serve, output_mode):
    serving = serve(ask, ask_thread, ask_all, ask_again)
    values = [1, 2, 3, 4, 5, 6, 7]
    assert spent(serving, ask, values, output_mode=output_mode) == {"tokens": 428.0, "usd": 1.75}
    assert spent(serving, ask_thread, values, output_mode=output_mode) == {"tokens": 28.0}
    assert spent(serving, ask_all, values, output_mode=output_mode) == {"tokens": 70.0}
    assert spent(serving, ask_again, values, output_mode=output_mode) == {"tokens": 21.0}
    counted = {
        name: serving.metric("udf_spent_total", function=name, version="1", caller="", unit="tokens")
        for name in ("ask", "ask_thread", "ask_all", "ask_again")
    }
    assert counted == {"ask": 428, "ask_thread": 28, "ask_all": 70, "ask_again": 21}


async def test_streams_bear_the_share_of_their_rows_in_a_common_call(environment):
    shares = []

    @udf.scalar(batched=True, batch_rows=4, max_queue_delay="1 s")
    async def embed(x: list[int], context: udf.BatchContext) -> list[int]:
        context.spend(tokens=8)
        shares.extend({row.stream.partition: row.stream.spending.amounts["tokens"] for row in context.rows}.items())
        return x

    await environment.run_streams(embed, [([1],), ([2, 3, 4],)])
    assert dict(shares) == {0: 2.0, 1: 6.0}


@pytest.mark.parametrize("delay", [None, "1 s"])
async def test_a_report_for_each_row_of_a_call_makes_no_context_of_a_row(environment, monkeypatch, delay):
    @udf.scalar(batched=True, batch_rows=3_000, max_queue_delay=delay)
    async def embed(x: list[int], context: udf.BatchContext) -> list[int]:
        for _ in x:
            context.spend(tokens=1)
        return x

    monkeypatch.setattr("udf_server.base.context._Rows.__iter__", None)
    monkeypatch.setattr("udf_server.base.context._Rows.__getitem__", None)
    results = await environment.run_streams(embed, [([1] * 2_000,), ([2] * 1_000,)])
    assert [set(result.to_pylist()) for result in results] == [{1}, {2}]
    labels = {"function": "embed", "version": "1", "caller": "", "unit": "tokens"}
    assert environment.metrics.registry.get_sample_value("udf_spent_total", labels) == 3_000


def test_nothing_is_spent_if_nothing_is_reported(serve):
    @udf.scalar
    async def free(x: int) -> int:
        return x

    assert spent(serve(free), free, [1, 2]) == {}


def test_an_amount_that_is_none_fails_the_row_and_counts_nothing(serve):
    @udf.scalar
    async def owing(x: int, context: udf.CallContext) -> int:
        context.spend(tokens=-x)
        return x

    serving = serve(owing)
    assert spent(serving, owing, [0, 1]) == {"tokens": 0.0}
    assert serving.metric("udf_row_errors_total", function="owing", version="1", code="FUNCTION_ERROR") == 1


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"tokens": 10**400}, "is not a number of at least 0"),
        ({"tokens": np.array([1, 2])}, "is not a number of at least 0"),
        ({"tokens": "3"}, "is not a number of at least 0"),
        ({"tokens": True}, "is not a number of at least 0"),
        ({"tokens": float("nan")}, "is not a number of at least 0"),
        ({"tok\udcffens": 1}, "is no unit"),
        ({"t" * 101: 1}, "is no unit"),
        ({"€" * 34: 1}, "is no unit; expected printable characters, 1 to 100 bytes in UTF-8"),
        ({"": 1}, "is no unit"),
    ],
)  # fmt: skip
def test_odd_amounts_are_refused(amounts, why):
    with pytest.raises(InvalidCost, match=why):
        checked_amounts(amounts, "function f@1")
    assert checked_amounts({"tokens": np.float32(2.5)}, "function f@1") == {"tokens": 2.5}


def test_units_beyond_the_bound_are_counted_together(serve):
    @udf.scalar
    async def many(x: int, context: udf.CallContext) -> int:
        context.spend(**{f"unit_{x}": 1})
        return x

    serving = serve(many)
    total = spent(serving, many, list(range(MOST_UNITS + 5)))
    assert (len(total), total[OTHER], sum(total.values())) == (MOST_UNITS + 1, 5.0, MOST_UNITS + 5)
    assert serving.metric("udf_spent_total", function="many", version="1", caller="", unit=OTHER) == 5


def test_a_summary_says_what_was_spent():
    statistics = Statistics()
    add_amounts(statistics.spent, {"tokens": 81234.0, "usd": 0.4125})
    lines = list(paragraph(SummaryRow("ask@1", 0, "fail", 1, statistics)))
    assert "  spent: 81,234 tokens, 0.4125 usd" in lines


@pytest.mark.parametrize("character", ["u", "é", "€", "😀"])
def test_a_result_with_the_most_and_longest_units_is_within_the_message_limit(character):
    limit, spending = 1 << 16, StreamSpending()
    longest = max(length for length in range(101) if is_unit(character * length))
    for number in range(MOST_UNITS + 2):
        spending.add({character * (longest - 1) + chr(ord("a") + number): 0.1})
    for size in range(limit, 0, -8):  # the largest value that fits has as much beside it as a message may have
        held = StreamSpending()
        held.amounts = dict(spending.amounts)
        writer = OutputWriter(pa.binary(), ordered=True, max_message_bytes=limit, spending=held)
        [output] = writer.write(0, Taken(0, pa.array([b"x" * size]), {}, {}))
        if not output.codes:
            break
    assert limit - 4096 < len(output.message) <= limit
