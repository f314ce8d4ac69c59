"""A process call crosses the wire, and is pickled for Spark's workers."""

import pickle

import pyarrow as pa
import pytest

from remote_udf.errors import ProtocolViolation
from remote_udf.process_calls import OrderColumn, ProcessCall, TableCall

TABLE = TableCall(pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64())]), (0,), ())


@pytest.mark.parametrize("arguments", [{}, {"n": 3, "names": ["a", "b"]}])
def test_a_call_stays_the_same_when_it_is_pickled_and_sent(arguments):
    scalars = pa.RecordBatch.from_struct_array(pa.array([arguments]))
    call = ProcessCall((TABLE,), scalars, on_time=True, broadcast_state=scalars)
    for again in (
        pickle.loads(pickle.dumps(call)),
        ProcessCall.from_proto(pickle.loads(pickle.dumps(call)).to_proto()),
    ):
        assert (again.tables, again.on_time) == (call.tables, True)
        for batch in (again.scalars, again.broadcast_state):
            assert batch.num_rows == 1
            assert batch.to_pylist() == [arguments]


@pytest.mark.parametrize(
    "named",
    [{"partition_by": (2,)}, {"partition_by": (-1,)}, {"order_by": (OrderColumn(2),)}, {"time_column": 2},
     {"time_column": -2}, {"upsert_key": (99,)}],
)  # fmt: skip
def test_a_column_that_the_table_does_not_have_is_a_violation(named):
    scalars = pa.RecordBatch.from_struct_array(pa.array([{}]))
    message = ProcessCall((TableCall(TABLE.schema, **named),), scalars).to_proto()
    with pytest.raises(ProtocolViolation, match="of a table with 2 columns"):
        ProcessCall.from_proto(message)
