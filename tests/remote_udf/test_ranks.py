"""Ranks of values, against Python's order of keys that sort as Spark does."""

import math

import hypothesis
import pyarrow as pa
from hypothesis import strategies as st

from remote_udf.ranks import ranks
from tests.properties import examples

NUMBERS = st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, math.inf, -math.inf, math.nan])
STRUCTS = st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 2), "b": NUMBERS})
TYPES = {
    pa.float64(): NUMBERS,
    pa.string(): st.none() | st.text(max_size=2),
    pa.bool_(): st.none() | st.booleans(),
    pa.struct({"a": pa.int64(), "b": pa.float64()}): STRUCTS,
    pa.list_(pa.float64()): st.none() | st.lists(NUMBERS, max_size=3),
    pa.list_(pa.struct({"a": pa.int64(), "b": pa.float64()})): st.none() | st.lists(STRUCTS, max_size=3),
}


def spark_key(value):
    """A key that Python orders as Spark orders the value in ascending order: nulls first, NaN last."""
    match value:
        case None:
            return (0,)
        case dict():
            return (1, spark_key(value["a"]), spark_key(value["b"]))
        case list():
            return (1, *map(spark_key, value))
        case str():
            return (1, value.encode())
        case float():
            return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (1, value)


@examples(200, deadline=None)
@hypothesis.given(
    st.sampled_from(list(TYPES)).flatmap(lambda each: st.tuples(st.just(each), st.lists(TYPES[each], max_size=8))),
    st.integers(0, 2),
)
def test_ranks_are_those_of_spark(given, start):
    type_, values = given
    kept = values[start:]
    keys = [spark_key(value) for value in kept]
    found = ranks(pa.array(values, type_).slice(start)).tolist()
    assert [rank == 0 for rank in found] == [value is None for value in kept]
    pairs = [(one, other) for one in range(len(kept)) for other in range(len(kept))]
    assert [found[one] < found[other] for one, other in pairs] == [keys[one] < keys[other] for one, other in pairs]


def test_values_without_parts_are_equal():
    assert ranks(pa.array([{}, None, {}], pa.struct([]))).tolist() == [1, 0, 1]
    assert ranks(pa.array([None, None])).tolist() == [0, 0]
