"""Segments that fail, parts of a chain that fail, and operators that are closed early."""

import threading

import pyarrow as pa
import pytest

from remote_udf.options import OnError
from spark_client.base.errors import FunctionFailed
from spark_client.executor.aggregate.frames import Frame
from spark_client.executor.aggregate.grouped import map_grouped
from spark_client.executor.aggregate.over import OverInput, OverPlan, map_over
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.sql.rows.scope import HIDDEN
from spark_client.testing import LocalTransport
from tests.spark_client.executor.aggregate.world import (
    ALL,
    Keys,
    Opening,
    Sum,
    Total,
    Trail,
    batches_of,
    call_of,
    codes_of,
    plan_of,
    rows_of,
    table_of,
)
from tests.waiting import wait_until
from udf_server.aggregate.declaration import declare_aggregate


def as_table(rows):
    """Rows of key and value; the functions fail for -13."""
    return table_of({"k": (pa.int64(), [k for k, _ in rows]), "v": (pa.int64(), [v for _, v in rows])})


ROWS = [(1, 5), (2, -13), (2, 1), (3, 7), (3, 8)]
POLICIES = [OnError.NULL, OnError.COLUMN]


@pytest.mark.parametrize("run", [map_partial, map_grouped])
def test_to_fail_names_function_version_key_and_cause(transport, run):
    plan = plan_of(as_table(ROWS), ["k"], [(call_of(Total), ["v"], None)], chained=True)
    with pytest.raises(FunctionFailed) as raised:
        rows_of(run(plan, batches_of(as_table(ROWS), []), Opening(transport)))
    text = str(raised.value)
    assert "function total@1: a segment of the key (k=2) failed: FUNCTION_ERROR: ValueError: thirteen" in text
    assert "Remote traceback:" in text


def test_to_fail_shows_an_expression_of_sql_without_its_generated_name(transport):
    table = as_table(ROWS).rename_columns([f"{HIDDEN}key_0", "v"])
    plan = plan_of(table, [f"{HIDDEN}key_0"], [(call_of(Total), ["v"], None)], chained=True)
    with pytest.raises(FunctionFailed, match=r"a segment of the key \(2\) failed"):
        rows_of(map_grouped(plan, batches_of(table, []), Opening(transport)))


