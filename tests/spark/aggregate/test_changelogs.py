"""Changelogs as input of remote aggregates."""

import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError
from tests.spark_client.executor.aggregate.world import ALL
from tests.udf_server.aggregate_functions import BundledAverage
from udf_server.aggregate.declaration import declare_aggregate


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, [*ALL, BundledAverage]))


CHANGES = [
    ("+I", 1, 5), ("+I", 2, 7), ("-D", 2, 7), ("-D", 3, 1), ("+I", 1, 6), ("-U", 1, 5), ("+U", 1, 8), ("+I", 3, 2),
]  # fmt: skip
"""Key 2 loses all rows; what is taken from key 3 was never there."""
LEFT = {1: 14, 3: 2}


@pytest.fixture
def changes(spark):
    return spark.createDataFrame(CHANGES, "row_kind string, k int, v bigint").coalesce(1)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["total", "sum_in_one_place"])
def test_rows_are_taken_back_and_keys_without_rows_are_not_in_the_result(functions, changes, name, size):
    function = functions.function(name, size=size)
    found = functions.group_by(changes, "k").agg(function("v").alias("t"), functions.function("rows")().alias("n"))
    assert {row.k: row.t.sum for row in found.collect()} == LEFT
    assert {row.k: row.n for row in found.collect()} == {1: 2, 3: 1}


def test_the_worked_example_of_flip_491(functions, spark):
    """ "Group By Example": averages of odd and even values, of which some are replaced."""
    rows = [("+I", 1), ("+I", 2), ("+I", 5), ("-U", 2), ("+U", 6), ("-U", 1), ("+U", 3)]
    frame = spark.createDataFrame(rows, "row_kind string, v1 bigint").coalesce(1)
    average = functions.function("bundled_average", size=3)
    found = functions.group_by(frame, (F.col("v1") % 2).alias("odd")).agg(average("v1").alias("a"))
    assert {row.odd: row.a for row in found.collect()} == {1: 4, 0: 6}


@pytest.mark.connect
def test_the_change_feed_of_a_delta_table_is_understood_as_it_is(functions, changes):
    kinds = {"+I": "insert", "-U": "update_preimage", "+U": "update_postimage", "-D": "delete"}
    delta = changes.replace(kinds, subset="row_kind").withColumnRenamed("row_kind", "_change_type")
    found = functions.group_by(delta, "k").agg(functions.function("total")("v").alias("t"))
    assert {row.k: row.t.sum for row in found.collect()} == LEFT


def test_an_aggregate_over_everything_goes_back_to_the_value_of_no_rows(functions, spark):
    frame = spark.createDataFrame([("+I", 1), ("-D", 1)], "row_kind string, v bigint").coalesce(1)
    (row,) = functions.group_by(frame).agg(functions.function("total")("v").alias("t")).collect()
    assert row.t.asDict() == {"sum": 0, "count": 0}


@pytest.mark.parametrize("type_", ["float", "double"])
def test_sums_of_what_is_left_have_no_trace_of_nan_and_infinities(functions, spark, type_):
    nan, inf = "NaN", "Infinity"
    added = {
        "a": [nan, 1.5, inf, -0.5],
        "b": [inf, f"-{inf}"],
        "c": [inf],
        "d": [nan, None],
        "e": [inf],
        "f": [f"-{inf}", 2],
    }
    retracted = {"a": [nan, inf], "b": [f"-{inf}"], "c": [inf, 1], "d": [], "e": [inf], "f": [2]}
    rows = [
        (kind, k, None if v is None else str(v))
        for kind, sides in (("+I", added), ("-D", retracted)) for k, values in sides.items() for v in values
    ]  # fmt: skip
    changes = spark.createDataFrame(rows, "row_kind string, k string, t string").selectExpr(
        "*", f"cast(t AS {type_}) AS v"
    )
    sums = functions.group_by(changes, "k").agg(F.sum("v").alias("s"), F.avg("v").alias("a"), F.count("*").alias("n"))
    found = {row.k: (str(row.s), str(row.a)) for row in sums.collect()}
    # More rows were retracted from c than added.
    expected = {"a": ("1.0", "0.5"), "b": ("inf", "inf"), "d": ("nan", "nan"), "f": ("-inf", "-inf")}
    assert {k: each for k, each in found.items() if k in expected} == expected


