"""Copies of values, and values decoded row by row."""

import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.remote_udf.strategies import types, values_of
from udf_server.declaring.annotations import codecs_for
from udf_server.values.values import codec_for_type, decode_rows

typed_values = types.flatmap(lambda type_: st.tuples(st.just(type_), st.lists(values_of(type_), max_size=6)))


@given(typed_values)
def test_decoding_row_by_row_gives_what_decoding_the_column_does(pair):
    type_, values = pair
    codec = codec_for_type(type_)
    column = codec.encode(values)
    rows = [decode_rows(codec, column.slice(index, 1))[0][0] for index in range(len(values))]
    assert rows == decode_rows(codec, column)[0]


def change_in_place(value):
    """Changes everything in the value that can be changed."""
    if isinstance(value, list):
        for each in value:
            change_in_place(each)
        value.clear()
    elif isinstance(value, dict):
        for each in value.values():
            change_in_place(each)
        value.clear()
    elif isinstance(value, bytearray):
        value[:] = b"changed"
    elif isinstance(value, np.ndarray):
        value[...] = 0


@given(typed_values)
def test_a_copy_stays_as_it_was_when_the_value_changes(pair):
    type_, values = pair
    codec = codec_for_type(type_)
    given_values = copy.deepcopy(values)
    copies = list(map(codec.copied, given_values))
    for value in given_values:
        change_in_place(value)
    assert copies == values
    assert codec.mutable or all(one is other for one, other in zip(copies, given_values, strict=True))


def test_a_copy_holds_copies_of_what_is_taken_for_lists_and_bytes():
    buffers = [bytearray(b"ab"), np.array([b"cd"]), (bytearray(b"ef"),)]
    copies = [
        codec_for_type(type_).copied(value)
        for type_, value in zip([pa.binary(), *[pa.list_(pa.binary())] * 2], buffers, strict=True)
    ]
    for each in (*buffers[:2], *buffers[2]):
        change_in_place(each)
    assert copies == [b"ab", [b"cd"], [b"ef"]]


@dataclass(frozen=True)
class FrozenParts:
    name: str
    parts: list[int]


class NamedParts(NamedTuple):
    name: str
    parts: list[int]


def test_a_copy_of_a_record_is_a_record_with_copies_of_its_fields():
    for record in (FrozenParts, NamedParts):
        codec = codecs_for(record, "test")[0]
        value = record("n", [1])
        copied = codec.copied(value)
        value.parts.append(2)
        assert copied == record("n", [1])
        assert codec.encode([copied]).to_pylist() == [{"name": "n", "parts": [1]}]


def test_a_copy_of_what_is_not_of_the_type_is_refused_as_the_value_is():
    for type_ in (pa.binary(), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())])):
        codec = codec_for_type(type_)
        value = object()
        assert codec.copied(value) is value
        with pytest.raises(TypeError, match="expected"):
            codec.encode([codec.copied(value)])
