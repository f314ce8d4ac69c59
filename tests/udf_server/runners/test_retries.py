"""Retries: the retried errors, the number of attempts, and the delays."""

import functools
import random
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.effective_options import ScalarOptions, canonical, resolve
from remote_udf.errors import ErrorCode
from udf_server.base.call_scope import WaitTimeout
from udf_server.runners.isolation import Call, Outcomes, Wait, advanced, isolate
from udf_server.runners.retries import Attempts, RetryPolicy
from udf_server.runners.runner import timeout_error


def policy(seed=0, **options):
    return RetryPolicy(resolve(ScalarOptions, canonical(options, source="test")), random.Random(seed))


TURN = 0.005
"""A timer of uvloop counts from when the turn of its loop began."""
BUSY = udf.RetryableError("busy")


@pytest.mark.parametrize("attempt", [1, 3])
def test_an_attempt_that_its_guard_does_not_allow_in_time_is_none(attempt):
    @udf.scalar
    def f(a: int) -> int:
        return a

    retry, timed_out = policy(max_attempts=5, retry_on=[udf.RetryableError]), functools.partial(timeout_error, 1.0)
    attempts, outcomes = Attempts(retry, 9.0, lambda: 0.0, timed_out), Outcomes(1, f.result)
    steps = isolate(outcomes, retry, 1, timed_out)
    step = advanced(steps, None)
    for _ in range(1, attempt):
        attempts.after(BUSY, with_traceback=False)
        attempts.made += 1
        assert isinstance(advanced(steps, (None, BUSY)), Wait)
        step = advanced(steps, (None, None))
    assert step == Call(range(1), attempt)
    assert advanced(steps, (None, WaitTimeout("late"))) is None
    for error in (attempts.after(WaitTimeout("late"), with_traceback=False), outcomes.errors[0]):
        assert (error.code, error.attempts, error.retryable) == (ErrorCode.TIMEOUT, attempt - 1, True)
    assert (outcomes.calls, outcomes.retries) == (attempt - 1, max(attempt - 2, 0))


def test_without_retries_there_is_no_delay():
    assert policy(retry_strategy="none").delay(BUSY, 1) is None


@given(st.integers(1, 20), st.integers(1, 30))
def test_there_are_as_many_attempts_as_were_asked_for(most, attempts):
    retried = policy(max_attempts=most, fixed_delay="1 s").delay(BUSY, attempts) is not None
    assert retried == (attempts < most)


@given(st.integers(1, 99))
def test_a_fixed_delay_is_fixed(attempts):
    assert policy(max_attempts=100, fixed_delay="250 ms").delay(BUSY, attempts) == 0.25


@given(st.integers(1, 2000), st.integers(0, 2**32))
def test_an_exponential_delay_is_drawn_below_a_doubling_bound(attempts, seed):
    options = {"retry_strategy": "exponential-delay", "initial_delay": "100 ms", "max_delay": "10 s"}
    delay = policy(seed, max_attempts=10_000, **options).delay(BUSY, attempts)
    assert 0 <= delay <= min(10.0, 0.1 * 2 ** min(attempts - 1, 30))


