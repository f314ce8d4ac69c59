"""The accumulators of a task are merged before they are emitted, if that reduces their number."""

import pyarrow as pa
import pytest

from remote_udf.segments import AppliedField
from spark_client.executor.aggregate.partial import can_combine, combined_bundles, map_partial
from tests.spark_client.executor.aggregate.world import Opening, Sum, Total, by_key, call_of, plan_of, rows_of, table_of

ACCUMULATOR = call_of(Total).spec.accumulator


def as_table(rows):
    return table_of({"k": (pa.int64(), [k for k, _ in rows]), "v": (pa.int64(), [v for _, v in rows])})


def partial(rows, transport, size):
    """Returns the emitted rows of the task, and its number of streams."""
    table = as_table(rows)
    opening = Opening(transport)
    plan = plan_of(table, ["k"], [(call_of(Total, size=size), ["v"], None)])
    return rows_of(map_partial(plan, iter(table.to_batches(7)), opening)), len(opening.streams)


def totals(rows):
    return {
        key: {"sum": sum(v for _, v in group), "count": len(group)}
        for key, group in by_key(rows, lambda row: row[0]).items()
    }


def test_a_key_leaves_its_task_once(transport):
    rows = [(index % 5, index) for index in range(100)]
    found, streams = partial(rows, transport, size=10)
    assert len(found) == 5
    assert {row["k"]: row["a0"] for row in found} == totals(rows)
    assert streams == 2


def test_one_bundle_is_not_merged_with_itself(transport):
    rows = [(index % 5, index) for index in range(100)]
    found, streams = partial(rows, transport, size=1000)
    assert {row["k"]: row["a0"] for row in found} == totals(rows)
    assert streams == 1


def test_keys_that_do_not_come_back_are_handed_on(transport):
    rows = [(index, index) for index in range(100)]
    found, streams = partial(rows, transport, size=10)
    assert {row["k"]: row["a0"] for row in found} == totals(rows)
    assert streams == 1


@pytest.mark.parametrize(("keys", "left"), [(2, 2), (10, 10), (29, 29)])
def test_what_is_held_is_bounded(transport, keys, left):
    """Accumulators are merged if few remain, and emitted if not; the total is right in both cases."""
    plan = plan_of(as_table([(0, 0)]), ["k"], [(call_of(Total), ["v"], None)])
    merges, most = [], 0

    def merge(merging, held):
        nonlocal most
        most = max(most, sum(batch.num_rows for batch in held))
        merges.append(len(held))
        return list(map_partial(merging, iter(held), Opening(transport)))

    def bundles():
        for first in range(0, 600, 10):
            rows = [{"k": (first + i) % keys, "a0": {"sum": 1, "count": 1}} for i in range(10)]
            yield [pa.RecordBatch.from_pylist(rows, pa.schema([("k", pa.int64()), ("a0", ACCUMULATOR)]))]

    limit = 3 * next(bundles())[0].nbytes
    found = rows_of(combined_bundles(plan, bundles(), merge, held_bytes=limit))
    assert sum(row["a0"]["count"] for row in found) == 600
    assert {row["k"] for row in found} == set(range(left))
    assert most <= 2 * 30
    assert merges or keys > 22


def test_only_accumulators_of_functions_that_merge_are_merged():
    table = as_table([(0, 0)])

    def can(call):
        return can_combine(plan_of(table, ["k"], [(call, ["v"], None)]))

    assert can(call_of(Total))
    assert not can(call_of(Sum))
    assert not can(call_of(Total, AppliedField.FINAL_VALUE))
