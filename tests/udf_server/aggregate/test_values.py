"""What functions get and keep: keys, arguments and nulls as they are, and accumulators of every type."""

import copy
import datetime
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.aggregate_functions import CountAll
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied
from udf_server.aggregate.bundle import Bundle
from udf_server.aggregate.declaration import declare_aggregate


async def test_the_key_is_seen_with_its_nested_decimal_and_null_parts(environment):
    class Keys(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "", "string", "boolean"

        def bundled_accumulate_retract(self, bundle):
            return [Applied(True, None, repr(segment.key)) for segment in bundle]

    key = "id int, price decimal(10,2), at struct<day:date,tags:array<string>>"
    keys = [
        (1, Decimal("1.50"), {"day": datetime.date(2024, 2, 29), "tags": ["a", None]}),
        (None, None, {"day": None, "tags": []}),
        (None, None, None),
    ]
    applied = (await environment.apply(Keys, [Segment(each, [()]) for each in keys], key=key)).to_list()
    assert [each.final_value for each in applied] == [repr(each) for each in keys]


async def test_a_function_may_have_no_arguments_or_any_number(environment):
    class Join(udf.AggregateFunction):
        def create_accumulator(self) -> list[str]:
            return []

        def accumulate(self, accumulator, separator: str, *texts: str):
            accumulator.append(separator.join(texts))

        def get_value(self, accumulator) -> str:
            return ";".join(accumulator)

    class Widths(udf.BundledAggregateFunction):
        parameters, returns, accumulator = {"*values": "bigint"}, "bigint", "bigint"

        def bundled_accumulate_retract(self, bundle):
            return [Applied(0, None, max((len(row) for row in segment.rows), default=0)) for segment in bundle]

    assert await environment.aggregate(CountAll, [(), (), ()], keys=[1, 2, 1]) == {1: 2, 2: 1}
    assert await environment.aggregate(CountAll, []) == {(): 0}
    assert await environment.aggregate(Join, [("-", "a", "b"), ("-", "c", "d")]) == {(): "a-b;c-d"}
    assert await environment.aggregate(Join, [("-",)]) == {(): ""}
    applied = await environment.apply(Widths, [Segment((), [(1, 2, 3)])])
    assert applied.to_list()[0].final_value == 3


async def test_nulls_reach_a_function_unless_it_skips_them(environment):
    class Seen(udf.AggregateFunction):
        def create_accumulator(self) -> list[int]:
            return []

        def accumulate(self, accumulator, v: int, w: int):
            accumulator += [v, w]

        def get_value(self, accumulator) -> list[int]:
            return accumulator

    class SeenWithoutNulls(Seen):
        nulls = "skip"

    rows = [(1, 2), (None, 3), (4, None), (5, 6)]
    assert await environment.aggregate(Seen, rows) == {(): [1, 2, None, 3, 4, None, 5, 6]}
    assert await environment.aggregate(SeenWithoutNulls, rows) == {(): [1, 2, 5, 6]}
    assert await environment.aggregate(SeenWithoutNulls, [(None, 1)], keys=["a"]) == {"a": []}


async def test_a_function_with_several_types_gets_the_rows_in_the_type_they_have(environment):
    class Types(udf.AggregateFunction):
        def create_accumulator(self) -> str:
            return ""

        def accumulate(self, accumulator, v: int | str):
            return accumulator + type(v).__name__

        def get_value(self, accumulator) -> str:
            return accumulator

    assert await environment.aggregate(Types, [1, 2]) == {(): "intint"}
    assert await environment.aggregate(Types, ["a"]) == {(): "str"}


@dataclass
class Nested:
    name: str
    parts: dict[str, list[int]]


ACCUMULATORS = [
    ("boolean", True), ("tinyint", -1), ("smallint", 300), ("int", 1 << 20), ("bigint", 1 << 60), ("float", 0.5),
    ("double", 0.1), ("decimal(38,18)", Decimal("1.000000000000000001")), ("string", "é"), ("binary", b"\0\xff"),
    ("date", datetime.date(2024, 2, 29)), ("timestamp", datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)),
    ("timestamp_ntz", datetime.datetime(2024, 2, 29, 1, 2, 3, 4)), ("array<int>", [1, None]), ("array<int>", []),
    ("map<string,array<int>>", {"a": [1], "b": None}), ("struct<a:int,b:struct<c:array<struct<d:string>>>>",
    {"a": None, "b": {"c": [{"d": "x"}, None]}}), (Nested, Nested("n", {"a": [1, 2]})),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value"), ACCUMULATORS, ids=[str(row[0]) for row in ACCUMULATORS])
async def test_an_accumulator_of_any_type_comes_back_as_it_was(environment, type_, value):
    seen = []

    class Keeps(udf.AggregateFunction):
        accumulator = type_

        def create_accumulator(self):
            return value

        def accumulate(self, accumulator, v: int):
            seen.append(accumulator)
            return accumulator

        def get_value(self, accumulator) -> int:
            return 0

    class KeepsArrow(udf.VectorizedAggregateFunction):
        parameters, returns, accumulator = "v bigint", "bigint", type_

        def apply_bundle(self, bundle):
            seen.extend(codec.decode(bundle.accumulators))
            return codec.encode([value] * bundle.segments)

        def get_values(self, accumulators):
            return pa.array([0] * len(accumulators))

    codec = declare_aggregate(KeepsArrow).accumulator
    for kind in (Keeps, KeepsArrow):
        seen.clear()
        segments = [Segment((1,), [(1,), (1,)], [value], True), Segment((2,), [(1,)], [value], True)]
        applied = (await environment.apply(kind, segments)).to_list()
        assert [each.accumulator for each in applied] == [value, value]
        assert seen
        assert all(each == value for each in seen)


@dataclass
class Texts:
    values: list[str]


MUTABLE = {
    "list": ("array<string>", list, lambda acc, v: acc.append(v)),
    "list in a list": ("array<array<string>>", lambda: [[]], lambda acc, v: acc[0].append(v)),
    "map": ("map<string,string>", dict, lambda acc, v: acc.update({v: v})),
    "list in a map": ("map<string,array<string>>", lambda: {"": []}, lambda acc, v: acc[""].append(v)),
    "struct": ("struct<last:string>", lambda: {"last": None}, lambda acc, v: acc.update(last=v)),
    "record": (Texts, lambda: Texts([]), lambda acc, v: acc.values.append(v)),
}


@pytest.mark.parametrize("kind", MUTABLE)
async def test_a_value_is_what_it_was_when_it_was_asked_for_though_the_accumulator_changes_after_it(environment, kind):
    type_, create, add = MUTABLE[kind]

    class Texts(udf.AggregateFunction):
        parameters, returns, accumulator = "v string", type_, type_

        def create_accumulator(self):
            return create()

        def accumulate(self, accumulator, v):
            add(accumulator, v)

        def retract(self, accumulator, v):
            add(accumulator, "-" + v)

        def get_value(self, accumulator):
            return accumulator

    expected = [create()]
    for text in ("a", "b", "-a"):
        expected.append(copy.deepcopy(expected[-1]))
        add(expected[-1], text)
    kinds = [udf.RowKind.INSERT, udf.RowKind.UPDATE_AFTER, udf.RowKind.DELETE]
    segment = Segment((), [("a",), ("b",), ("a",)], [], True, kinds)
    (applied,) = (await environment.apply(Texts, [segment])).to_list()
    assert applied.starting_value == expected[0]
    assert list(applied.updated_values_after_each_row) == expected[1:]
    assert applied.final_value == applied.accumulator == expected[-1]


def bundle_of(rows, accumulators):
    """Segments with so many rows and so many accumulators."""
    offsets, accumulator_offsets = (np.concatenate(([0], np.cumsum(counts))) for counts in (rows, accumulators))
    keys = pa.array([{}] * len(rows), pa.struct([]))
    return Bundle(len(rows), keys, [], offsets, None, pa.nulls(int(accumulator_offsets[-1])), accumulator_offsets)


@pytest.mark.parametrize(
    ("reduce", "values", "expected"),
    [
        (np.add, np.array([1, 2, 4]), [0, 3, 4]),
        (np.multiply, np.array([3.0, 2.0, 4.0]), [1, 6, 4]),
        (np.logical_and, np.array([True, False, True]), [True, False, True]),
        (np.bitwise_and, np.array([6, 3, 4], np.uint8), [255, 2, 4]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_reduced_of_nothing_is_the_identity(reduce, values, expected):
    reduced = bundle_of([0, 2, 1], [0, 0, 0]).reduce_rows(reduce, values)
    assert (reduced.tolist(), reduced.dtype) == (expected, values.dtype)
    reduced = bundle_of([0, 0, 0], [0, 2, 1]).reduce_accumulators(reduce, values)
    assert (reduced.tolist(), reduced.dtype) == (expected, values.dtype)


@pytest.mark.parametrize("reduce", [np.minimum, np.maximum, np.fmin])
def test_what_has_no_identity_is_reduced_only_if_it_is_said_what_of_nothing_is(reduce):
    bundle, values = bundle_of([0, 2], [2, 0]), np.array([7, 9])
    expected = int(reduce(7, 9))
    assert bundle.reduce_rows(reduce, values, empty=-1).tolist() == [-1, expected]
    assert bundle.reduce_accumulators(reduce, values, empty=-1).tolist() == [expected, -1]
    for method, full in (("reduce_rows", bundle_of([1, 1], [0, 0])), ("reduce_accumulators", bundle_of([], []))):
        with pytest.raises(ValueError, match=rf"{method}: numpy.{reduce.__name__} .*; pass `empty`"):
            getattr(full, method)(reduce, values)