def test_to_fail_without_a_key_says_so(transport):
    plan = plan_of(as_table(ROWS), [], [(call_of(Total), ["v"], None)])
    with pytest.raises(FunctionFailed, match="a segment of all rows failed"):
        rows_of(map_partial(plan, batches_of(as_table(ROWS), []), Opening(transport)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("run", [map_partial, map_grouped])
def test_a_segment_that_fails_fails_alone(transport, run, policy):
    call = call_of(Total, policy={"on_error": policy})
    plan = plan_of(as_table(ROWS), ["k"], [(call, ["v"], None), (call_of(Keys), ["v"], None)], chained=True)
    found = {row["k"]: row for row in rows_of(run(plan, batches_of(as_table(ROWS), []), Opening(transport)))}
    assert {k: row["a0"] and row["a0"]["sum"] for k, row in found.items()} == {1: 5, 2: None, 3: 15}
    assert {k: row["e0"] and row["e0"]["code"] for k, row in found.items()} == {1: None, 2: "FUNCTION_ERROR", 3: None}
    assert {k: row["a1"] for k, row in found.items()} == {1: "(1,)", 2: "(2,)", 3: "(3,)"}


@pytest.mark.parametrize("place", [0, 10, 49])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_part_that_fails_fails_its_key_and_no_other(transport, place, size):
    """Wherever in a long key the row stands, and however the key is cut."""
    long = [(2, -13 if i == place else i) for i in range(50)]
    table = as_table([(1, 1), *long, (3, 3)])
    call = call_of(Trail, policy={"on_error": OnError.COLUMN}, size=size)
    plan = plan_of(table, ["k"], [(call, ["v"], None), (call_of(Sum, policy={"on_error": OnError.NULL}), ["v"], None)],
                   chained=True)  # fmt: skip
    found = {row["k"]: row for row in rows_of(map_grouped(plan, batches_of(table, [20]), Opening(transport)))}
    assert {k: row["a0"] for k, row in found.items()} == {1: "1,", 2: None, 3: "3,"}
    assert found[2]["e0"]["message"] == "ValueError: thirteen"
    assert {k: row["a1"] and row["a1"]["count"] for k, row in found.items()} == {1: 1, 2: None, 3: 1}


def test_an_error_stays_with_its_key_though_it_had_no_rows_for_a_while(transport):
    """A key of a changelog that has failed remains failed, whether it is cut or not."""
    changes = [("+I", -13), ("-D", 0), ("+I", 4), ("+I", 5)]
    table = table_of({
        "k": (pa.int64(), [1] * 4),
        "v": (pa.int64(), [v for _, v in changes]),
        "kind": codes_of([kind for kind, _ in changes]),
    })  # fmt: skip
    for size in (1, 2, 3, 100):
        call = call_of(Sum, policy={"on_error": OnError.NULL}, size=size)
        plan = plan_of(table, ["k"], [(call, ["v"], None)], kinds="kind", chained=True)
        (row,) = rows_of(map_grouped(plan, batches_of(table, []), Opening(transport)))
        assert row["a0"] is None
        assert row["e0"]["message"] == "ValueError: thirteen"


def over_plan(table, call):
    return OverPlan(
        inputs=(OverInput(AggregateInput(call, (1,)), Frame(rows=True, start=-2, end=0)),),
        partition=(0,), partition_names=("k",), order=(), passed=(0, 1),
        names=("k", "v", "x", "e")[: 4 if call.policy.on_error is OnError.COLUMN else 3],
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 100])
def test_windows_of_a_partition_that_fails_have_errors_and_others_do_not(transport, size):
    call = call_of(Sum, policy={"on_error": OnError.COLUMN}, size=size)
    found = rows_of(map_over(over_plan(as_table(ROWS), call), batches_of(as_table(ROWS), []), Opening(transport)))
    assert [row["x"] and row["x"]["sum"] for row in found] == [5, None, None, 7, 15]
    assert [row["e"] and row["e"]["code"] for row in found] == [None, "FUNCTION_ERROR", "FUNCTION_ERROR", None, None]


def test_a_function_that_cannot_retract_fails_only_the_windows_that_hold_the_row(transport):
    """Frames are then computed separately, each as a segment."""
    rows = [(1, 1), (1, -13), (1, 3), (1, 4), (1, 5)]
    call = call_of(Trail, policy={"on_error": OnError.COLUMN})
    found = rows_of(map_over(over_plan(as_table(rows), call), batches_of(as_table(rows), []), Opening(transport)))
    assert [row["x"] for row in found] == ["1,", None, None, None, "3,4,5,"]


def test_windows_name_the_partition_that_failed(transport):
    with pytest.raises(FunctionFailed, match=r"function sum_in_one_place@1: a segment of the key \(k=2\) failed"):
        rows_of(map_over(over_plan(as_table(ROWS), call_of(Sum)), batches_of(as_table(ROWS), []), Opening(transport)))


def ours():
    names = ("local-requests", "remote-udf")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def open_streams(transport):
    samples = [each for family in transport.metrics.registry.collect() for each in family.samples]
    return sum(each.value for each in samples if each.name == "udf_streams_open")


@pytest.mark.parametrize("run", ["partial", "grouped", "over"])
def test_an_operator_that_is_left_early_leaves_no_stream_and_no_thread(run):
    rows = [(key // 30, key) for key in range(3000)]
    table = as_table(rows)
    before = ours()
    with LocalTransport(*map(declare_aggregate, ALL)) as transport:
        opening = Opening(transport)
        if run == "over":
            output = map_over(over_plan(table, call_of(Sum, size=10)), iter(table.to_batches(100)), opening)
        else:
            plan = plan_of(table, ["k"], [(call_of(Sum, size=10), ["v"], None)], chained=True)
            operator = map_grouped if run == "grouped" else map_partial
            output = operator(plan, iter(table.to_batches(100)), opening)
        assert next(output).num_rows
        output.close()
        assert opening.streams
        wait_until(lambda: not open_streams(transport))
        wait_until(lambda: not ours() - before)
