"""Scalar functions that return rows: how they are declared, and what clients get."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.functions import FunctionSpec
from udf_server.base.errors import DeclarationError
from udf_server.declaring import returned_rows as rows_module


@dataclass
class Offer:
    shop: str
    price: float


class Word(NamedTuple):
    text: str


OFFERS = pa.list_(pa.field("element", pa.struct([("shop", pa.string()), ("price", pa.float64())])))


@udf.scalar(rows=True)
async def offers(item: str) -> list[Offer] | None:
    return None if item == "none" else [Offer(f"{item} & sons", float(place)) for place in range(len(item))]


def test_the_type_of_a_row_is_that_of_the_elements():
    assert offers.spec.returns_rows
    assert offers.spec.result == OFFERS
    assert offers.spec.signature == "offers(item string) -> rows<shop:string,price:double>"


@pytest.mark.parametrize("given", ["shop string, price double", OFFERS.value_type, Offer])
def test_the_type_of_a_row_may_be_given(given):
    @udf.scalar(rows=True, returns=given)
    def f(item: str):
        return []

    assert f.spec.result == OFFERS


def test_the_flag_reaches_clients_and_leaves_the_fingerprint_unchanged():
    read = FunctionSpec.from_proto(offers.spec.to_proto())
    assert read == offers.spec

    @udf.scalar(name="offers")
    async def plain(item: str) -> list[Offer]:
        return []

    assert plain.spec.fingerprint == offers.spec.fingerprint
    assert not plain.spec.returns_rows


async def test_values_are_arrays_of_rows(environment):
    result = await environment.run(offers, pa.array(["ab", "", "none"]))
    assert result.values.to_pylist() == [
        [{"shop": "ab & sons", "price": 0.0}, {"shop": "ab & sons", "price": 1.0}], [], None,
    ]  # fmt: skip


async def test_generators_yield_rows(environment):
    @udf.scalar(rows=True)
    async def slowly(text: str) -> AsyncIterator[Word]:
        for word in text.split():
            yield Word(word)

    @udf.scalar(rows=True)
    class Words:
        def eval(self, text: str) -> Iterator[Word]:
            """Each word."""
            yield from map(Word, text.split())

    for function in (slowly, Words):
        result = await environment.run(function, pa.array(["a b", ""]))
        assert result.values.to_pylist() == [[{"text": "a"}, {"text": "b"}], []]


async def test_an_error_of_a_generator_is_that_of_its_row(environment):
    closed = []

    @udf.scalar(rows=True)
    async def numbers(count: int) -> AsyncIterator[Word]:
        try:
            for number in range(count):
                yield Word(str(number))
            if count == 2:
                raise ValueError("two")
        finally:
            closed.append(count)

    result = await environment.run(numbers, pa.array([1, 2]))
    assert result.values.to_pylist() == [[{"text": "0"}], None]
    assert "two" in result.errors[1].message
    assert sorted(closed) == [1, 2]


async def test_a_generator_without_an_end_fails_its_row(environment, monkeypatch):
    monkeypatch.setattr(rows_module, "MOST_ROWS", 10)

    @udf.scalar(rows=True)
    def endless(least: int) -> Iterator[Word]:
        for number in range(least) if least <= 10 else iter(int, 1):
            yield Word(str(number))

    result = await environment.run(endless, pa.array([10, 11]))
    assert len(result.values[0]) == 10
    assert "one call yielded more than 10 rows" in result.errors[1].message


async def test_list_functions_and_vectorized_functions_return_rows(environment):
    @udf.scalar(rows=True, batched=True)
    async def listed(items: list[str]) -> list[list[Offer] | udf.Failure]:
        return [[Offer(item, 1.0)] if item else udf.Failure("nothing") for item in items]

    @udf.scalar(rows=True, vectorized=True, returns="text string")
    def split(texts: pa.StringArray) -> pa.Array:
        return pa.array([[{"text": word} for word in text.split()] for text in texts.to_pylist()], split.spec.result)

    result = await environment.run(listed, pa.array(["a", ""]))
    assert result.values.to_pylist() == [[{"shop": "a", "price": 1.0}], None]
    assert "nothing" in result.errors[1].message
    result = await environment.run(split, pa.array(["a b", ""]))
    assert result.values.to_pylist() == [[{"text": "a"}, {"text": "b"}], []]


def test_what_has_no_rows_is_refused():
    def plain(a: int) -> int:
        return a

    def numbers(a: int) -> list[int]:
        return [a]

    def untyped(a: int) -> list:
        return [a]

    def yielding(a: int) -> Iterator[Offer]:
        yield Offer("", a)

    for code, options, message in [
        (plain, {}, "function plain, result: a function with rows=True returns list[...]"),
        (untyped, {}, "with the type of a row, or yields rows"),
        (numbers, {}, "a row has columns, so its type is a dataclass, a NamedTuple or a text such as"),
        (plain, {"returns": "double"}, "'returns' has the columns of a row, such as 'name string, price double'"),
        (plain, {"returns": "array<struct<a:int>>"}, "not 'array<struct<a:int>>'"),
        (yielding, {"vectorized": True}, "is a generator; a vectorized function returns the rows of many calls"),
    ]:
        with pytest.raises(DeclarationError) as caught:
            udf.scalar(rows=True, **options)(code)
        assert message in str(caught.value)
    with pytest.raises(DeclarationError, match="one value per row, or declare rows=True"):
        udf.scalar(yielding)


def test_rows_of_something_else_are_a_protocol_error():
    message = offers.spec.to_proto()
    message.result = FunctionSpec.from_proto(message).to_proto().parameters
    with pytest.raises(Exception, match="function offers returns rows, but its result is string"):
        FunctionSpec.from_proto(message)
