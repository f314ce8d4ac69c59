"""Rows to accumulators to values, against plain Python: whatever the cuts, the bundles, the servers and faults."""

import decimal
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.options import OnError
from remote_udf.segments import AppliedField
from spark_client.executor.aggregate.grouped import map_gathered, map_grouped
from spark_client.executor.aggregate.merge import FinishPlan, map_finish
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.engine.row_engine import PlannedCall
from spark_client.executor.scalar.rows import ColumnSource, OutputColumn
from spark_client.testing import FaultyTransport, LocalTransport
from tests.properties import examples
from tests.spark_client.executor.aggregate.world import (
    DECIMAL,
    DecimalSum,
    Keys,
    Opening,
    Rows,
    Sum,
    Total,
    Trail,
    batches_of,
    by_key,
    call_of,
    codes_of,
    plan_of,
    rows_of,
    table_of,
)
from udf_server.aggregate.declaration import declare_aggregate

ROWS = st.lists(
    st.tuples(st.integers(0, 3) | st.none(), st.integers(-9, 9) | st.none(), st.booleans() | st.none()), max_size=40
)
CUTS = st.lists(st.integers(0, 40), max_size=4)


def as_table(rows, kinds=None):
    columns = {
        "k": (pa.int64(), [row[0] for row in rows]),
        "v": (pa.int64(), [row[1] for row in rows]),
        "d": (DECIMAL, [None if row[1] is None else decimal.Decimal(row[1]) / 8 for row in rows]),
        "only": (pa.bool_(), [row[2] for row in rows]),
    }
    if kinds is not None:
        columns["kind"] = codes_of(kinds)
    return table_of(columns)


def finished(function, lists, opening):
    """The value of each key from its accumulators."""
    call = call_of(function, AppliedField.FINAL_VALUE)
    table = table_of({"k": (pa.int64(), range(len(lists))), "a": (pa.list_(call.spec.accumulator), lists)})
    columns, names = ((0, 1), ("key", "accumulators")) if call.spec.sees_key else ((1,), ("accumulators",))
    if call.spec.sees_key:
        structs = pa.StructArray.from_arrays([table["k"].combine_chunks()], names=["k"])
        table = pa.table({"k": structs, "a": table["a"]})
    plan = FinishPlan(
        calls=(PlannedCall(call, columns, names=names),), keys=(), key_names=(),
        output=(OutputColumn("value", ColumnSource.VALUE, 0),),
    )  # fmt: skip
    return [row["value"] for row in rows_of(map_finish(plan, iter(table.to_batches()), opening))]


def in_order(rows):
    """Sorts by key, because a large key may be emitted before smaller keys that preceded it."""
    return sorted(rows, key=lambda row: (row["k"] is not None, row["k"] or 0))


def total(values):
    return {"sum": sum(v or 0 for v in values), "count": len(values)}


def trail(values):
    return "".join(f"{'-' if v is None else v}," for v in values)


@examples(60)
@given(ROWS, CUTS, st.integers(1, 45), st.data())
def test_partial_and_merge_give_what_all_rows_together_give(transport, rows, cuts, size, data):
    """Several calls of one pass, with a condition; accumulators merged in any order."""
    table = as_table(rows)
    opening = Opening(transport)
    plan = plan_of(table, ["k"], [
        (call_of(Total, size=size), ["v"], None),
        (call_of(Total, size=size), ["v"], "only"),
        (call_of(DecimalSum, size=size), ["d"], None),
        (call_of(Rows, arguments=0, size=size), [], "only"),
    ])  # fmt: skip
    partial = rows_of(map_partial(plan, batches_of(table, cuts), opening))
    groups = by_key(rows, lambda row: row[0])
    assert {row["k"] for row in partial} == set(groups)
    found = by_key(data.draw(st.permutations(partial)), lambda row: row["k"])
    values = [
        finished(function, [[row[name] for row in found[key]] for key in groups], opening) if groups else []
        for name, function in (("a0", Total), ("a1", Total), ("a2", DecimalSum), ("a3", Rows))
    ]
    chosen = [[row for row in group if row[2]] for group in groups.values()]
    assert values[0] == [total([row[1] for row in group]) for group in groups.values()]
    assert values[1] == [total([row[1] for row in group]) for group in chosen]
    assert values[2] == [sum(decimal.Decimal(row[1] or 0) / 8 for row in group) for group in groups.values()]
    assert values[3] == [len(group) for group in chosen]


