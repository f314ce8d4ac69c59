"""A text that is not UTF-8 is an error of its row, however the function takes its arguments."""

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.udf_server.raw_texts import BAD, column

PLACE = pa.struct([("city", pa.string()), ("codes", pa.list_(pa.field("element", pa.string())))])
SHAPES = {
    "text": (pa.string(), lambda text: text, ""),
    "struct": (PLACE, lambda text: {"city": b"x", "codes": [b"y", text]}, "field 'codes'"),
    "map": (
        pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())),
        lambda text: [(text, 1)],
        "",
    ),
}


def _functions(annotation, seen):
    """The same function in every form: it notes the values that it gets."""
    declared = {"parameters": f"value {annotation}", "returns": "string"}

    @udf.scalar(**declared)
    async def by_row(value):
        seen.append(value)
        return repr(value)

    @udf.scalar(**declared)
    def on_threads(value):
        seen.append(value)
        return repr(value)

    @udf.scalar(**declared)
    def with_key(value, context: udf.CallContext):
        seen.append(value)
        assert context.idempotency_key
        return repr(value)

    @udf.scalar(batched=True, **declared)
    def lists(value):
        seen.extend(value)
        return list(map(repr, value))

    @udf.scalar(batched=True, max_queue_delay="1 ms", **declared)
    async def merged(value):
        seen.extend(value)
        return list(map(repr, value))

    @udf.scalar(vectorized=True, **declared)
    def arrays(value):
        value.validate(full=True)
        plain = value.to_pylist(maps_as_pydicts="strict")
        seen.extend(plain)
        return pa.array(list(map(repr, plain)))

    return {each.spec.name: each for each in (by_row, on_threads, with_key, lists, merged, arrays)}


@pytest.mark.parametrize("options", [{}, {"cache_ttl": "1 min"}, {"output_mode": "unordered"}], ids=str)
@pytest.mark.parametrize("form", _functions("string", []))
@pytest.mark.parametrize("shape", SHAPES)
async def test_such_a_text_costs_its_row_only(environment, shape, form, options):
    type_, make, where = SHAPES[shape]
    seen = []
    spelling = {"text": "string", "struct": "struct<city:string,codes:array<string>>", "map": "map<string,bigint>"}
    function = _functions(spelling[shape], seen)[form]
    texts = [b"fine", BAD, None, b"fine too", BAD, "é".encode()]
    values = [None if text is None else make(text) for text in texts]
    result = await environment.run(function, column(values, type_), **options)
    bad = [1, 4]
    assert sorted(result.errors) == bad
    for row in bad:
        error = result.errors[row]
        assert (error.code, error.attempts, error.retryable) == (ErrorCode.ARGUMENT_VALUE, 0, False)
        assert "parameter 'value'" in error.message
        assert where in error.message
        assert error.message.endswith("a text is not UTF-8: byte 0xe9 at position 3")
    good = [value for row, value in enumerate(values) if row not in bad]
    alone = await environment.run(_functions(spelling[shape], [])[form], column(good, type_), **options)
    assert [value for row, value in enumerate(result.values.to_pylist()) if row not in bad] == alone.to_pylist()
    assert len(seen) == 4


async def test_a_null_beside_such_a_text_skips_the_row_in_every_form(environment):
    @udf.scalar(nulls="skip")
    async def by_row(text: str, number: int) -> int:
        return number

    @udf.scalar(nulls="skip", vectorized=True)
    def arrays(text: pa.StringArray, number: pa.Int64Array) -> pa.Int64Array:
        return number

    for function in (by_row, arrays):
        for options in ({}, {"cache_ttl": "1 min"}):
            result = await environment.run(function, column([BAD, b"a", BAD], pa.string()), [None, 1, 2], **options)
            assert result.values.to_pylist() == [None, 1, None]
            assert sorted(result.errors) == [2]


async def test_binaries_are_passed_unchanged(environment):
    @udf.scalar
    async def f(data: bytes) -> int:
        return len(data)

    assert (await environment.run(f, [BAD, b"\xff\xfe"])).to_pylist() == [4, 2]


async def test_rows_keep_their_cached_outcome_and_their_key_beside_such_a_text(environment):
    calls = []

    @udf.scalar(cache_ttl="1 min")
    def f(text: str, context: udf.CallContext) -> str:
        calls.append(text)
        return context.arguments_digest

    first = await environment.run(f, ["a", "b"])
    again = await environment.run(f, column([b"a", BAD, b"b", b"c"], pa.string()))
    fresh = await environment.run(f, column([BAD, b"c"], pa.string()), cache_mode="refresh")
    assert again.values.to_pylist()[::2] == first.to_pylist()
    assert calls == ["a", "b", "c", "c"]
    assert fresh.values[1] == again.values[3]


async def test_the_key_of_an_author_gets_texts_only(environment):
    def key(text):
        assert text.type == pa.string()
        return text

    @udf.scalar(vectorized=True, cache_ttl="1 min", cache_key=key)
    def f(text: pa.StringArray) -> pa.StringArray:
        return text

    for _ in range(2):
        result = await environment.run(f, column([b"a", BAD, b""], pa.string()))
        assert sorted(result.errors) == [1]
        assert [result.values[0].as_py(), result.values[2].as_py()] == ["a", ""]


async def test_streams_that_share_a_call_fail_only_for_their_own_texts(environment):
    @udf.scalar(batched=True, max_queue_delay="1 min")
    async def f(text: list[str]) -> list[str]:
        return text

    one, other = await environment.run_streams(f, [[column([b"a", BAD], pa.string())], [["b", "c"]]])
    assert (sorted(one.errors), one.values[0].as_py()) == ([1], "a")
    assert other.to_pylist() == ["b", "c"]
