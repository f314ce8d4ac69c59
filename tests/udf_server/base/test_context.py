"""The call context: the information about a call that a function gets."""

import logging

import pyarrow as pa
import pytest

import udf_server as udf
from udf_server.base.context import StreamContext
from udf_server.runners.runner import RunnerSetup

STREAM = StreamContext("f", "1", operation_id="op", job="j", stage=3, partition=4, task_attempt=5, micro_batch=-1)


def context(columns=(), *, row=7, rows=1, attempt=1, offset=0, stream=STREAM, clock=lambda: 10.0):
    return udf.CallContext(stream, row, rows, attempt, 12.0, clock, columns, offset)


def key(values, **arguments):
    return context([pa.array(column) for column in values], **arguments).idempotency_key


def test_every_attempt_has_the_same_key():
    assert key([[1]], attempt=1) == key([[1]], attempt=2)


def test_the_key_says_where_the_row_is():
    assert key([[1]]).startswith("op/3/-1/4/7/")


def test_calls_of_one_function_with_other_arguments_have_other_keys():
    assert key([["a"]]) != key([["b"]])
    assert key([["a"], ["b"]]) != key([["b"], ["a"]])
    assert key([["ab"], [""]]) != key([["a"], ["b"]])
    assert key([[1]]) != key([["1"]])
    assert key([[1]]) != key([[1.0]])
    assert key([[None]]) != key([["None"]])


@pytest.mark.parametrize("field", ["operation_id", "stage", "micro_batch", "partition"])
def test_another_place_has_another_key(field):
    import dataclasses

    other = dataclasses.replace(STREAM, **{field: "other" if field == "operation_id" else 99})
    assert key([[1]]) != key([[1]], stream=other)


def test_another_task_attempt_has_the_same_key():
    import dataclasses

    assert key([[1]]) == key([[1]], stream=dataclasses.replace(STREAM, task_attempt=99))


def test_the_digest_depends_on_the_rows_of_the_call_only():
    column = pa.array([{"a": ["x", None]}, {"a": None}, {"a": ["y"]}])
    alone = context([column.slice(1, 1)]).arguments_digest
    assert context([column], offset=1).arguments_digest == alone
    assert context([column.take(pa.array([2, 1]))], offset=1).arguments_digest == alone
    assert context([column], offset=0).arguments_digest != alone


def test_what_stands_under_a_null_does_not_count():
    hidden = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\x05" * 8)])
    assert context([hidden]).arguments_digest == context([pa.array([None], pa.int64())]).arguments_digest


def test_time_left_is_counted_to_the_deadline():
    assert context().remaining == 2.0


KINDS = ["async", "threads", "vectorized", "async vectorized"]


def recording(kind, seen, fail=None, **options):
    """A function that notes the contexts it was called with."""

    def note(a, context):
        seen.append(context)
        if fail is not None:
            fail(a, context)
        return a

    if kind == "async":

        @udf.scalar(**options)
        async def f(a: int, context: udf.CallContext) -> int:
            return note(a, context)
    elif kind == "threads":

        @udf.scalar(**options)
        def f(a: int, context: udf.CallContext) -> int:
            return note(a, context)
    elif kind == "vectorized":

        @udf.scalar(vectorized=True, **options)
        def f(a: pa.Int64Array, context: udf.CallContext) -> pa.Int64Array:
            return note(a, context)
    else:

        @udf.scalar(vectorized=True, **options)
        async def f(a: pa.Int64Array, context: udf.CallContext) -> pa.Int64Array:
            return note(a, context)

    return f


@pytest.mark.parametrize("kind", KINDS)
async def test_a_function_learns_which_row_it_is_called_for(environment, kind):
    seen = []
    await environment.run(recording(kind, seen), range(10), batch_rows=5)
    rows = sorted((context.row, context.rows) for context in seen)
    assert rows == ([(0, 5), (5, 5)] if "vectorized" in kind else [(row, 1) for row in range(10)])
    assert {context.function for context in seen} == {"f"}
    assert {context.stream.operation_id for context in seen} == {"test"}


