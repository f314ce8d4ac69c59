"""A remote scalar function wherever Spark takes a column."""

import asyncio
import random
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, UnknownFunction


@dataclass
class Point:
    lat: float
    lon: float


@udf.scalar
async def plus_ten(x: Annotated[int, "int"]) -> Annotated[int, "int"]:
    return x + 10


@udf.scalar
async def locate(name: str) -> Point:
    return Point(float(len(name)), -1.0)


@pytest.mark.connect
def test_values_stand_beside_their_own_rows(remote, spark):
    plus = remote(plus_ten).function("plus_ten")
    frame = spark.range(0, 1000, 1, 3).select(F.col("id").cast("int").alias("x"))
    rows = frame.select("x", plus("x").alias("y")).collect()
    assert [(row.x, row.y) for row in rows] == [(x, x + 10) for x in range(1000)]


@pytest.mark.connect
def test_rows_keep_their_order_when_calls_end_in_another(remote, spark):
    pauses = random.Random(7)

    @udf.scalar
    async def slowly(x: int) -> int:
        await asyncio.sleep(pauses.random() / 50)
        return x

    slowly_ = remote(slowly).function("slowly")
    rows = spark.range(0, 500, 1, 2).select(slowly_("id")).collect()
    assert [row[0] for row in rows] == list(range(500))


@pytest.mark.connect
def test_calls_nest_and_filter_and_give_fields_of_their_result(remote, spark):
    session = remote(plus_ten, locate)
    plus, locate_ = session.function("plus_ten"), session.function("locate")
    frame = spark.createDataFrame([(1, "a"), (2, "bb"), (3, "ccc")], "x int, name string")
    rows = frame.where(plus(plus("x")) > 21).select("x", locate_("name").lat.alias("lat"), plus(plus("x")).alias("y"))
    assert rows.collect() == [Row(x=2, lat=2.0, y=22), Row(x=3, lat=3.0, y=23)]


@pytest.mark.connect
def test_calls_work_above_and_below_aggregates_joins_and_sorts(remote, spark):
    plus = remote(plus_ten).function("plus_ten")
    left = spark.createDataFrame([(1, 1), (1, 2), (2, 3)], "k int, v int")
    right = spark.createDataFrame([(11, "one"), (12, "two")], "k10 int, word string")
    sums = left.groupBy(plus("k").alias("k10")).agg(F.sum(plus("v")).alias("s"))
    rows = sums.join(right, "k10").orderBy(plus("k10").desc()).collect()
    assert rows == [Row(k10=12, s=13, word="two"), Row(k10=11, s=23, word="one")]


@pytest.mark.connect
@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", {(2, 2)}), ("left", {(1, None), (2, 2)}), ("full", {(1, None), (2, 2), (None, 4)})],
)
def test_a_call_on_each_side_of_a_join_condition_is_made_below_the_join(remote, spark, how, expected):
    plus = remote(plus_ten).function("plus_ten")
    left = spark.createDataFrame([(1,), (2,)], "a int")
    right = spark.createDataFrame([(2,), (4,)], "b int")
    rows = left.join(right, plus("a") == plus("b"), how).collect()
    assert {(row.a, row.b) for row in rows} == expected


@pytest.mark.connect
def test_a_call_inside_a_view_is_made_when_the_view_is_read(remote, spark):
    plus = remote(plus_ten).function("plus_ten")
    spark.range(3).select(plus(F.col("id").cast("int")).alias("y")).createOrReplaceTempView("calls_in_a_view")
    assert [row.y for row in spark.sql("SELECT y FROM calls_in_a_view WHERE y > 10").collect()] == [11, 12]


def test_equal_calls_of_a_row_are_made_once(remote, spark):
    seen = []

    @udf.scalar
    async def noted(x: int) -> int:
        seen.append(x)
        return x

    noted_ = remote(noted).function("noted")
    spark.range(5).select(noted_("id"), noted_("id") + 1, noted_("id") * 2).collect()
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_equal_calls_of_a_function_that_is_not_deterministic_are_made_each(remote, spark):
    counter = iter(range(1000))

    @udf.scalar(deterministic=False)
    async def draw(x: int) -> int:
        return next(counter)

    draw_ = remote(draw).function("draw")
    row = spark.range(1).select(draw_("id").alias("one"), draw_("id").alias("two")).first()
    assert row.one != row.two


@pytest.mark.connect
def test_arguments_may_be_literals_expressions_and_named(remote, spark):
    @udf.scalar
    def power(base: int, exponent: int = 2, *more: int) -> int:
        return base**exponent + sum(more)

    power_ = remote(power).function("power")
    row = spark.range(3, 4).select(
        power_("id").alias("default"),
        power_("id", 3).alias("literal"),
        power_(F.col("id") + 1, exponent=F.lit(1)).alias("named"),
        power_("id", 1, 10, "id").alias("variadic"),
    )
    assert row.first() == Row(default=9, literal=27, named=4, variadic=16)