@examples(60)
@given(ROWS, CUTS, st.integers(1, 45))
def test_sorted_rows_give_one_accumulator_per_key_in_the_order_of_the_rows(transport, rows, cuts, size):
    rows.sort(key=lambda row: (row[0] is not None, row[0] or 0))
    table = as_table(rows)
    plan = plan_of(table, ["k"], [
        (call_of(Trail, size=size), ["v"], None),
        (call_of(Trail, size=size), ["v"], "only"),
        (call_of(Sum, size=size), ["v"], None),
        (call_of(DecimalSum, size=size), ["d"], "only"),
        (call_of(Rows, arguments=0, size=size), [], None),
    ], chained=True)  # fmt: skip
    found = rows_of(map_grouped(plan, batches_of(table, cuts), Opening(transport)))
    assert in_order(found) == [
        {
            "k": key,
            "a0": trail([row[1] for row in group]),
            "a1": trail([row[1] for row in group if row[2]]),
            "a2": total([row[1] for row in group]),
            "a3": {"total": sum(decimal.Decimal(row[1] or 0) / 8 for row in group if row[2])},
            "a4": len(group),
        }
        for key, group in by_key(rows, lambda row: row[0]).items()
    ]


@examples(60)
@given(ROWS, CUTS, st.integers(1, 45), st.sampled_from([0, 200, 1 << 20]))
def test_rows_in_any_order_give_final_values_whatever_a_task_may_hold(transport, rows, cuts, size, held):
    table = as_table(rows)
    final = {"arguments": 1, "size": size, "policy": {"on_error": OnError.COLUMN}}
    plan = plan_of(table, ["k"], [
        (call_of(Total, AppliedField.FINAL_VALUE, **final), ["v"], None),
        (call_of(Total, AppliedField.FINAL_VALUE, **final), ["v"], "only"),
        (call_of(Keys, AppliedField.FINAL_VALUE, size=size), ["v"], None),
    ])  # fmt: skip
    found = rows_of(map_gathered(plan, batches_of(table, cuts), Opening(transport), held_bytes=held))
    assert in_order(found) == in_order(
        {
            "k": key,
            "a0": total([row[1] for row in group]),
            "a1": total([row[1] for row in group if row[2]]),
            "a2": f"({key},)",
            "e0": None,
            "e1": None,
        }
        for key, group in by_key(rows, lambda row: row[0]).items()
    )


KINDS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-9, 9), st.sampled_from(["+I", "-U", "+U", "-D"])), max_size=40
)


@examples(60)
@given(KINDS, CUTS, st.integers(1, 45))
def test_a_changelog_gives_what_its_table_gives(transport, changes, cuts, size):
    changes.sort(key=lambda change: change[0])
    table = as_table([(k, v, None) for k, v, _ in changes], [kind for _, _, kind in changes])
    plan = plan_of(table, ["k"], [(call_of(Sum, size=size), ["v"], None)], kinds="kind", chained=True)
    found = rows_of(map_grouped(plan, batches_of(table, cuts), Opening(transport)))
    expected = []
    for key, group in by_key(changes, lambda change: change[0]).items():
        count = value = 0
        for _, v, kind in group:
            if kind in ("+I", "+U"):
                count, value = count + 1, value + v
            elif count:
                count, value = count - 1, value - v
        if count:
            expected.append({"k": key, "a0": {"sum": value, "count": count}})
    assert in_order(found) == expected


@examples(40)
@given(KINDS, CUTS, st.integers(1, 45))
def test_bundles_of_a_changelog_carry_their_net_rows(transport, changes, cuts, size):
    table = as_table([(k, v, None) for k, v, _ in changes], [kind for _, _, kind in changes])
    plan = plan_of(table, ["k"], [(call_of(Total, size=size), ["v"], None)], kinds="kind")
    found = by_key(rows_of(map_partial(plan, batches_of(table, cuts), Opening(transport))), lambda row: row["k"])
    for key, group in by_key(changes, lambda change: change[0]).items():
        signs = [1 if kind in ("+I", "+U") else -1 for _, _, kind in group]
        assert sum(row["count"] for row in found[key]) == sum(signs)
        assert sum(row["a0"]["sum"] for row in found[key]) == sum(
            s * v for s, (_, v, _) in zip(signs, group, strict=True)
        )


@examples(40)
@given(ROWS, CUTS, st.integers(1, 45), st.booleans())
def test_rows_that_are_handed_on_all_arrive_and_carry_each_accumulator_once(transport, rows, cuts, size, chained):
    if chained:
        rows.sort(key=lambda row: (row[0] is not None, row[0] or 0))
    table = as_table(rows)
    calls = [(call_of(Total, size=size), ["v"], None)]
    plan = plan_of(table, ["k"], calls, passed=["k", "v", "only"], chained=chained)
    run = map_grouped if chained else map_partial
    found = rows_of(run(plan, batches_of(table, cuts), Opening(transport)))
    handed_on = [(row["k"], row["v"], row["only"]) for row in found]
    assert by_key(handed_on, lambda row: row[0]) == by_key(rows, lambda row: row[0])
    for group in by_key(found, lambda row: row["k"]).values():
        accumulators = [row["a0"] for row in group if row["a0"] is not None]
        assert sum(each["sum"] for each in accumulators) == sum(row["v"] or 0 for row in group)
        assert sum(each["count"] for each in accumulators) == len(group)
        assert len(accumulators) == 1 or not chained


