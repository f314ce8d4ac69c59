"""Rows of a table as the segments of a bundle."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.aggregate.merge import without_repeats
from spark_client.executor.aggregate.segment_columns import (
    AggregateInput,
    accumulator_lists,
    group_by_key,
    group_by_runs,
    rows_column,
    structs,
)
from tests.spark_client.executor.aggregate.world import DecimalSum, Rows, Total, by_key, call_of, codes_of, table_of

TABLES = st.lists(
    st.tuples(
        st.integers(0, 4) | st.none(), st.integers(-3, 3) | st.none(), st.booleans() | st.none(),
        st.sampled_from(["+I", "-U", "+U", "-D"]),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


def as_table(rows, value=None):
    value = value or pa.int64()
    return table_of({
        "k": (pa.int64(), [row[0] for row in rows]),
        "v": (value, [row[1] for row in rows]),
        "only": (pa.bool_(), [row[2] for row in rows]),
        "kind": codes_of([row[3] for row in rows]),
    })  # fmt: skip


@given(TABLES)
def test_segments_have_the_rows_of_their_key_in_input_order(rows):
    table = as_table(rows)
    grouping = group_by_key([table["k"]], len(rows))
    source = AggregateInput(call_of(Total), (1,))
    groups = by_key(rows, lambda row: row[0])
    found = rows_column(source, table, grouping, None).to_pylist()
    keys = [rows[i][0] for i in grouping.first_rows()]
    assert len(keys) == len(groups)
    assert dict(zip(keys, found, strict=True)) == {
        key: [{"0": row[1]} for row in group] for key, group in groups.items()
    }
    assert [rows[i] for i in grouping.last_rows()] == [groups[key][-1] for key in keys]


@given(TABLES)
def test_conditions_and_null_arguments_leave_rows_out_and_segments_in(rows):
    table = as_table(rows, pa.decimal128(20, 4))
    grouping = group_by_key([table["k"]], len(rows))
    skipping = AggregateInput(call_of(DecimalSum), (1,), condition=2)
    found = rows_column(skipping, table, grouping, table["kind"]).to_pylist()
    by_keys = by_key(rows, lambda row: row[0])
    groups = [by_keys[rows[i][0]] for i in grouping.first_rows()]
    assert len(groups) == len(by_keys)
    assert [[int(row["0"]) for row in segment] for segment in found] == [
        [row[1] for row in group if row[2] and row[1] is not None] for group in groups
    ]
    assert [[row["row_kind"] for row in segment] for segment in found] == [
        [["+I", "-U", "+U", "-D"].index(row[3]) for row in group if row[2] and row[1] is not None] for group in groups
    ]


def test_without_arguments_a_segment_still_says_how_many_rows_it_has():
    table = as_table([(1, 0, True, "+I"), (2, 0, True, "+I"), (1, 0, True, "+I")])
    grouping = group_by_key([table["k"]], 3)
    assert rows_column(AggregateInput(call_of(Rows, arguments=0), ()), table, grouping, None).to_pylist() == [
        [{}, {}], [{}],
    ]  # fmt: skip


def test_runs_are_segments_as_they_stand():
    table = as_table([(1, 5, True, "+I"), (1, 6, True, "+I"), (2, 7, True, "+I")])
    grouping = group_by_runs(pa.array([0, 2]).to_numpy(), 3)
    assert rows_column(AggregateInput(call_of(Total), (1,)), table, grouping, None).to_pylist() == [
        [{"0": 5}, {"0": 6}], [{"0": 7}],
    ]  # fmt: skip
    assert grouping.codes.tolist() == [0, 0, 1]


def test_the_key_of_an_aggregate_over_everything_is_empty():
    assert structs([], [], 2).to_pylist() == [{}, {}]
    assert structs([pa.array([1, None])], ["k"], 2).to_pylist() == [{"k": 1}, {"k": None}]


def test_accumulators_of_a_segment_are_those_that_are_there():
    one = pa.array([{"total": 1}], pa.struct([("total", pa.int64())]))
    assert accumulator_lists([None], one.type).to_pylist() == [[]]
    assert accumulator_lists([one], one.type).to_pylist() == [[{"total": 1}]]


@given(
    st.lists(
        st.none() | st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.lists(st.integers(0, 1))))
    )
)
def test_the_first_of_equal_rows_of_each_list_is_left(lists):
    type_ = pa.list_(pa.struct([("0", pa.string()), ("1", pa.list_(pa.int64()))]))
    rows = [None if each is None else [{"0": one, "1": two} for one, two in each] for each in lists]
    left = without_repeats(pa.array([[], *rows], type_).slice(1))
    assert left.type == type_
    left.validate(full=True)
    seen = [[row for i, row in enumerate(each or []) if row not in each[:i]] for each in rows]
    assert [each or [] for each in left.to_pylist()] == seen
