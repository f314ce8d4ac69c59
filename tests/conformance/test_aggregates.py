"""Aggregates made from words, and the changelogs and orders their queries mean."""

import pytest

import udf_server as udf
from tests.conformance.arrival import in_arrival_order
from tests.conformance.cases import FunctionWords
from tests.conformance.functions.aggregates import build_aggregate
from tests.conformance.functions.expressions import NotUnderstood
from tests.conformance.functions.statistics import statistic
from tests.conformance.running import changes_between
from tests.conformance.spark_sql import parse
from udf_server.testing import FunctionEnvironment

AVERAGE = (
    "without accumulator starts from (0, 0); accumulate adds v and 1, retract subtracts v and 1; value is sum / count "
    "truncated toward zero, null when count is 0; several accumulators are merged by adding sums and counts"
)


ACCUMULATOR = "ROW<sum BIGINT, count BIGINT>"


def words(behaviour, *, kind="bundled_aggregate", accumulator=ACCUMULATOR, name="f", **more):
    return FunctionWords(name, kind, (("v", "BIGINT"),), "BIGINT", behaviour, accumulator=accumulator, **more)


async def applied(told, rows, kinds=None, before=()):
    function = build_aggregate(told, "1")
    segment = udf.BundledKeySegment(
        (1,), rows, list(before), True, None if kinds is None else [udf.RowKind(kind) for kind in kinds]
    )
    async with FunctionEnvironment() as environment:
        result = await environment.apply(function, [segment])
    (one,) = result.applied
    return one


@pytest.mark.parametrize("kind", ["bundled_aggregate", "aggregate_(row-at-a-time)"])
async def test_an_average_in_words(kind):
    one = await applied(words(AVERAGE, kind=kind), [(2,), (5,), (2,)], ["+I", "+I", "-D"])
    assert (one.starting_value, one.final_value, one.updated_values_after_each_row) == (None, 5, [2, 3, 5])
    assert one.accumulator == {"sum": 5, "count": 1}
    merged = await applied(words(AVERAGE, kind=kind), [], before=[{"sum": 6, "count": 2}, {"sum": 4, "count": 1}])
    assert (merged.starting_value, merged.accumulator) == (3, {"sum": 10, "count": 3})


async def test_a_conventional_aggregate_goes_by_the_names_of_its_accumulator():
    told = "conventional aggregate with accumulate and retract; value is sum / count truncated, null when count is 0"
    one = await applied(words(told, kind="aggregate", accumulator="ROW<count BIGINT, sum BIGINT>"), [(7,), (8,)])
    assert one.accumulator == {"count": 2, "sum": 15} and one.final_value == 7
    largest = words("keeps the largest; value is max", accumulator="ROW<max BIGINT>")
    assert (await applied(largest, [(3,), (9,), (4,)])).updated_values_after_each_row == [3, 9, 9]


async def test_an_aggregate_may_be_described_by_another():
    told = words("as Other but declares that it cannot retract", can_retract=False)
    function = build_aggregate(told, "1", [words(AVERAGE, name="Other"), told])
    assert not function.spec.supports_retracting and function.spec.supports_merging
    with pytest.raises(NotUnderstood):
        build_aggregate(told, "1", [told])


@pytest.mark.parametrize(
    ("told", "columns", "value"),
    [
        ("mean of the column, as 32-bit float", [[1, 2, 6]], 3),
        ("(maximum, minimum)", [[1, 2, 6]], (6, 1)),
        ("maximum + minimum", [[1, 2, 6]], 7),
        ("the largest value of the column minus the smallest value of the column", [[1, 2, 6]], 5),
        ("sum over the arguments of each argument's maximum", [[1, 2], [5, 4]], 7),
        ("maximum of a + minimum of b", [[1, 2], [5, 4]], 6),
        ("mean of the column", [[]], None),
    ],
)
def test_a_statistic_in_words(told, columns, value):
    assert statistic(told, ("a", "b")[: len(columns)])(columns) == value


@pytest.mark.parametrize("told", ["skewness of the column", "maximum of c", "the best"])
def test_a_statistic_that_makes_no_sense_is_not_guessed_at(told):
    with pytest.raises(NotUnderstood):
        statistic(told, ("a", "b"))([[1], [2]])


def test_changes_between_results_have_kinds_by_key():
    before, after = [(1, "a"), (2, "b"), (3, "c")], [(2, "b"), (3, "d"), (4, "e")]
    assert changes_between(before, after, 1) == [
        ("-D", (1, "a")),
        ("-U", (3, "c")),
        ("+U", (3, "d")),
        ("+I", (4, "e")),
    ]


def test_the_last_value_is_that_of_the_row_that_came_last():
    tree = in_arrival_order(parse("SELECT k, LAST_VALUE(v) AS v FROM t AS x GROUP BY k"))
    sql = tree.sql("spark", normalize_functions=False)
    assert "SELECT k, max_by(v, arrival_position__) AS v" in sql
    assert "monotonically_increasing_id() AS arrival_position__ FROM t) AS x" in sql


def test_rows_of_equal_order_follow_each_other_as_they_came():
    sql = in_arrival_order(parse("SELECT f(v) OVER (ORDER BY at ROWS 1 PRECEDING) FROM t")).sql("spark")
    assert "ORDER BY at, arrival_position__" in sql.replace(" NULLS LAST", "").replace(" NULLS FIRST", "")
    plain = parse("SELECT f(v) OVER (ORDER BY at) FROM t")
    assert in_arrival_order(plain) == plain