def test_jitter_spreads_evenly_from_zero_to_the_bound():
    exponential = policy(max_attempts=10, retry_strategy="exponential-delay", initial_delay="1 s")
    delays = [exponential.delay(BUSY, 1) for _ in range(2000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95
    assert 0.45 < sum(delays) / len(delays) < 0.55


@given(st.floats(0, 100), st.floats(0.001, 100))
def test_a_hint_is_the_least_delay(hint, fixed):
    delay = policy(fixed_delay=f"{fixed} s").delay(udf.RetryableError(retry_after=hint), 1)
    assert delay == pytest.approx(max(hint, fixed), abs=1e-6)


class OwnBusyError(udf.RetryableError):
    pass


class TwoParentsError(KeyError, OSError):
    pass


@pytest.mark.parametrize(
    ("error", "retry_on", "expected"),
    [
        (udf.RetryableError(), None, True),
        (OwnBusyError(), None, True),
        (TimeoutError(), None, True),
        (ValueError(), None, False),
        (OSError(), None, False),
        (ConnectionResetError(), None, False),
        (KeyboardInterrupt(), None, False),
        (ValueError(), "ValueError", True),
        (udf.RetryableError(), "ValueError", False),
        (ConnectionResetError(), "OSError", True),
        (TwoParentsError(), "OSError", True),
        (ValueError(), "Exception", True),
        (SystemExit(), "Exception", False),
        (udf.RetryableError(), "", False),
        (ValueError(), [KeyError, ValueError], True),
    ],
    ids=repr,
)
def test_an_error_is_retried_by_its_class(error, retry_on, expected):
    options = {} if retry_on is None else {"retry_on": retry_on}
    assert policy(**options).worthwhile(error) is expected
    assert (policy(**options).delay(error, 1) is not None) is expected


def failing(kind, error, times, calls, **options):
    def work(a):
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise error
        return a

    if kind == "async":

        @udf.scalar(**options)
        async def f(a: int) -> int:
            return work(a)
    elif kind == "threads":

        @udf.scalar(**options)
        def f(a: int) -> int:
            return work(a)
    elif kind == "vectorized":

        @udf.scalar(vectorized=True, **options)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            return work(a)
    else:

        @udf.scalar(vectorized=True, **options)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            return work(a)

    return f


kinds = pytest.mark.parametrize("kind", ["async", "threads", "vectorized", "async vectorized"])


@kinds
async def test_a_row_succeeds_on_its_last_attempt(environment, kind):
    calls = []
    result = await environment.run(failing(kind, BUSY, 2, calls, fixed_delay="1 ms"), [5])
    assert (result.to_pylist(), len(calls), result.counts.retries) == ([5], 3, 2)


@kinds
async def test_a_row_that_never_succeeds_has_its_last_error(environment, kind):
    calls = []
    result = await environment.run(failing(kind, BUSY, 99, calls, fixed_delay="1 ms", max_attempts=4), [5])
    error = result.errors[0]
    assert (error.code, error.message) == (ErrorCode.FUNCTION_ERROR, "RetryableError: busy")
    assert (error.attempts, error.retryable, len(calls), result.counts.retries) == (4, True, 4, 3)


@kinds
async def test_a_value_error_is_never_retried_unless_asked(environment, kind):
    calls = []
    result = await environment.run(failing(kind, ValueError("bad"), 99, calls, fixed_delay="1 ms"), [5])
    assert (len(calls), result.errors[0].attempts, result.errors[0].retryable) == (1, 1, False)
    calls.clear()
    result = await environment.run(
        failing(kind, ValueError("bad"), 1, calls, fixed_delay="1 ms"), [5], retry_on="ValueError"
    )
    assert (len(calls), result.to_pylist()) == (2, [5])


@kinds
async def test_the_delay_lies_between_two_attempts(environment, kind):
    calls = []
    await environment.run(failing(kind, BUSY, 1, calls, fixed_delay="60 ms"), [5])
    assert calls[1] - calls[0] >= 0.06 - TURN


@kinds
async def test_a_hint_of_the_function_is_waited_for(environment, kind):
    calls = []
    await environment.run(failing(kind, udf.RetryableError(retry_after=0.08), 1, calls, fixed_delay="1 ms"), [5])
    assert calls[1] - calls[0] >= 0.08 - TURN


@kinds
async def test_the_caller_may_switch_retries_off(environment, kind):
    calls = []
    result = await environment.run(failing(kind, BUSY, 99, calls), [5], retry_strategy="none")
    assert (len(calls), result.errors[0].retryable) == (1, True)


@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_a_retrying_row_does_not_hold_back_its_neighbours(environment, kind):
    order = []

    def work(a):
        if a == 0 and a not in order:
            order.append(a)
            raise udf.RetryableError
        order.append(a)
        return a

    if kind == "async":

        @udf.scalar(fixed_delay="200 ms")
        async def f(a: int) -> int:
            return work(a)
    else:

        @udf.scalar(fixed_delay="200 ms")
        def f(a: int) -> int:
            return work(a)

    assert (await environment.run(f, range(5))).to_pylist() == [0, 1, 2, 3, 4]
    assert order[0] == order[-1] == 0


async def test_a_wrong_return_value_is_not_retried(environment):
    calls = []

    @udf.scalar(retry_on="Exception", fixed_delay="1 ms")
    async def f(a: int) -> int:
        calls.append(a)
        return "text"

    result = await environment.run(f, [1])
    assert (calls, result.errors[0].code) == ([1], ErrorCode.RESULT_TYPE)
