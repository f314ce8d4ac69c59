"""The handling of failed rows: the text of an error, the counting of budgets, the content of an error column."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import TRACEBACK_LIMIT, ErrorCode
from remote_udf.options import OnError
from remote_udf.outcomes import RATE_FROM_ROWS
from spark_client.base.errors import ErrorBudgetExceeded, FunctionFailed
from spark_client.executor.engine.policy import (
    ARGUMENT_LIMIT,
    PolicyKeeper,
    blocking_errors,
    error_array,
)
from tests.spark_client.scripted import call_of, row_error


@udf.scalar(version="2")
def divided(number: int, by: str) -> int:
    return number // len(by)


def keeper(on_error=OnError.NULL, **policy):
    return PolicyKeeper(call_of(divided, arguments=2, policy={"on_error": on_error, **policy}), (1, 0))


def rows(count=1, number=7, by="a"):
    return pa.table({"by": [by] * count, "number": pa.array([number] * count, pa.int64())})


def failing(table, error):
    with pytest.raises(FunctionFailed) as caught:
        keeper(OnError.FAIL).look(table, {0: error})
    return str(caught.value)


# Texts of errors.


def test_a_failed_row_names_function_version_arguments_code_and_attempts():
    message = failing(rows(), row_error("ZeroDivisionError: by zero", attempts=3))
    assert (
        message
        == "divided(number=7, by='a') of divided@2 failed: FUNCTION_ERROR: ZeroDivisionError: by zero (3 attempts)"
    )


def test_one_attempt_is_one_attempt_and_none_is_none():
    assert failing(rows(), row_error(attempts=1)).endswith("(1 attempt)")
    assert failing(rows(), row_error(attempts=0)).endswith("(0 attempts)")


def test_of_several_failed_rows_the_first_is_reported():
    table = pa.table({"by": ["a", "b", "c"], "number": [1, 2, 3]})
    with pytest.raises(FunctionFailed, match=r"divided\(number=2, by='b'\) .* second"):
        keeper(OnError.FAIL).look(table, {2: row_error("third"), 1: row_error("second")})


def test_long_arguments_are_cut():
    message = failing(rows(by="x" * 10_000), row_error())
    assert f"by='{'x' * (ARGUMENT_LIMIT - 1)}...)" in message
    assert len(message) < 300


def test_the_remote_traceback_stands_below_and_is_capped():
    assert failing(rows(), row_error(traceback="Traceback of 7")).endswith("\nRemote traceback:\nTraceback of 7")
    message = failing(rows(), row_error(traceback="begin" + "x" * 100_000 + "the end"))
    assert "Remote traceback:\nbegin" in message
    assert message.endswith("the end")
    assert len(message) < TRACEBACK_LIMIT + 500


def test_arguments_python_cannot_hold_do_not_hide_the_error():
    far = pa.array([2**62], pa.timestamp("us"))
    message = failing(pa.table({"by": far, "number": [1]}), row_error("the reason"))
    assert "by=(a value Python cannot hold)" in message
    assert "the reason" in message


# Budgets.


def test_without_a_budget_any_number_of_rows_may_fail():
    keep = keeper()
    keep.look(rows(1000), dict.fromkeys(range(1000), row_error()))
    keep.finish()
    assert (keep.rows, keep.failed) == (1000, 1000)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.integers(0, 60))
def test_an_absolute_budget_is_exceeded_by_the_first_row_beyond_it(failures, most):
    keep = keeper(max_errors=most)
    failed = 0
    for count in failures:
        failed += count
        if failed <= most:
            keep.look(rows(20), dict.fromkeys(range(count), row_error()))
            continue
        with pytest.raises(ErrorBudgetExceeded, match=f"{failed} of .* rows of this task failed, more than max-errors"):
            keep.look(rows(20), dict.fromkeys(range(count), row_error()))
        return
    keep.finish()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=20), st.floats(0.0, 1.0))
def test_a_share_is_looked_at_once_it_says_something_and_at_the_end(failures, rate):
    keep = keeper(max_error_rate=rate)
    seen = failed = 0
    for count in failures:
        seen, failed = seen + 20, failed + count
        if count and seen >= RATE_FROM_ROWS and failed > rate * seen:
            with pytest.raises(ErrorBudgetExceeded):
                keep.look(rows(20), dict.fromkeys(range(count), row_error()))
            return
        keep.look(rows(20), dict.fromkeys(range(count), row_error()))
    if failed > rate * seen:
        with pytest.raises(ErrorBudgetExceeded):
            keep.finish()
    else:
        keep.finish()


def test_few_rows_are_judged_at_the_end_only():
    keep = keeper(max_error_rate=0.05)
    keep.look(rows(), {0: row_error()})
    keep.look(rows(18), {})
    with pytest.raises(ErrorBudgetExceeded, match=r"1 of 19 rows of this task failed, more than max-error-rate 0\.05"):
        keep.finish()
    keep.look(rows(1), {})
    keep.finish()


def test_a_budget_exceeded_says_both_limits_and_one_of_the_errors():
    keep = keeper(max_errors=1, max_error_rate=0.5)
    with pytest.raises(ErrorBudgetExceeded) as caught:
        keep.look(rows(200), {0: row_error("first"), 1: row_error("second")})
    assert str(caught.value) == (
        "function divided@2: 2 of 200 rows of this task failed, more than max-errors 1 and max-error-rate 0.5 allow; "
        "one of them: divided(number=7, by='a') of divided@2 failed: FUNCTION_ERROR: first (1 attempt)"
    )


# Error columns.

errors = st.dictionaries(
    st.integers(0, 9),
    st.builds(
        row_error, st.text(max_size=5), st.sampled_from(ErrorCode), attempts=st.integers(0, 9), retryable=st.booleans()
    ),
)


@given(errors)
def test_an_error_column_reads_back_as_the_errors(errors):
    table = pa.table({"e": error_array(10, errors)})
    assert table.column("e").null_count == 10 - len(errors)
    assert blocking_errors(table, [0]) == errors
    assert list(blocking_errors(table, [0])) == sorted(errors)


@given(errors, errors)
def test_of_several_error_columns_the_first_counts(first, second):
    table = pa.table({"a": error_array(10, first), "b": error_array(10, second)})
    assert blocking_errors(table, [0, 1]) == {**second, **first}


def test_an_error_column_has_no_traceback():
    error = row_error(traceback="Traceback")
    assert blocking_errors(pa.table({"e": error_array(1, {0: error})}), [0]) == {
        0: dataclasses.replace(error, traceback="")
    }
