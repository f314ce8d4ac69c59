"""Record batches that would need far more memory than their size, and those that only seem to."""

import struct

import pyarrow as pa
import pytest

from remote_udf.arrow import BatchWriter, read_columns, read_row
from remote_udf.errors import ProtocolViolation
from remote_udf.record_batches import MOST_BATCHES, MOST_EMPTY


def message(column, compression=None):
    """Returns a column as the record batch message of a stream, and its schema."""
    batch = pa.record_batch({"x": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    stream = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(stream)
    return stream.read(), batch.schema


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_is_refused_before_it_is_inflated(compression):
    data, schema = message(pa.array([0] * 10_000_000, pa.int64()), compression)
    assert len(data) < 1_000_000
    before = pa.total_allocated_bytes()
    with pytest.raises(ProtocolViolation, match="compressed"):
        read_columns(data, schema, 10_000_000)
    assert pa.total_allocated_bytes() == before


def nested(inner, times):
    """Returns one list with `times` elements that take no bytes."""
    offsets = pa.array([0, times], pa.int32())
    return pa.ListArray.from_arrays(offsets, inner)


MANY = MOST_EMPTY + 1


@pytest.mark.parametrize(
    "column",
    [
        nested(pa.nulls(MANY), MANY),
        pa.StructArray.from_arrays([nested(pa.nulls(MANY), MANY)], ["a"]),
        nested(pa.Array.from_buffers(pa.struct([]), MANY, [None]), MANY),
        pa.FixedSizeListArray.from_arrays(pa.nulls(MANY), MANY),
        nested(pa.Array.from_buffers(pa.list_(pa.int8(), 0), MANY, [None], children=[pa.array([], pa.int8())]), MANY),
        pa.MapArray.from_arrays(pa.array([0, MANY], pa.int32()), pa.array([True] * MANY), pa.nulls(MANY)),
    ],
    ids=["null", "in a struct", "empty structs", "fixed size of null", "fixed size 0", "map"],
)
def test_elements_that_take_no_bytes_are_not_believed_in_any_number(column):
    data, schema = message(column)
    with pytest.raises(ProtocolViolation, match=f"{MANY} elements of type"):
        read_columns(data, schema, 1)


def test_elements_that_take_no_bytes_are_read_in_numbers_that_occur():
    data, schema = message(nested(pa.nulls(MOST_EMPTY), MOST_EMPTY))
    assert len(read_columns(data, schema, 1)[0].values) == MOST_EMPTY
    data, schema = message(nested(pa.array([True] * MANY), MANY))  # the elements take bits
    assert len(read_columns(data, schema, 1)[0].values) == MANY


@pytest.mark.parametrize("type_", [pa.string_view(), pa.binary_view()])
def test_views_which_may_show_one_text_many_times_are_refused(type_):
    data, schema = message(pa.array(["a text that is not inside its view"] * 3).cast(type_))
    with pytest.raises(ProtocolViolation, match="views"):
        read_columns(data, schema, 3)


@pytest.mark.parametrize("announced", [0, 2, 1 << 40, -1])
def test_rows_that_are_not_those_announced_are_a_violation(announced):
    data, schema = message(pa.nulls(3))
    with pytest.raises(ProtocolViolation, match="announced with"):
        read_columns(data, schema, announced)


def test_no_end_of_batches_without_rows_is_read():
    schema = pa.schema([("x", pa.int64())])
    empty = b"".join(BatchWriter(schema).write(pa.RecordBatch.from_pylist([], schema)))
    one = b"".join(BatchWriter(schema).write(pa.record_batch({"x": [1]})))
    assert read_columns(empty * (MOST_BATCHES - 1) + one, schema, 1)[0].to_pylist() == [1]
    with pytest.raises(ProtocolViolation, match="more than"):
        read_columns(empty * MOST_BATCHES + one, schema, 1)


def test_the_row_of_a_stream_is_validated():
    batch = pa.record_batch({"x": ["text"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    assert read_row(data) == batch
    lying = data.replace(struct.pack("<ii", 0, 4), struct.pack("<ii", 0, 1 << 30))
    assert lying != data
    for wrong in (lying, data[:100], b""):
        with pytest.raises(ProtocolViolation):
            read_row(wrong)
