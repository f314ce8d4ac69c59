"""Row-wise functions, `async def` and plain `def`: values, order, isolation of failures, and nulls."""

import asyncio
import random
import threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from udf_server.testing import FunctionEnvironment


@udf.scalar
async def async_halve(a: int) -> int:
    if a % 2:
        raise ValueError(f"{a} is odd")
    return a // 2


@udf.scalar
def halve(a: int) -> int:
    if a % 2:
        raise ValueError(f"{a} is odd")
    return a // 2


both = pytest.mark.parametrize("function", [async_halve, halve], ids=["async", "threads"])


@both
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
@pytest.mark.parametrize("batch_rows", [1, 7, 100])
async def test_each_row_has_its_value_or_its_error(environment, function, output_mode, batch_rows):
    result = await environment.run(function, range(100), output_mode=output_mode, batch_rows=batch_rows)
    assert result.values.to_pylist() == [None if a % 2 else a // 2 for a in range(100)]
    assert result.errors.keys() == set(range(1, 100, 2))
    assert result.errors[7].message == "ValueError: 7 is odd"


@both
async def test_counts_add_up(environment, function):
    counts = (await environment.run(function, range(11))).counts
    assert (counts.rows_in, counts.rows_ok, counts.rows_failed, counts.rows_skipped) == (11, 6, 5, 0)


@both
async def test_an_error_says_what_was_raised_and_where(environment, function):
    error = (await environment.run(function, [1])).errors[0]
    assert (error.code, error.attempts, error.retryable) == (ErrorCode.FUNCTION_ERROR, 1, False)
    assert error.traceback.startswith("Traceback")
    assert 'raise ValueError(f"{a} is odd")' in error.traceback
    assert "udf_server/runners" not in error.traceback.replace("tests/udf_server/runners", "")


@both
async def test_only_some_failed_rows_of_a_batch_carry_a_traceback(environment, function):
    errors = (await environment.run(function, [1] * 50)).errors.values()
    assert 0 < sum(bool(error.traceback) for error in errors) < 10


@pytest.mark.parametrize("capacity", [1, 3, 100])
async def test_order_holds_whatever_the_delays(environment, capacity):
    delays = random.Random(1)

    @udf.scalar
    async def slow(a: int) -> int:
        await asyncio.sleep(delays.random() / 500)
        return a

    result = await environment.run(slow, range(200), buffer_capacity=capacity, batch_rows=13)
    assert result.to_pylist() == list(range(200))


@both
async def test_no_rows_are_no_rows(environment, function):
    result = await environment.run(function, pa.array([], pa.int64()))
    assert (result.to_pylist(), result.counts.rows_in) == ([], 0)


@pytest.mark.parametrize("kind", ["async", "threads", "vectorized"])
async def test_a_function_without_arguments_is_called_for_every_row(environment, kind):
    if kind == "async":

        @udf.scalar(deterministic=False)
        async def one() -> int:
            return 1
    elif kind == "threads":

        @udf.scalar(deterministic=False)
        def one() -> int:
            return 1
    else:

        @udf.scalar(deterministic=False, vectorized=True)
        def one(context: udf.CallContext) -> pa.Int64Array:
            return pa.array([1] * context.rows)

    result = await environment.run(one, rows=5, batch_rows=2)
    assert result.to_pylist() == [1] * 5


async def test_plain_functions_never_run_on_an_event_loop(environment):
    @udf.scalar
    def where(a: int) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return True
        return False

    assert all((await environment.run(where, range(10))).to_pylist())


async def test_async_functions_run_on_a_loop_of_their_own(environment):
    loops = set()

    @udf.scalar
    async def one(a: int) -> int:
        loops.add(asyncio.get_running_loop())
        return a

    @udf.scalar
    async def two(a: int) -> int:
        loops.add(asyncio.get_running_loop())
        return a

    await environment.run(one, [1])
    await environment.run(two, [1])
    assert len(loops) == 2
    assert asyncio.get_running_loop() not in loops


async def test_threads_share_the_rows_of_a_function_that_waits(environment):
    meet = threading.Barrier(4, timeout=20)

    @udf.scalar
    def wait(a: int) -> int:
        meet.wait()
        return a

    assert (await environment.run(wait, range(8), buffer_capacity=4)).to_pylist() == list(range(8))


class OddError(Exception):
    """Its text cannot be obtained."""

    def __str__(self):
        raise RuntimeError("no text")


RAISED = [
    ValueError("plain"),
    KeyError("key"),
    BaseException("base"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError("own"),
    StopIteration("stop"),
    StopAsyncIteration(),
    MemoryError(),
    OddError(),
    ExceptionGroup("several", [ValueError("one")]),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["async", "threads", "vectorized", "async vectorized"])
async def test_whatever_a_function_raises_costs_its_own_row_only(environment, raised, kind):
    bad = 3

    if kind == "async":

        @udf.scalar
        async def f(a: int) -> int:
            if a == bad:
                raise raised
            return a
    elif kind == "threads":

        @udf.scalar
        def f(a: int) -> int:
            if a == bad:
                raise raised
            return a
    elif kind == "vectorized":

        @udf.scalar(vectorized=True)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            if bad in a.to_pylist():
                raise raised
            return a
    else:

        @udf.scalar(vectorized=True)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            if bad in a.to_pylist():
                raise raised
            return a

    result = await environment.run(f, range(8))
    assert result.values.to_pylist() == [0, 1, 2, None, 4, 5, 6, 7]
    assert result.errors.keys() == {bad}
    assert result.errors[bad].code is ErrorCode.FUNCTION_ERROR
    # Python makes a RuntimeError of a StopIteration that leaves a coroutine.
    assert type(raised).__name__ in result.errors[bad].message or "RuntimeError" in result.errors[bad].message


@both
async def test_a_long_message_is_cut(environment, function):
    @udf.scalar
    def f(a: int) -> int:
        raise ValueError("x" * 100_000)

    error = (await environment.run(f, [1])).errors[0]
    assert len(error.message) < 2_000
    assert "characters cut" in error.message
    assert len(error.traceback) < 6_000


@udf.scalar(nulls="skip")
async def skip_async(a: int, b: int) -> int:
    return a + b


@udf.scalar(nulls="skip")
def skip_threads(a: int, b: int) -> int:
    return a + b


@udf.scalar(nulls="skip", vectorized=True)
def skip_vectorized(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    assert a.null_count == b.null_count == 0
    return pa.array([x + y for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)])


@pytest.mark.parametrize("function", [skip_async, skip_threads, skip_vectorized], ids=lambda f: f.spec.name)
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
async def test_with_nulls_skipped_a_row_with_a_null_is_null_without_a_call(environment, function, output_mode):
    result = await environment.run(
        function, [1, None, 3, None], [10, 20, None, None], output_mode=output_mode, batch_rows=3
    )
    assert result.to_pylist() == [11, None, None, None]
    assert (result.counts.rows_ok, result.counts.rows_skipped) == (1, 3)


@pytest.mark.parametrize("function", [skip_async, skip_threads, skip_vectorized], ids=lambda f: f.spec.name)
async def test_only_nulls_are_no_call_at_all(environment, function):
    result = await environment.run(function, pa.nulls(5), pa.nulls(5))
    assert (result.to_pylist(), result.counts.rows_skipped) == ([None] * 5, 5)


async def test_a_null_inside_an_argument_is_no_null_argument(environment):
    @udf.scalar(nulls="skip")
    def length(a: list[int]) -> int:
        return len(a)

    assert (await environment.run(length, [[None, 1], None])).to_pylist() == [2, None]


async def test_skipping_does_not_ask_values_whether_they_equal_none(environment):
    from dataclasses import dataclass

    @dataclass(eq=False)
    class Touchy:
        a: int

        def __eq__(self, other):
            raise RuntimeError("do not compare me")

        __hash__ = None

    @udf.scalar(nulls="skip")
    def get(value: Touchy, b: int) -> int:
        return value.a

    struct = pa.struct([("a", pa.int64())])
    result = await environment.run(get, pa.array([{"a": 1}, {"a": 2}], struct), [1, None])
    assert result.to_pylist() == [1, None]


@pytest.mark.parametrize(
    ("arguments", "options", "code", "why"),
    [
        (([1], [2]), {}, ErrorCode.ARGUMENT_COUNT, "halve"),
        ((), {"rows": 1}, ErrorCode.ARGUMENT_COUNT, "halve"),
        ((pa.array(["a"]),), {}, ErrorCode.ARGUMENT_TYPE, "parameter 'a': expected bigint, found string"),
        ((pa.array([1.5]),), {}, ErrorCode.ARGUMENT_TYPE, "expected bigint, found double"),
        ((pa.array([1], pa.uint64()),), {}, ErrorCode.ARGUMENT_TYPE, "does not exist in Spark"),
    ],
)
async def test_a_call_that_does_not_fit_the_signature_is_refused(environment, arguments, options, code, why):
    with pytest.raises(StreamError) as raised:
        await environment.run(halve, *arguments, **options)
    assert raised.value.code is code
    assert why in raised.value.message


async def test_a_value_too_large_for_a_message_is_an_error_of_its_row():
    @udf.scalar
    def text(size: int) -> str:
        return "x" * size

    async with FunctionEnvironment(message_bytes=100_000) as environment:
        result = await environment.run(text, [10, 200_000, 60_000, 60_000, 0])
    assert [value if value is None else len(value) for value in result.values.to_pylist()] == [
        10,
        None,
        60_000,
        60_000,
        0,
    ]
    assert result.errors.keys() == {1}
    assert result.errors[1].code is ErrorCode.RESULT_TOO_LARGE
    assert "200" in result.errors[1].message


@dataclass
class Reused:
    values: list[int]


REUSED = {
    "list": ("array<bigint>", lambda: [0], lambda value, a: value.__setitem__(0, a), lambda a: [a]),
    "numpy array": ("array<bigint>", lambda: np.zeros(1, np.int64), lambda value, a: value.fill(a), lambda a: [a]),
    "rows of a numpy array": (
        "array<array<bigint>>", lambda: np.zeros((1, 1), np.int64), lambda value, a: value.fill(a), lambda a: [[a]],
    ),
    "list in a list": (
        "array<array<bigint>>", lambda: [[0]], lambda value, a: value[0].__setitem__(0, a), lambda a: [[a]],
    ),
    "map": ("map<string,bigint>", dict, lambda value, a: value.update(a=a), lambda a: {"a": a}),
    "struct": ("struct<a:bigint>", dict, lambda value, a: value.update(a=a), lambda a: {"a": a}),
    "record": (Reused, lambda: Reused([0]), lambda value, a: value.values.__setitem__(0, a), lambda a: {"values": [a]}),
    "buffer": ("binary", lambda: bytearray(1), lambda value, a: value.__setitem__(0, a), lambda a: bytes([a])),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("context", [False, True], ids=["", "context"])
@pytest.mark.parametrize("reused", REUSED)
async def test_a_value_is_what_it_was_when_it_was_returned_though_a_later_call_changes_it(
    environment, kind, context, reused
):
    returns, create, change, expected = REUSED[reused]
    # One for each thread: what threads share without a lock has no value at any time.
    own = threading.local()
    called = set()

    def work(a):
        if a % 3 == 0 and a not in called:
            called.add(a)
            raise udf.RetryableError
        if not hasattr(own, "value"):
            own.value = create()
        change(own.value, a)
        return own.value

    async def plain_async(a: int):
        return work(a)

    async def context_async(a: int, context: udf.CallContext):
        return work(a)

    def plain_threads(a: int):
        return work(a)

    def context_threads(a: int, context: udf.CallContext):
        return work(a)

    code = {
        "async": (plain_async, context_async),
        "threads": (plain_threads, context_threads),
    }[kind][context]
    function = udf.scalar(code, returns=returns)
    result = await environment.run(function, range(20), fixed_delay="1 ms")
    assert result.to_pylist() == [expected(a) for a in range(20)]