@examples(25)
@given(ROWS, CUTS, st.integers(1, 8), st.integers(0, 1 << 30), st.booleans())
def test_lost_servers_change_nothing(transport, rows, cuts, size, seed, chained):
    rows.sort(key=lambda row: (row[0] is not None, row[0] or 0))
    table = as_table(rows)
    function = Trail if chained else Total
    run = map_grouped if chained else map_partial
    plan = plan_of(table, ["k"], [(call_of(function, size=size), ["v"], None)], chained=chained)
    faulty = FaultyTransport(transport, seed, loss_rate=0.2, most_losses=6)
    found = rows_of(run(plan, batches_of(table, cuts), Opening(faulty)))
    assert found == rows_of(run(plan, batches_of(table, cuts), Opening(transport)))


def test_a_function_sees_the_key_with_its_names(transport):
    table = table_of({"a": (pa.int64(), [1, 1]), "b": (pa.string(), ["x", None]), "v": (pa.int64(), [1, 2])})
    plan = plan_of(table, ["a", "b"], [(call_of(Keys), ["v"], None)])
    found = rows_of(map_partial(plan, iter(table.to_batches()), Opening(transport)))
    assert [row["a0"] for row in found] == ["(1, 'x')", "(1, None)"]


def test_a_key_without_accumulators_has_the_value_of_a_new_one(transport):
    assert finished(Total, [[], [{"sum": 1, "count": 1}]], Opening(transport)) == [
        {"sum": 0, "count": 0}, {"sum": 1, "count": 1},
    ]  # fmt: skip


def test_no_input_is_no_output_and_no_stream(transport):
    table = as_table([])
    opening = Opening(transport)
    for run in (map_partial, map_grouped):
        assert rows_of(run(plan_of(table, ["k"], [(call_of(Total), ["v"], None)]), iter([]), opening)) == []
    assert not opening.streams


class Watched(Total):
    """Records the number of rows of each call."""

    name = "watched"
    calls: list = []  # noqa: RUF012

    def saw(self, lengths):
        self.calls.append(sum(lengths))


class WatchedSum(Watched):
    name = "watched_sum"

    def supports_merging(self):
        return False


@examples(40)
@given(ROWS, CUTS, st.integers(1, 10))
def test_no_bundle_is_larger_than_its_size(rows, cuts, size):
    rows.sort(key=lambda row: (row[0] is not None, row[0] or 0))
    table = as_table(rows)
    for function, run in ((Watched, map_partial), (WatchedSum, map_grouped)):
        with LocalTransport(declare_aggregate(function)) as transport:
            plan = plan_of(table, ["k"], [(call_of(function, size=size), ["v"], None)], chained=True)
            Watched.calls.clear()
            rows_of(run(plan, batches_of(table, cuts), Opening(transport)))
            assert sum(Watched.calls) == len(rows)
            assert max(Watched.calls, default=0) <= size


@pytest.mark.slow
def test_a_hot_key_is_read_no_faster_than_it_is_aggregated(transport):
    """At most two bundles of a key are held, however many rows it has."""
    size, read, most = 100, [0], 0

    def batches():
        for start in range(0, 20_000, 50):
            read[0] += 50
            yield as_table([(1, i, None) for i in range(start, start + 50)]).to_batches()[0]

    class Counting(Opening):
        def opened(self, call, schema):
            stream = super().opened(call, schema)
            submit, sent = stream.submit, [0]

            def counted(chunk):
                nonlocal most
                sent[0] += len(chunk.columns[0].combine_chunks().flatten()) if len(chunk.columns) == 1 else size
                most = max(most, read[0] - sent[0])
                return submit(chunk)

            stream.submit = counted
            return stream

    table = as_table([(1, 0, None)])
    plan = plan_of(table, ["k"], [(call_of(Sum, size=size), ["v"], None)], chained=True)
    found = rows_of(map_grouped(plan, batches(), Counting(transport)))
    assert found == [{"k": 1, "a0": {"sum": sum(range(20_000)), "count": 20_000}}]
    assert most <= 3 * size


def test_the_same_result_at_any_size_for_a_large_input(transport):
    random_rows = random.Random(1)
    rows = sorted((random_rows.randrange(200), random_rows.randrange(99), None) for _ in range(20_000))
    table = as_table(rows)
    seen = set()
    for size in (1_000, 7_777, 1_000_000):
        plan = plan_of(table, ["k"], [(call_of(Sum, size=size), ["v"], None)], chained=True)
        batches = iter(table.to_batches(max_chunksize=997))
        seen.add(repr(in_order(rows_of(map_grouped(plan, batches, Opening(transport))))))
    assert len(seen) == 1
