"""Expressions around remote aggregates: computed after the calls, with the rows and names of Spark's own aggregates."""

import re

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, Window, connect, root_cause
from tests.conftest import serving
from tests.spark.aggregate.mean import MyMean
from tests.spark.sql.test_as_spark import MySum
from udf_server.aggregate.declaration import declare_aggregate

pytestmark = pytest.mark.connect


@udf.scalar
def tripled(x: float) -> float:
    return 3 * x


@pytest.fixture(scope="module")
def remote(spark):
    with serving(declare_aggregate(MySum), declare_aggregate(MyMean), tripled) as server:
        yield connect(spark, server.target)


@pytest.fixture(scope="module")
def frame(spark):
    rows = [("a", 1, 1), ("a", 2, 3), ("b", 3, 9), ("b", 4, None), ("c", 5, 4)]
    return spark.createDataFrame(rows, "k string, day int, v bigint").repartition(2)


def items(mean, total, over=None):
    """Expressions of each kind, for functions of Spark or remote ones."""
    m, s, d = (made if over is None else made.over(over) for made in (mean("v"), total("v"), mean("day")))
    return [
        m + 1, 1 - m, (F.lit(2) * m).alias("twice"), m / s, -m, m > s, m == 4, ~(m >= 4), (m > 1) & (s > 2), m % 2,
        2**m, F.sqrt(m), F.round(m / 7, 2).alias("rounded"), m.cast("int"), m.between(2, 5), m.isNull(),
        F.coalesce(s, F.lit(0)), F.when(m > 3, m).otherwise(s).alias("case"), F.struct(m.alias("x"), s + 0, s),
        F.concat_ws("-", "k", m), s.substr(1, 1), F.array(m, s)[0], d - m, m, s.alias("plain"),
        F.col("k") == F.upper(s.cast("string")),
    ]  # fmt: skip


def test_expressions_around_aggregates_have_sparks_rows_and_names(remote, frame):
    mean, total = remote.function("my_mean"), remote.function("my_sum")
    found = remote.group_by(frame, "k").agg(*items(mean, total))
    # Spark computes keys inside expressions, too.
    expected = frame.groupBy("k").agg(*items(F.avg, F.sum))
    require_same(found, expected)
    window = SparkWindow.partitionBy("k").orderBy("day")
    own, ours = items(F.avg, F.sum, window), items(mean, total, Window.partitionBy("k").orderBy("day"))
    names = [f"c{number}" for number in range(len(own))]
    expected = frame.select("k", *(each.alias(name) for each, name in zip(own, names, strict=True)))
    pairs = list(zip(ours, names, strict=True))
    require_same(remote.select(frame, "k", *(each.alias(name) for each, name in pairs)), expected)
    added = remote.with_columns(frame, {name: each for each, name in pairs})
    require_same(added.select("k", *names), expected)
    assert remote.select(frame, ours[0], (F.col("v") - ours[-3]).alias("d")).columns == ["(my_mean(v) + 1)", "d"]


def require_same(found, expected):
    named = [re.sub(r"\b(avg|sum)\b", lambda name: {"avg": "my_mean", "sum": "my_sum"}[name[0]], name)
             for name in expected.columns]  # fmt: skip
    assert found.columns == named
    assert sorted(map(repr, map(tuple, found.collect()))) == sorted(map(repr, map(tuple, expected.collect())))


def test_one_call_is_made_once_and_keeps_its_place(remote, frame):
    total = remote.function("my_sum")("v")
    found = remote.group_by(frame, "k").agg(F.count("v").alias("n"), (total + total).alias("t"), F.max("v").alias("n"))
    assert found.columns == ["k", "n", "t", "n"]
    assert sorted(map(tuple, found.collect())) == [("a", 2, 8, 3), ("b", 1, 18, 9), ("c", 1, 8, 4)]
    assert [tuple(row) for row in remote.group_by(frame).agg(F.sqrt(total + 8)).collect()] == [(5.0,)]
    rolled = remote.rollup(frame, "k").agg((total * 10).alias("t")).collect()
    assert sorted(map(repr, map(tuple, rolled))) == ["('a', 40)", "('b', 90)", "('c', 40)", "(None, 170)"]
    # Windows over groups, and generators.
    rank = F.rank().over(SparkWindow.partitionBy(F.lit(1)).orderBy(-total, "k"))
    assert sorted(map(tuple, remote.group_by(frame, "k").agg(rank.alias("r")).collect())) == [
        ("a", 2),
        ("b", 1),
        ("c", 3),
    ]
    several = remote.group_by(frame).agg(F.posexplode(F.array(total, -total)))
    assert (several.columns, several.collect()) == (["pos", "col"], [(0, 17), (1, -17)])