@pytest.mark.parametrize("kind", KINDS)
async def test_attempts_count_and_share_their_key(environment, kind):
    seen = []

    def fail(a, context):
        if context.attempt < 3:
            raise udf.RetryableError

    function = recording(kind, seen, fail, fixed_delay="1 ms")
    await environment.run(function, [1])
    assert [context.attempt for context in seen] == [1, 2, 3]
    assert len({context.idempotency_key for context in seen}) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replay_has_the_same_keys_and_rows_have_their_own(environment, kind):
    first, again = [], []
    # The same values everywhere: the place alone tells the rows apart.
    await environment.run(recording(kind, first), [1] * 6, batch_rows=2)
    await environment.run(recording(kind, again), [1] * 6, batch_rows=2)
    keys = [context.idempotency_key for context in first]
    assert sorted(keys) == sorted(context.idempotency_key for context in again)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_calls_in_one_place_with_other_arguments_have_other_keys(environment, kind):
    one, other = [], []
    await environment.run(recording(kind, one), [1])
    await environment.run(recording(kind, other), [2])
    assert one[0].idempotency_key != other[0].idempotency_key


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_of_skipped_nulls_keep_their_places(environment, kind):
    seen = []
    await environment.run(recording(kind, seen, nulls="skip"), [None, None, 5, None, 6])
    assert [context.row for context in seen] == ([2] if "vectorized" in kind else [2, 4])


async def test_the_digest_is_of_the_declared_types_whatever_was_sent(environment):
    narrow, wide = [], []
    await environment.run(recording("threads", narrow), pa.array([1], pa.int8()))
    await environment.run(recording("threads", wide), pa.array([1], pa.int64()))
    assert narrow[0].idempotency_key == wide[0].idempotency_key


async def test_the_deadline_is_the_rows_own(environment):
    seen = []
    await environment.run(recording("threads", seen), [1], timeout="7 s")
    assert 6 < seen[0].deadline - seen[0].clock() + 1 <= 8
    assert seen[0].remaining <= 7


@pytest.mark.parametrize("place", ["first", "middle", "last", "keyword", "defaulted", "before variadic"])
@pytest.mark.parametrize("kind", ["async", "threads", "vectorized"])
async def test_the_context_may_stand_anywhere(environment, place, kind):
    if place == "first":

        def f(context: udf.CallContext, a: int, b: int) -> int:
            return check(context, a, b)
    elif place == "middle":

        def f(a: int, context: udf.CallContext, b: int) -> int:
            return check(context, a, b)
    elif place == "last":

        def f(a: int, b: int, context: udf.CallContext) -> int:
            return check(context, a, b)
    elif place == "keyword":

        def f(a: int, b: int, *, context: udf.CallContext) -> int:
            return check(context, a, b)
    elif place == "defaulted":

        def f(a: int, b: int, c: int = 5, context: udf.CallContext = None) -> int:
            return check(context, a, b)
    else:

        def f(context: udf.CallContext, *values: int) -> int:
            return check(context, *values)

    def check(context, a, b):
        assert isinstance(context, udf.CallContext)
        return a if kind != "vectorized" else pa.array(a.to_pylist())

    if kind == "async":
        plain = f

        async def f(*args, **kwargs):
            return plain(*args, **kwargs)

        f.__signature__ = __import__("inspect").signature(plain)
        f.__annotations__ = plain.__annotations__
    function = udf.scalar(vectorized=kind == "vectorized")(f)
    assert (await environment.run(function, [1, 2], [3, 4])).to_pylist() == [1, 2]


async def test_its_logger_knows_the_call(environment, caplog):
    @udf.scalar
    def f(a: int, context: udf.CallContext) -> int:
        context.logger.warning("odd %s", a)
        return a

    with caplog.at_level(logging.WARNING, "udf.f"):
        await environment.run(f, [41])
    [record] = [record for record in caplog.records if record.name == "udf.f"]
    assert (record.getMessage(), record.function, record.row, record.attempt) == ("odd 41", "f@1", 0, 1)


async def test_functions_that_do_not_ask_get_no_context(environment, monkeypatch):
    def refuse(*_):
        raise AssertionError("a context was made for nobody")

    monkeypatch.setattr(RunnerSetup, "call_context", refuse)

    @udf.scalar
    def f(a: int) -> int:
        return a

    assert (await environment.run(f, [1, 2])).to_pylist() == [1, 2]
