"""Columns with texts that are not UTF-8: which rows have one is found at every depth, and the other rows are kept."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.arrow import BatchWriter, read_columns
from remote_udf.errors import ProtocolViolation
from remote_udf.raw_texts import raw, read_texts, replaced
from tests.remote_udf.strategies import types, values_of

_BYTES = pa.binary()


def _is_text(value):
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _readable(value, type_):
    """Whether all texts of a value of the type are UTF-8; the value has bytes in their place."""
    if value is None:
        return True
    if pa.types.is_string(type_):
        return _is_text(value)
    if pa.types.is_list(type_):
        return all(_readable(each, type_.value_type) for each in value)
    if pa.types.is_map(type_):
        return all(_readable(key, type_.key_type) and _readable(item, type_.item_type) for key, item in value)
    if pa.types.is_struct(type_):
        return all(_readable(value[field.name], field.type) for field in type_)
    return True


def _with_bytes(type_):
    return replaced(type_, pa.string(), _BYTES)


@st.composite
def columns(draw):
    """A type, and an array of it with binaries in place of texts, which may be a slice."""
    type_ = draw(types.filter(lambda each: each != _with_bytes(each)))
    values = draw(st.lists(values_of(_with_bytes(type_)), min_size=1, max_size=6))
    array = pa.array([list(v.items()) if isinstance(v, dict) and pa.types.is_map(type_) else v for v in values],
                     _with_bytes(type_))  # fmt: skip
    start = draw(st.integers(0, len(array) - 1))
    return type_, array.slice(start)


@given(columns())
def test_the_rows_with_such_a_text_are_found_and_the_others_are_kept(drawn):
    type_, array = drawn
    expected = {row for row, value in enumerate(array.to_pylist()) if not _readable(value, type_)}
    texts, refused = read_texts(array.cast(raw(type_)))
    assert texts.type == type_
    texts.validate(full=True)
    assert refused.keys() == expected
    kept = [row for row in range(len(array)) if row not in expected]
    assert texts.take(kept).to_pylist() == array.take(kept).cast(type_).to_pylist() if kept else True


@given(columns())
def test_a_message_with_such_a_text_is_read_as_bytes_only_if_that_is_asked_for(drawn):
    type_, array = drawn
    data = b"".join(map(bytes, BatchWriter(pa.schema([("c", array.type)])).write(
        pa.RecordBatch.from_arrays([array], ["c"])
    )))  # fmt: skip
    wire = pa.schema([("c", type_)])
    [column] = read_columns(data, wire, len(array), raw_texts=True)
    assert column.type in {type_, array.type}
    assert column.cast(array.type).to_pylist() == array.to_pylist()
    if column.type != type_:
        with pytest.raises(ProtocolViolation, match="UTF"):
            read_columns(data, wire, len(array))


def test_the_first_text_of_a_row_is_named_by_its_fields():
    type_ = pa.struct([("name", pa.string()), ("tags", pa.list_(pa.struct([("tag", pa.string())])))])
    rows = [
        {"name": b"a", "tags": [{"tag": b"ok"}, {"tag": b"\xc3"}, {"tag": b"ab\xff"}]},
        {"name": b"\x80", "tags": None},
    ]
    _, refused = read_texts(pa.array(rows, _with_bytes(type_)).cast(raw(type_)))
    assert refused[0].described == "field 'tags': field 'tag': a text is not UTF-8: byte 0xc3 at position 0"
    assert refused[1].described == "field 'name': a text is not UTF-8: byte 0x80 at position 0"


def test_bytes_under_a_null_are_no_text():
    masked = pa.StructArray.from_arrays([pa.array([b"\xff", b"a"])], ["t"], mask=pa.array([True, False]))
    texts, refused = read_texts(masked.cast(raw(pa.struct([("t", pa.string())]))))
    assert (texts.to_pylist(), refused) == ([None, {"t": "a"}], {})
