"""The most similar vectors of a table, compared with every pair computed by itself."""

import math
import pickle
import random

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_client.base.errors import InvalidVector
from spark_client.models.nearest import Nearest

NUMBERS = st.integers(-4, 4).map(float)


DOUBLES = pa.float64()


def nearest(vectors, type_=DOUBLES):
    table = pa.table({"n": pa.array(range(len(vectors)), pa.int64()), "v": pa.array(vectors, pa.list_(type_))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return pickle.loads(pickle.dumps(Nearest(sink.getvalue().to_pybytes(), 1, "score")))


def cosine(one, other):
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(x * y for x, y in zip(one, other, strict=True)) / lengths if lengths else 0.0


@given(st.integers(1, 3).flatmap(lambda size: st.tuples(
    st.lists(st.lists(NUMBERS, min_size=size, max_size=size), max_size=12),
    st.lists(st.none() | st.lists(NUMBERS, min_size=size, max_size=size), max_size=6),
)), st.integers(1, 5))  # fmt: skip
def test_the_scores_of_each_query_are_the_highest_of_all_pairs(worlds, most):
    table, queries = worlds
    found = nearest(table).search(pa.array(queries, pa.list_(pa.float64())), most).to_pylist()
    assert len(found) == len(queries)
    for query, rows in zip(queries, found, strict=True):
        scores = sorted((cosine(query, vector) for vector in table), reverse=True) if query is not None else []
        assert [row["score"] for row in rows] == pytest.approx(scores[:most], abs=1e-9)
        assert [row["score"] for row in rows] == pytest.approx([cosine(query, row["v"]) for row in rows], abs=1e-9)
        assert [row["v"] for row in rows] == [table[row["n"]] for row in rows]
        assert all(-1 <= row["score"] <= 1 for row in rows)
        assert len({row["n"] for row in rows}) == len(rows)


@st.composite
def searches(draw):
    """Vectors of a table, of which many are equal or almost so, queries, and where batches of queries are cut."""
    width, magnitude = draw(st.sampled_from([1, 2, 3, 17, 300])), draw(st.sampled_from([1e-25, 1e-3, 1.0, 1e20]))
    drawn = random.Random(draw(st.integers(0, 1_000)))
    kinds = [[drawn.gauss(0, 1) for _ in range(width)] for _ in range(3)]
    near = [[x * (1 + 1e-7) for x in kinds[0]], [-x for x in kinds[0]], [0.0] * width]
    known = [[x * magnitude for x in vector] for vector in [*kinds, *near]]
    table = [drawn.choice(known) for _ in range(draw(st.integers(1, 20)))]
    queries = [drawn.choice(known) for _ in range(draw(st.integers(1, 20)))]
    cuts = sorted(draw(st.sets(st.integers(1, len(queries)), max_size=3)))
    return table, queries, cuts, draw(st.integers(1, 25)), draw(st.sampled_from([pa.float32(), pa.float64()]))


@given(searches())
@example(([[0.1] * 768] * 7, [[0.3] * 768] * 8, [1], 7, pa.float32()))
def test_rows_and_scores_do_not_depend_on_the_rows_beside_them(world):
    table, queries, cuts, most, type_ = world
    whole = nearest(table, type_).search(pa.array(queries, pa.list_(type_)), most).to_pylist()
    apart = []
    for begin, end in zip([0, *cuts], [*cuts, len(queries)], strict=True):
        apart += nearest(table, type_).search(pa.array(queries[begin:end], pa.list_(type_)), most).to_pylist()
    assert apart == whole
    score = {}
    for query, rows in zip(queries, whole, strict=True):
        for row in rows:
            pair = tuple(query), tuple(table[row["n"]])
            if pair not in score:
                (alone,) = nearest([table[row["n"]]], type_).search(pa.array([query], pa.list_(type_)), 1).to_pylist()
                score[pair] = alone[0]["score"]
            assert row["score"] == score[pair]
            assert row["score"] == 1.0 or query != table[row["n"]] or not any(query)
        assert [row["n"] for row in rows] == [
            row["n"] for row in sorted(rows, key=lambda row: (-row["score"], row["n"]))
        ], "equal scores are not in the order of the table"


@given(searches())
def test_the_highest_scores_are_found_also_where_many_are_almost_equal(world):
    table, queries, _, most, type_ = world
    everything = nearest(table, type_).search(pa.array(queries, pa.list_(type_)), len(table)).to_pylist()
    chosen = nearest(table, type_).search(pa.array(queries, pa.list_(type_)), most).to_pylist()
    assert chosen == [rows[:most] for rows in everything]


@pytest.mark.parametrize("vector", [[1e20, 1e20], [1e-25, 1e-25], [3e38, 0.0], [1e-45, 1e-45]])
@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_a_vector_of_any_magnitude_scores_1_with_itself_and_minus_1_with_its_opposite(vector, type_):
    queries = pa.array([vector, [-x for x in vector]], pa.list_(type_))
    same, opposite = nearest([vector], type_).search(queries, 1).to_pylist()
    assert (same[0]["score"], opposite[0]["score"]) == (1.0, -1.0)


def test_zeros_have_the_score_0_in_the_order_of_the_table():
    vectors = [[1.0, 2.0], [0.0, 0.0], [-1.0, 0.0]]
    queries = pa.array([[0.0, 0.0], [-1.0, -2.0]], pa.list_(pa.float64()))
    zeros, others = nearest(vectors).search(queries, 2).to_pylist()
    assert [(row["n"], row["score"]) for row in zeros] == [(0, 0.0), (1, 0.0)]
    assert [(row["n"], row["score"]) for row in others] == [(2, pytest.approx(0.2**0.5)), (1, 0.0)]


def test_doubles_of_any_magnitude_are_compared():
    vectors = [[1.7e308, 1.7e308], [5e-324, 5e-324], [1.7e308, 5e-324]]
    (rows,) = nearest(vectors).search(pa.array([[2e-300, 2e-300]], pa.list_(pa.float64())), 3).to_pylist()
    assert [(row["n"], row["score"]) for row in rows] == [(0, 1.0), (1, 1.0), (2, pytest.approx(0.5**0.5))]


def test_more_pairs_than_fit_at_once_are_compared_in_parts(monkeypatch):
    monkeypatch.setattr("spark_client.models.nearest._SCORES", 7)
    angles = [[math.cos(n / 10), math.sin(n / 10)] for n in range(30)]
    found = nearest(angles).search(pa.array(angles, pa.list_(pa.float64())), 1)
    assert [rows[0]["n"] for rows in found.to_pylist()] == list(range(30))


@pytest.mark.parametrize(
    ("queries", "found"),
    [(pa.array(["a text"]), "string"), (pa.array([["a"]]), "array<string>"), (pa.array([1.5]), "double")],
)
def test_a_query_that_is_no_array_of_numbers_is_refused(queries, found):
    with pytest.raises(InvalidVector, match=f"the query is {found}; an array of numbers is expected"):
        nearest([[0.0, 1.0]]).search(queries, 1)


def test_float_and_integer_vectors_are_compared_with_doubles():
    queries = pa.array([[3, 4]], pa.list_(pa.int32()))
    (rows,) = nearest([[0.0, 1.0], [6.0, 8.0]], pa.float32()).search(queries, 1).to_pylist()
    assert (rows[0]["n"], rows[0]["score"]) == (1, pytest.approx(1))


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([[1.0]], "a vector of 1 numbers cannot be compared with those of the searched table, which have 2"),
        ([[1.0, 2.0], [1.0]], "the query has vectors of 1 and of 2 numbers"),
        ([[1.0, None]], "the query has a vector with a null in it"),
        ([[1.0, 2.0], [1.0, float("nan")]], "the query has a vector with NaN or an infinite number in it"),
        ([[float("-inf"), 1.0]], "the query has a vector with NaN or an infinite number in it"),
    ],
)
def test_a_vector_that_cannot_be_compared_is_refused(queries, message):
    with pytest.raises(InvalidVector, match=message):
        nearest([[1.0, 2.0]]).search(pa.array(queries, pa.list_(pa.float64())), 1)


def test_an_empty_table_has_no_nearest_row():
    assert nearest([]).search(pa.array([[1.0], None], pa.list_(pa.float64())), 3).to_pylist() == [[], []]