@pytest.mark.connect
def test_a_function_without_parameters_is_called_for_every_row(remote, spark):
    counter = iter(range(1000))

    @udf.scalar(deterministic=False)
    def ticket() -> int:
        return next(counter)

    @udf.scalar(vectorized=True)
    def ones(context: udf.CallContext) -> pa.Int64Array:
        return pa.array([1] * context.rows)

    session = remote(ticket, ones)
    rows = spark.range(0, 4, 1, 1).select(session.function("ticket")(), session.function("ones")()).collect()
    assert [tuple(row) for row in rows] == [(0, 1), (1, 1), (2, 1), (3, 1)]


@pytest.mark.connect
def test_integers_widen_and_other_types_are_refused_before_a_row_is_sent(remote, spark):
    seen = []

    @udf.scalar
    def double(x: int) -> int:
        seen.append(x)
        return 2 * x

    double_ = remote(double).function("double")
    frame = spark.createDataFrame([(1, "1")], "small smallint, word string")
    assert frame.select(double_("small")).first()[0] == 2
    seen.clear()
    with pytest.raises(Exception, match=r"double@1, parameter 'x': expected bigint, found string"):
        frame.select(double_("word")).collect()
    assert seen == []


@pytest.mark.connect
def test_versions_live_side_by_side(remote, spark):
    @udf.scalar(name="rate", version="1.9")
    def old(x: int) -> int:
        return x

    @udf.scalar(name="rate", version="1.10")
    def new(x: int) -> int:
        return x * 100

    session = remote(old, new)
    row = spark.range(1, 2).select(session.function("rate")("id"), session.function("rate@1.9")("id")).first()
    assert tuple(row) == (100, 1)
    assert [spec.key for spec in session.functions()] == ["rate@1.9", "rate@1.10"]


@pytest.mark.connect
def test_partitions_may_be_empty_tiny_or_large(remote, spark):
    @udf.scalar(vectorized=True)
    def same(x: pa.Int64Array) -> pa.Int64Array:
        return x

    same_ = remote(same).function("same")
    assert spark.range(0).select(same_("id")).collect() == []
    assert spark.range(0, 1, 1, 8).select(same_("id")).collect() == [Row(**{"same(id)": 0})]
    frame = spark.range(0, 1_000_000, 1, 1).select(same_("id").alias("y"), "id")
    assert frame.where("y = id").count() == 1_000_000


def test_a_vectorized_function_sees_every_row_once_whatever_spark_batches(remote, spark):
    rows = []

    @udf.scalar(vectorized=True)
    def count(x: pa.Int64Array) -> pa.Int64Array:
        rows.append(len(x))
        return pc.add(x, 1)

    count_ = remote(count).function("count")
    total = spark.range(0, 123_457, 1, 2).agg(F.sum(count_("id"))).first()[0]
    assert total == 123_457 * 123_458 // 2
    assert sum(rows) == 123_457


@pytest.mark.connect
def test_wrong_names_and_counts_are_refused_at_the_call(remote):
    session = remote(plus_ten)
    with pytest.raises(UnknownFunction, match=r"no function 'minus' \(known: plus_ten\)"):
        session.function("minus")
    with pytest.raises(
        PlanError, match="takes the name of a function of the server, not <built-in function abs>: write"
    ):
        session.function(abs)
    with pytest.raises(UnknownFunction, match=r"has no version '7' \(known: 1\)"):
        session.function("plus_ten@7")
    with pytest.raises(PlanError, match=r"plus_ten@1 takes 1 arguments, got 2: plus_ten\(x int\) -> int"):
        session.function("plus_ten")("a", "b")
    with pytest.raises(PlanError, match="y cannot be passed by name"):
        session.function("plus_ten")("a", y=1)


def test_a_function_changed_since_the_plan_is_refused_before_a_row_is_sent(remote, spark):
    seen = []

    @udf.scalar(name="shape")
    def before(x: int) -> int:
        return x

    @udf.scalar(name="shape")
    def after(x: int) -> str:
        seen.append(x)
        return str(x)

    import dataclasses

    planned = remote(before).function("shape")
    moved = dataclasses.replace(planned, config=remote(after).config)
    with pytest.raises(Exception, match=r"FUNCTION_CHANGED: function shape@1 is not what this job was planned with"):
        spark.range(1).select(moved("id")).collect()
    assert seen == []
