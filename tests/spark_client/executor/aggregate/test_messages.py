"""Bundles that exceed a message are split, whichever rows they contain."""

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.options import OnError
from spark_client.executor.aggregate.frames import Frame
from spark_client.executor.aggregate.grouped import map_grouped
from spark_client.executor.aggregate.over import OverInput, OverPlan, map_over
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.testing import LocalTransport
from tests.spark_client.executor.aggregate.world import Opening, call_of, plan_of, rows_of, table_of
from udf_server.aggregate.declaration import declare_aggregate


class Characters(udf.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, text: str):
        return accumulator + len(text)

    def retract(self, accumulator, text):
        return accumulator - len(text)

    def merge(self, accumulator, others):
        return accumulator + sum(others)

    def get_value(self, accumulator) -> int:
        return accumulator


@pytest.fixture(scope="module")
def transport():
    with LocalTransport(declare_aggregate(Characters), message_bytes=64 << 10) as transport:
        yield transport


def texts(rows):
    """Rows of a key and as many characters as a thousandth of a message."""
    return table_of({"k": (pa.int64(), [k for k, _ in rows]), "t": (pa.string(), ["x" * n for _, n in rows])})


@pytest.mark.parametrize("run", [map_partial, map_grouped])
@pytest.mark.parametrize("keys", [1, 3, 1000])
def test_a_megabyte_goes_through_messages_of_64_kilobytes(transport, run, keys):
    table = texts(sorted((i % keys, 1000) for i in range(1000)))
    plan = plan_of(table, ["k"], [(call_of(Characters), ["t"], None)], chained=True)
    found = rows_of(run(plan, iter(table.to_batches()), Opening(transport)))
    assert {row["k"] for row in found} == set(range(keys))
    assert sum(row["a0"] for row in found) == 1_000_000


@pytest.mark.parametrize("frame", [Frame(True, None, 0), Frame(True, -3, 0), Frame(True, None, None)])
def test_windows_do_so_as_well(transport, frame):
    table = texts([(1, 1000)] * 300)
    plan = OverPlan(
        inputs=(OverInput(AggregateInput(call_of(Characters), (1,)), frame),), partition=(0,), partition_names=("k",),
        order=(), passed=(0,), names=("k", "x"),
    )  # fmt: skip
    found = [row["x"] for row in rows_of(map_over(plan, iter(table.to_batches()), Opening(transport)))]
    lengths = {0: [1, 2, 3, 4] + [4] * 296, None: range(1, 301)}[None if frame.start is None else 0]
    assert found == ([300_000] * 300 if frame.end is None else [1000 * n for n in lengths])


def test_a_row_that_is_too_large_by_itself_fails_its_segment_only(transport):
    table = texts([(1, 10), (2, 100_000), (3, 20)])
    plan = plan_of(table, ["k"], [(call_of(Characters, policy={"on_error": OnError.COLUMN}), ["t"], None)])
    found = rows_of(map_partial(plan, iter(table.to_batches()), Opening(transport)))
    assert [row["a0"] for row in found] == [10, None, 20]
    assert found[1]["e0"]["code"] == "ARGUMENT_TOO_LARGE"
