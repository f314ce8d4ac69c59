"""Values that are large together are emitted in batches, and requested in messages, of bounded size."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import udf_server as udf
from remote_udf.options import OnError
from spark_client.executor.aggregate.changes import ChangesPlan, map_changes
from spark_client.executor.aggregate.frames import TO_CURRENT, WHOLE, Frame
from spark_client.executor.aggregate.over import OverInput, OverPlan, map_over
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.engine import pieces
from spark_client.executor.engine.pieces import PIECE_BYTES
from spark_client.testing import LocalTransport
from tests.spark_client.executor.aggregate.world import Opening, call_of
from udf_server.aggregate.declaration import declare_aggregate

MEGABYTE = 1 << 20


class Padded(udf.AggregateFunction):
    """Returns the number of rows in a text of a megabyte."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, v: int):
        if v < 0:
            raise ValueError("negative")
        return accumulator + 1

    def retract(self, accumulator, v):
        return accumulator - 1

    def get_value(self, accumulator) -> str:
        return str(accumulator).rjust(MEGABYTE)


@pytest.fixture(scope="module")
def transport():
    with LocalTransport(declare_aggregate(Padded)) as transport:
        yield transport


def table_of_rows(rows, **columns):
    return pa.table({"k": np.zeros(rows, np.int64), "t": np.arange(rows), "v": np.arange(rows), **columns})


def over(transport, table, *frames):
    """The values of the calls, without their padding, and the bytes of each batch."""
    inputs = tuple(OverInput(AggregateInput(call_of(Padded), (2,)), frame) for frame in frames)
    names = ("k", *(f"x{i}" for i in range(len(frames))))
    plan = OverPlan(inputs, (0,), ("k",), (1,), (0,), names)
    values, sizes = [], []
    for batch in map_over(plan, iter(table.to_batches(max_chunksize=1000)), Opening(transport)):
        sizes.append(batch.nbytes)
        values += zip(*(pc.utf8_ltrim_whitespace(column).to_pylist() for column in batch.columns[1:]), strict=True)
    return values, sizes


@pytest.mark.long
def test_a_large_value_of_every_row_of_a_partition_leaves_in_batches(transport):
    """The texts exceed the capacity of one Arrow array."""
    rows = 2500
    values, sizes = over(transport, table_of_rows(rows), WHOLE)
    assert values == [(str(rows),)] * rows
    assert sum(sizes) > 2 << 30 and max(sizes) < 2 * PIECE_BYTES


@pytest.mark.slow
def test_large_values_after_each_row_are_asked_for_in_parts_of_a_partition(transport):
    """Together the values exceed every message of the server."""
    rows = 150
    values, sizes = over(transport, table_of_rows(rows), TO_CURRENT, Frame(rows=True, start=-1, end=0))
    assert values == [(str(row + 1), str(min(row + 1, 2))) for row in range(rows)]
    assert max(sizes) < 4 * PIECE_BYTES, "of two calls"


@pytest.mark.slow
def test_the_changes_of_large_values_leave_in_batches(transport):
    rows = 150
    plan = ChangesPlan((AggregateInput(call_of(Padded), (2,)),), (0,), ("k",), None, 1, None, ("kind", "k", "x"))
    found, sizes = [], []
    for batch in map_changes(plan, iter(table_of_rows(rows).to_batches()), Opening(transport)):
        sizes.append(batch.nbytes)
        found += [
            (kind, int(text)) for kind, text in zip(batch["kind"].to_pylist(), batch["x"].to_pylist(), strict=True)
        ]
    expected = [("+I", 1)]
    for row in range(1, rows):
        expected += [("-U", row), ("+U", row + 1)]
    assert found == expected
    assert max(sizes) < 3 * PIECE_BYTES


@pytest.mark.slow
def test_a_partition_of_large_arguments_keys_and_passed_columns_is_held_in_pieces(transport, monkeypatch):
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 1)
    table = table_of_rows(100).set_column(0, "k", pa.array(["long" * 1000] * 100))
    values, _ = over(transport, table, TO_CURRENT)
    assert values == [(str(row + 1),) for row in range(100)]


def test_a_segment_that_fails_in_a_part_has_no_values_wherever_it_is_cut(transport):
    table = table_of_rows(100).set_column(2, "v", pa.array([-1 if row == 80 else row for row in range(100)]))
    call = call_of(Padded, policy={"on_error": OnError.COLUMN}, size=30)
    plan = OverPlan((OverInput(AggregateInput(call, (2,)), TO_CURRENT),), (0,), ("k",), (1,), (0,), ("k", "x", "e"))
    batches = list(map_over(plan, iter(table.to_batches()), Opening(transport)))
    assert sum(batch.num_rows for batch in batches) == 100
    assert all(batch["x"].null_count == batch.num_rows and batch["e"].null_count == 0 for batch in batches)
