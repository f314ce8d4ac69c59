"""A running changelog against plain Python, whatever the cuts and bundles; and played back, the table."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.options import OnError
from spark_client.executor.aggregate.changes import ChangesPlan, map_changes
from spark_client.executor.aggregate.segment_columns import AggregateInput
from tests.properties import examples
from tests.spark_client.executor.aggregate.world import (
    Opening,
    Rows,
    Sum,
    Trail,
    batches_of,
    by_key,
    call_of,
    codes_of,
    rows_of,
    table_of,
)

CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(["+I", "-U", "+U", "-D"]), st.integers(0, 3)),
    max_size=30,
)
"""Key, value, kind, version."""
MODES = ["row", "bundle", "version"]


def as_table(changes):
    return table_of({
        "k": (pa.int64(), [change[0] for change in changes]),
        "v": (pa.int64(), [change[1] for change in changes]),
        "kind": codes_of([change[2] for change in changes]),
        "version": (pa.int64(), [change[3] for change in changes]),
        "only": (pa.bool_(), [change[1] > 0 for change in changes]),
    })  # fmt: skip


def changes_of(plan, table, cuts, transport):
    return [tuple(row.values()) for row in rows_of(map_changes(plan, batches_of(table, cuts), Opening(transport)))]


def modelled(rows, value, looks):
    """The changes of one key: `rows` are kind and value, `looks` says after which of them values are compared."""
    found, held, emitted = [], [], None
    for (kind, v), look in zip(rows, looks, strict=True):
        if kind in ("+I", "+U"):
            held.append((1, v))
        elif sum(sign for sign, _ in held) > 0:
            held.append((-1, v))
        if not look:
            continue
        now = value(held) if sum(sign for sign, _ in held) else None
        if emitted != now:
            if emitted is not None:
                found.append(("-U" if now is not None else "-D", *emitted))
            if now is not None:
                found.append(("+U" if emitted is not None else "+I", *now))
        emitted = now
    return found


def total(held):
    return {"sum": sum(sign * v for sign, v in held), "count": sum(sign for sign, _ in held)}


@examples(100)
@given(
    CHANGES, st.lists(st.integers(0, 30), max_size=3), st.integers(1, 35), st.sampled_from(["row", "bundle", "version"])
)
def test_changes_are_those_of_a_key_kept_row_by_row(transport, changes, cuts, size, per):
    changes.sort(key=lambda change: change[0])
    plan = ChangesPlan(
        inputs=(
            AggregateInput(call_of(Sum, size=size), (1,)),
            AggregateInput(call_of(Rows, arguments=0, size=size), (), 4),
        ),
        keys=(0,), key_names=("k",), kinds=2, rows=1 if per == "row" else None,
        version=3 if per == "version" else None, names=("row_kind", "k", "total", "ones"),
    )  # fmt: skip
    expected = []
    for key, rows in by_key(changes, lambda change: change[0]).items():
        count, kept = 0, []
        for change in rows:
            sign = 1 if change[2] in ("+I", "+U") else -1
            if count + sign >= 0:
                count += sign
                kept.append(change)
        looks = []
        for place, change in enumerate(kept):
            last = place == len(kept) - 1
            there = {"row": True, "bundle": (place + 1) % size == 0, "version": last or kept[place + 1][3] != change[3]}
            looks.append(last or there[per])
        found = modelled(
            [(kind, v) for _, v, kind, _ in kept],
            lambda held: (total(held), sum(sign for sign, v in held if v)),
            looks,
        )
        expected += [(kind, key, *values) for kind, *values in found]
    assert changes_of(plan, as_table(changes), cuts, transport) == expected


@given(CHANGES, st.integers(1, 35), st.sampled_from([1, None]))
def test_played_back_the_changes_give_the_table(transport, changes, size, rows):
    changes.sort(key=lambda change: change[0])
    plan = ChangesPlan(
        inputs=(AggregateInput(call_of(Sum, size=size), (1,)),), keys=(0,), key_names=("k",), kinds=2, rows=rows,
        version=None, names=("row_kind", "k", "total"),
    )  # fmt: skip
    table = {}
    for kind, key, value in changes_of(plan, as_table(changes), [], transport):
        if kind in ("-U", "-D"):
            assert table.pop(key) == value
        else:
            assert key not in table
            table[key] = value
    left = {}
    for key, v, kind, _ in changes:
        count, value = left.get(key, (0, 0))
        if kind in ("+I", "+U"):
            left[key] = (count + 1, value + v)
        elif count:
            left[key] = (count - 1, value - v)
    assert table == {key: {"sum": value, "count": count} for key, (count, value) in left.items() if count}


def test_without_kinds_every_row_is_added(transport):
    table = as_table([(1, v, "+I", 0) for v in (5, 5, 7)])
    plan = ChangesPlan(
        inputs=(AggregateInput(call_of(Trail), (1,)),), keys=(0,), key_names=("k",), kinds=None, rows=1, version=None,
        names=("row_kind", "k", "trail"),
    )  # fmt: skip
    assert changes_of(plan, table, [], transport) == [
        ("+I", 1, "5,"), ("-U", 1, "5,"), ("+U", 1, "5,5,"), ("-U", 1, "5,5,"), ("+U", 1, "5,5,7,"),
    ]  # fmt: skip


def test_a_key_that_fails_has_its_error_and_no_values(transport):
    table = as_table([(1, 5, "+I", 0), (2, -13, "+I", 0), (2, 1, "+I", 0)])
    plan = ChangesPlan(
        inputs=(AggregateInput(call_of(Trail, policy={"on_error": OnError.COLUMN}), (1,)),), keys=(0,),
        key_names=("k",), kinds=None, rows=1, version=None, names=("row_kind", "k", "trail", "error"),
    )  # fmt: skip
    found = changes_of(plan, table, [], transport)
    assert [(kind, k, v, error and error["code"]) for kind, k, v, error in found] == [
        ("+I", 1, "5,", None), ("+I", 2, None, "FUNCTION_ERROR"),
    ]  # fmt: skip