def test_a_scalar_call_may_be_around_an_aggregate(remote, frame):
    mean, triple = remote.function("my_mean")("v"), remote.function("tripled")
    assert remote.group_by(frame).agg(triple(mean).alias("m")).collect() == [(12.75,)]
    over = remote.select(frame, "day", triple(mean.over(Window.partitionBy("k"))).alias("m"))
    assert sorted(map(tuple, over.collect())) == [(1, 6.0), (2, 6.0), (3, 27.0), (4, 27.0), (5, 12.0)]


def test_an_expression_has_the_first_error_of_its_calls(remote, frame):
    frame = frame.withColumn("v", F.expr("if(day = 2, 13, v)"))
    mean, total = remote.function("my_mean").with_options(on_error="column")("v"), remote.function("my_sum")("v")
    found = remote.group_by(frame, "k").agg(mean.alias("m"), (mean / total).alias("share"), total)
    assert found.columns == ["k", "m", "m_error", "share", "share_error", "my_sum(v)"]
    rows = {row.k: row for row in found.collect()}
    assert (rows["a"].share, rows["a"].share_error.code, rows["c"].share, rows["c"].share_error) == (
        None, "FUNCTION_ERROR", 1.0, None
    )  # fmt: skip
    over = remote.with_columns(frame, {"day": mean.over(Window.partitionBy("k")) - F.col("day")})
    assert over.columns == ["k", "day", "day_error", "v"]
    assert {(row.k, row.day, row.day_error and row.day_error.code) for row in over.where("k <> 'b'").collect()} == {
        ("a", None, "FUNCTION_ERROR"), ("c", -1.0, None)
    }  # fmt: skip


def test_what_cannot_be_computed_after_the_calls_says_what_to_write(remote, frame):
    mean, total = remote.function("my_mean"), remote.function("my_sum")
    over = mean("v").over(Window.partitionBy("k"))
    nested = [lambda: mean(mean("v")), lambda: mean(total("v") + 1), lambda: mean(F.abs(over))]
    for attempt in nested:
        with pytest.raises(
            PlanError, match=r"argument 1 has a remote aggregate.*compute the inner one under a name in re"
        ):
            attempt()
    grouped = remote.group_by(frame, "k")
    for expression in (F.sum(mean("v")), mean("v") / F.sum("v"), mean("v") + F.col("v"), F.sum(mean("v") + 1) * 2):
        with pytest.raises(
            PlanError, match=r"around my_mean\(v\) cannot be computed: .* a column of its own, and comp"
        ):
            grouped.agg(expression).collect()
    with pytest.raises(PlanError, match=r"around my_mean\(v\) cannot be computed"):
        remote.group_by(frame).agg(F.sum(mean("v"))).collect()
    triple = remote.function("tripled")
    for attempt in (
        lambda: grouped.agg(over + 1), lambda: grouped.agg(triple(over)), lambda: remote.select(frame, mean("v") + 1),
        lambda: remote.with_columns(frame, {"y": mean("v") + 1}),
        lambda: remote.group_by(frame, total("v") + 1).agg(mean("v")),
        lambda: grouped.agg(mean("v").filter(total("v") > 1)),
    ):  # fmt: skip
        with pytest.raises(
            PlanError, match=r"is a remote aggregate, which Spark cannot evaluate.*(agg|remote\.select)"
        ):
            attempt()
    with pytest.raises(AnalysisException) as caught:
        frame.select(mean("v") + 1).collect()
    assert "with name `function my_mean@1 is a remote aggregate, which Spark cannot evaluate" in root_cause(
        caught.value
    )