def test_the_order_of_changes_is_the_frames_or_the_callers(functions, spark):
    """In reverse order, rows are retracted before they are added."""
    frame = spark.createDataFrame(
        [(2, "-D", 1, 5), (1, "+I", 1, 5)], "at int, row_kind string, k int, v bigint"
    ).coalesce(1)
    total = functions.function("total")
    assert [row.t.sum for row in functions.group_by(frame, "k").agg(total("v").alias("t")).collect()] == [5]
    assert functions.group_by(frame, "k", order_by="at").agg(total("v").alias("t")).collect() == []


def test_changes_are_in_order_beside_sparks_own_aggregates_too(functions, changes):
    # The frame is in reverse order, so only the requested order gives the right result.
    frame = changes.where("k < 3").withColumn("n", F.monotonically_increasing_id())
    grouped = functions.group_by(frame.orderBy(F.col("n").desc()), "k", order_by="n")
    found = grouped.agg(functions.function("total")("v").alias("t"), F.count("*").alias("rows")).collect()
    assert [(row.k, row.t.sum, row["rows"]) for row in found] == [(1, LEFT[1], 2)]
    with pytest.raises(PlanError, match="beside Spark's own aggregates, order_by takes columns"):
        functions.group_by(frame, "k", order_by=F.col("n").desc()).agg(functions.function("total")("v"), F.count("*"))


class Listed(udf.AggregateFunction):
    """collect_list of the values of maps in its obvious form: it retracts only values in its accumulator."""

    name, parameters, accumulator, returns = "listed", "v map<string, bigint>", "array<bigint>", "array<bigint>"

    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, v):
        accumulator.append(v["v"])

    def retract(self, accumulator, v):
        accumulator.remove(v["v"])

    def merge(self, accumulator, others):
        for other in others:
            accumulator.extend(other)

    def get_value(self, accumulator):
        return accumulator


@pytest.mark.parametrize("beside", [[], ["count(*)"]])
def test_a_row_is_retracted_in_another_bundle_or_partition_than_it_came_in(remote, spark, beside):
    added = [("+I", n % 3, {"v": n}) for n in range(30)]
    retracted = [("-D", n % 3, {"v": n}) for n in range(27)]
    frame = spark.createDataFrame(added + retracted, "row_kind string, k int, v map<string, bigint>")
    assert frame.rdd.getNumPartitions() > 1
    session = remote(declare_aggregate(Listed))
    listed = session.function("listed", size=2)
    found = session.group_by(frame, "k").agg(listed("v").alias("l"), *map(F.expr, beside)).collect()
    assert sorted((row.k, row.l) for row in found) == [(0, [27]), (1, [28]), (2, [29])]


def test_conditions_and_grouping_sets_hold_for_changelogs(functions, changes):
    total = functions.function("total")
    found = functions.rollup(changes, "k").agg(total("v").filter(F.col("v") > 5).alias("t"), total("v").alias("all"))
    # Without keys every retracted row was added before: -D 1 is retracted from the rows of all keys.
    assert {row.k: (row.t.sum, row["all"].sum) for row in found.collect()} == {
        1: (14, 14), 3: (0, 2), None: (14, 15),
    }  # fmt: skip


def test_a_kind_that_is_none_fails_with_the_column_and_the_value(functions, spark):
    frame = spark.createDataFrame([("+I", 1), ("upsert", 2)], "row_kind string, v bigint")
    with pytest.raises((PythonException, SparkRuntimeException)) as raised:
        functions.group_by(frame).agg(functions.function("total")("v")).collect()
    assert "column 'row_kind': upsert is not a kind of change (+I, -U, +U, -D)" in str(raised.value)


@pytest.mark.connect
def test_a_function_that_cannot_take_rows_back_is_refused_when_it_is_planned(functions, changes):
    trail, grouped = functions.function("trail"), functions.group_by(changes, "k")
    with pytest.raises(PlanError, match="Retract functionality is not implemented for the aggregate function: trail@1"):
        grouped.agg(trail("v"))
    with pytest.raises(PlanError, match="DISTINCT over a changelog"):
        grouped.agg(functions.function("total")("v").distinct())
    with pytest.raises(PlanError, match="on a changelog of Spark's own aggregates only"):
        grouped.agg(functions.function("total")("v"), F.stddev("v"))


