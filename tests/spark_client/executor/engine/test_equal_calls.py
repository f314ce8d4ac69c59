"""RowEngine: which calls of a row are made, when several are equal or an argument has an error."""

import dataclasses
import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.options import OnError
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.planned_calls import PlannedCall, equal_calls
from spark_client.executor.engine.policy import error_array
from spark_client.testing import LocalTransport
from tests.spark_client.engines import all_outcomes, outcomes, through
from tests.spark_client.scripted import (
    call_of,
    row_error,
)


def counting(**declared):
    calls = []

    @udf.scalar(**declared)
    def shown(x: float) -> str:
        calls.append(x)
        return str(x)

    return shown, calls


@pytest.mark.parametrize("ordered", [True, False])
def test_equal_calls_of_a_row_are_made_once_though_they_come_from_different_columns(ordered):
    shown, calls = counting()
    batch = pa.record_batch({"x": [1.5, 2.5], "same": [1.5, 2.5], "other": [1.5, 3.5]})
    with LocalTransport(shown) as transport:
        planned = [(call_of(shown), (column,)) for column in (0, 1, 2, 0)]
        found = sorted(all_outcomes(through(transport, *planned, ordered=ordered), iter([batch])), key=str)
    assert found == [(1.5, *["1.5"] * 4), (2.5, "2.5", "2.5", "3.5", "2.5")]
    assert sorted(calls) == [1.5, 1.5, 2.5, 3.5]


def test_zeros_of_both_signs_are_different_arguments():
    shown, _ = counting()
    plain, nested = pa.array([0.0]), pa.array([[0.0]])
    for zero in (plain, nested):
        minus = pa.array([[-0.0]] if zero is nested else [-0.0])
        table = pa.table({"x": zero, "y": minus, "z": zero})
        calls = [PlannedCall(call_of(shown), (column,)) for column in range(3)]
        assert equal_calls(calls, table) == [0, 1, 0]
    batch = pa.record_batch({"x": plain, "y": pa.array([-0.0])})
    with LocalTransport(shown) as transport:
        engine = through(transport, (call_of(shown), (0,)), (call_of(shown), (1,)))
        assert all_outcomes(engine, iter([batch])) == [(0.0, "0.0", "-0.0")]


def test_a_column_equals_itself_even_where_its_values_do_not():
    shown, calls = counting()
    with LocalTransport(shown) as transport:
        engine = through(transport, (call_of(shown), (0,)), (call_of(shown), (0,)))
        ((x, *found),) = all_outcomes(engine, iter([pa.record_batch({"x": [math.nan]})]))
    assert math.isnan(x) and found == ["nan", "nan"] and len(calls) == 1


@pytest.mark.parametrize("different", ["not deterministic", "options", "server"])
def test_calls_that_may_differ_are_made_each(different):
    shown, calls = counting(deterministic=different != "not deterministic")
    one = other = call_of(shown)
    if different == "options":
        other = call_of(shown, max_attempts=3)
    elif different == "server":
        other = dataclasses.replace(one, config=ClientConfig("elsewhere"))
    with LocalTransport(shown) as transport:
        engine = through(transport, (one, (0,)), (other, (0,)))
        assert all_outcomes(engine, iter([pa.record_batch({"x": [1.5]})])) == [(1.5, "1.5", "1.5")]
    assert calls == [1.5, 1.5]


POLICIES = st.sampled_from([OnError.NULL, OnError.COLUMN])


@given(st.lists(POLICIES, min_size=2, max_size=3), st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2)))
def test_each_of_equal_calls_passes_failed_rows_on_by_its_own_policy(policies, outer):
    """Calls of the values of equal calls get what they get if each call is made alone."""
    made = []

    @udf.scalar
    def even(x: int) -> int:
        made.append(x)
        if x % 2:
            raise ValueError(f"{x} is odd")
        return x

    @udf.scalar(vectorized=True)
    def known(x: pa.Int64Array, y: pa.Int64Array) -> pa.Int64Array:
        return pc.add(pc.cast(pc.is_valid(x), pa.int64()), pc.cast(pc.is_valid(y), pa.int64()))

    inner = [(call_of(even, policy={"on_error": policy}), (0,)) for policy in policies]
    calls = [(call_of(known, arguments=2), (1 + one, 1 + other)) for one, other in outer]
    with LocalTransport(even, known) as transport:
        found = all_outcomes(through(transport, *inner, *calls), iter([pa.record_batch({"x": [0, 1]})]))
    failed = ErrorCode.FUNCTION_ERROR
    passed = [0 if {policies[one], policies[other]} == {OnError.NULL} else failed for one, other in outer]
    assert found == [(0, *[0] * len(inner), *[2] * len(outer)), (1, *[failed] * len(inner), *passed)]
    assert sorted(made) == [0, 1]


# Rows that another call's error blocks.


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_with_an_error_among_their_arguments_are_not_sent_and_get_that_error(ordered):
    seen = []

    @udf.scalar
    def outer(x: int) -> int:
        seen.append(x)
        return x * 2

    blocked = {1: row_error("inner failed", ErrorCode.TIMEOUT, attempts=4), 3: row_error()}
    batches = [
        pa.record_batch({"x": pa.array(range(5)), "x_error": error_array(5, blocked)}),
        pa.record_batch({"x": pa.array([5]), "x_error": error_array(1, {0: row_error()})}),
    ]
    with LocalTransport(outer) as transport:
        engine = through(transport, PlannedCall(call_of(outer), (0,), (1,)), ordered=ordered)
        found = [row for completed in engine.run(iter(batches)) for row in outcomes(completed)]
    failed = ErrorCode.FUNCTION_ERROR
    assert sorted(found) == [(0, 0), (1, ErrorCode.TIMEOUT), (2, 4), (3, failed), (4, 8), (5, failed)]
    assert sorted(seen) == [0, 2, 4]
