"""Schemas and batches as bytes."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.arrow import BatchWriter, read_columns, read_schema, write_schema
from remote_udf.errors import ProtocolViolation
from tests.remote_udf.strategies import arrays, types

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("texts", pa.list_(pa.string())),
        ("struct", pa.struct([("x", pa.float64())])),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)
ROWS = [
    {
        "number": i,
        "text": "é" * i,
        "texts": [str(i)] * (i % 3) if i % 4 else None,
        "struct": {"x": i},
        "map": [("k", i)],
    }
    for i in range(12)
]


def joined(buffers):
    return b"".join(buffers)


@st.composite
def batches(draw, least=0):
    rows = draw(st.integers(least, 6))
    columns = [draw(arrays(draw(types), rows)) for _ in range(draw(st.integers(1, 3)))]
    schema = pa.schema([pa.field(f"c{i}", column.type) for i, column in enumerate(columns)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@given(batches())
def test_columns_read_back_as_they_were_written(batch):
    data = joined(BatchWriter(batch.schema).write(batch))
    columns = read_columns(data, batch.schema, batch.num_rows)
    assert all(read.equals(written) for read, written in zip(columns, batch.columns, strict=True))


@given(batches(least=1), st.data())
def test_columns_of_several_chunks_read_back_in_one_piece(batch, data):
    cut = data.draw(st.integers(0, batch.num_rows))
    table = pa.Table.from_batches([batch.slice(0, cut), batch.slice(cut)])
    columns = read_columns(joined(BatchWriter(batch.schema).write(table)), batch.schema, batch.num_rows)
    assert [column.to_pylist() for column in columns] == [column.to_pylist() for column in batch.columns]
    assert all(isinstance(column, pa.Array) for column in columns)


@given(batches(), batches())
def test_a_writer_writes_every_batch_on_its_own(first, second):
    writer = BatchWriter(first.schema)
    writer.write(first)
    again = joined(writer.write(first))
    assert again == joined(BatchWriter(first.schema).write(first))


@given(batches())
def test_schemas_read_back_as_they_were_written(batch):
    assert read_schema(write_schema(batch.schema)).equals(batch.schema)


def test_a_column_refers_to_the_message_it_came_in():
    schema = pa.schema([("a", pa.int64())])
    data = joined(BatchWriter(schema).write(pa.record_batch([pa.array(range(1000))], schema=schema)))
    column = read_columns(data, schema, 1000)[0]
    start = pa.py_buffer(data).address
    assert start <= column.buffers()[1].address < start + len(data)


def test_a_batch_without_columns_has_its_rows():
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    assert read_columns(joined(BatchWriter(empty.schema).write(empty)), empty.schema, 3) == []


def test_threads_may_share_a_writer():
    schema = pa.schema([("a", pa.int64())])
    writer, found = BatchWriter(schema), []

    def write(number):
        batch = pa.record_batch([pa.array([number] * 100)], schema=schema)
        found.extend((number, read_columns(joined(writer.write(batch)), schema, 100)[0][0].as_py()) for _ in range(50))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(expected == actual for expected, actual in found)
    assert len(found) == 200


@pytest.mark.parametrize("announced", [0, 11, 13])
def test_another_number_of_rows_than_announced_is_a_violation(announced):
    data = joined(BatchWriter(SCHEMA).write(pa.RecordBatch.from_pylist(ROWS, SCHEMA)))
    with pytest.raises(ProtocolViolation, match=f"announced with {announced} rows has 12"):
        read_columns(data, SCHEMA, announced)


def test_a_batch_of_another_schema_is_a_violation():
    data = joined(BatchWriter(SCHEMA).write(pa.RecordBatch.from_pylist(ROWS, SCHEMA)))
    with pytest.raises(ProtocolViolation, match="no batch of schema"):
        read_columns(data, pa.schema([("a", pa.int64())] * 9), 12)


def test_no_bytes_are_a_violation():
    with pytest.raises(ProtocolViolation):
        read_columns(b"", SCHEMA, 0)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_violation(data):
    with pytest.raises(ProtocolViolation):
        read_columns(data, SCHEMA, 1)
    with pytest.raises(ProtocolViolation):
        read_schema(data)


@given(st.data())
def test_mutated_batches_are_a_violation_or_can_be_read_whole(data):
    # With wrong offsets Arrow would read memory outside its buffers, so a check of the layout is not enough.
    good = bytearray(joined(BatchWriter(SCHEMA).write(pa.RecordBatch.from_pylist(ROWS, SCHEMA))))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        columns = read_columns(bytes(good), SCHEMA, 12)
    except ProtocolViolation:
        return
    assert [len(column.to_pylist()) for column in columns] == [12] * 5