def test_types_that_cannot_be_retracted_are_refused_by_their_own_names(functions, changes):
    odd = changes.selectExpr("*", "timestamp '2026-01-01' AS at", "collate(string(k), 'UTF8_LCASE') AS lower")
    with pytest.raises(PlanError, match=r"on a changelog sum\(at\) needs numbers, found timestamp"):
        functions.group_by(odd, "k").agg(functions.function("total")("v"), F.sum("at"))
    with pytest.raises(PlanError, match=r"DISTINCT lower\): type string collate UTF8_LCASE is not supported"):
        functions.group_by(odd, "k").agg(functions.function("total")("v"), F.count_distinct("lower"))


def test_a_frame_with_such_a_column_need_not_be_a_changelog(functions, changes):
    found = (
        functions.group_by(changes, "k", changelog=False).agg(functions.function("trail")("v"), F.count("*")).collect()
    )
    assert {row.k: row["count(1)"] for row in found} == {1: 4, 2: 2, 3: 2}


EXAMPLE = [("+I", 1, 0), ("+I", 2, 0), ("+I", 5, 0), ("-U", 2, 1), ("+U", 6, 1), ("-U", 1, 1), ("+U", 3, 2)]
"""The rows of FLIP-491's worked example, and the bundle of at most three rows each is in."""


@pytest.mark.connect
def test_the_changes_of_the_worked_example_are_its_starting_and_final_values(functions, spark):
    """Bundle 0: averages 3 and 2; bundle 1: 5 and 6; bundle 2: 4, and none for the even values."""
    frame = spark.createDataFrame(EXAMPLE, "row_kind string, v1 bigint, bundle int").coalesce(1)
    grouped = functions.group_by(frame, (F.col("v1") % 2).alias("odd"))
    average = functions.function("bundled_average")("v1").alias("a")
    found = grouped.changelog(average, per=F.col("bundle"))
    assert found.columns == ["row_kind", "odd", "a"]
    by_key = {odd: [(row.row_kind, row.a) for row in found.collect() if row.odd == odd] for odd in (0, 1)}
    assert by_key == {1: [("+I", 3), ("-U", 3), ("+U", 5), ("-U", 5), ("+U", 4)], 0: [("+I", 2), ("-U", 2), ("+U", 6)]}
    rows = [(row.odd, row.row_kind, row.a) for row in grouped.changelog(average, per="row").collect() if row.odd == 0]
    # Between the two rows of its second bundle the key of even values has no rows.
    assert rows == [(0, "+I", 2), (0, "-D", 2), (0, "+I", 6)]


def test_a_running_changelog_is_input_for_another_aggregate(functions, changes):
    """The sums of keys are summed; retracted and re-added values cancel out."""
    total = functions.function("total")
    first = functions.group_by(changes, "k").changelog(total("v").alias("t"), per="row").select("row_kind", "t.sum")
    (row,) = functions.group_by(first).agg(total("sum").alias("t")).collect()
    assert row.t.asDict() == {"sum": sum(LEFT.values()), "count": len(LEFT)}


def test_changes_by_bundle_are_fewer_and_lead_to_the_same(functions, changes):
    total = functions.function("total", size=100)
    found = functions.rollup(changes, "k").changelog(total("v").alias("t"), per="bundle").collect()
    assert sorted((row.row_kind, str(row.k), row.t.sum) for row in found) == [
        ("+I", "1", 14), ("+I", "3", 2), ("+I", "None", 15),
    ]  # fmt: skip


def test_what_cannot_be_a_running_changelog_is_refused(functions, changes, spark):
    grouped, total = functions.group_by(changes, "k"), functions.function("total")
    with pytest.raises(PlanError, match="not Column"):
        grouped.changelog(F.sum("v"))
    with pytest.raises(PlanError, match="changelog needs an aggregate"):
        grouped.changelog()
    with pytest.raises(PlanError, match="per must be 'row', 'bundle' or a Column, not 'hour'"):
        grouped.changelog(total("v"), per="hour")
    with pytest.raises(PlanError, match="DISTINCT"):
        grouped.changelog(total("v").distinct())
    with pytest.raises(PlanError, match="Retract functionality is not implemented"):
        grouped.changelog(functions.function("trail")("v"))
    with pytest.raises(PlanError, match="on a stream use agg"):
        functions.group_by(spark.readStream.format("rate").load(), "value").changelog(total("value"))
