"""Remote aggregates in DataFrames: `remote.group_by(...).agg(...)`."""

import decimal
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql import types as T

import udf_server as udf
from spark_client import PlanError, connect
from spark_client.planning.aggregate.builtins import Builtin, of_stream
from tests.ports import free_port
from tests.spark_client.executor.aggregate.world import ALL, Total
from udf_server.aggregate.declaration import declare_aggregate


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, ALL))


@pytest.fixture
def frame(spark):
    """k in 0..6 and v in 0..99, in three partitions."""
    numbers = spark.range(0, 2_000, 1, 3)
    return numbers.select((F.col("id") % 7).alias("k"), (F.col("id") % 100).alias("v"), "id")


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.connect
def test_a_frame_of_nothing_but_keys_and_arguments_gives_equal_rows(functions, frame):
    total, trail = functions.function("total"), functions.function("rows")
    exact = frame.select("v", "k")
    several = functions.group_by(exact, "k").agg(total("v").alias("a"), total("k").alias("b"), trail().alias("c"))
    wide = functions.group_by(frame, "k").agg(total("v").alias("a"), total("k").alias("b"), trail().alias("c"))
    assert several.columns == ["k", "a", "b", "c"]
    assert rows(several) == rows(wide)
    swapped = functions.group_by(exact, "v").agg(total("k").alias("v"), total("v").alias("k"))
    assert rows(swapped) == rows(functions.group_by(frame, "v").agg(total("k").alias("v"), total("v").alias("k")))
    dotted = functions.group_by(exact.toDF("v.1", "k`")).agg(total("`v.1`"), total("`v.1`").alias("v"))
    assert rows(dotted) == [(exact.agg(F.struct(F.sum("v"), F.count("v"))).first()[0],) * 2]


def test_functions_of_one_query_are_opened_at_the_same_time(remote, frame):
    together = threading.Barrier(2)

    class Slow(Total):
        name = "slow"

        def open(self):
            together.wait(60)

    class Slower(Slow):
        name = "slower"

    functions = remote(declare_aggregate(Slow()), declare_aggregate(Slower()))
    slow, slower = functions.function("slow"), functions.function("slower")
    found = functions.group_by(frame).agg(slow("v").alias("a"), slower("v").alias("b")).first()
    assert found.a == found.b == frame.agg(F.struct(F.sum("v"), F.count("v"))).first()[0]


@pytest.mark.connect
def test_remote_aggregates_and_sparks_own_stand_beside_each_other(functions, frame):
    total, trail = functions.function("total"), functions.function("rows")
    found = functions.group_by(frame, "k").agg(
        F.count("*").alias("n"), total("v"), trail().alias("rows"), F.sum("v").alias("s"), F.max("id")
    )
    assert found.columns == ["k", "n", "total(v)", "rows", "s", "max(id)"]
    for row in found.collect():
        assert row["total(v)"].sum == row.s
        assert row["total(v)"]["count"] == row.n == row.rows
        assert row["max(id)"] % 7 == row.k


@pytest.mark.parametrize("size", [1, 100, 1_000_000])
def test_without_sparks_own_the_result_is_the_same_at_any_size(functions, frame, size):
    total, one_place = (functions.function(name, size=size) for name in ("total", "sum_in_one_place"))
    small = frame.where("id < 200")
    expected = rows(small.groupBy("k").agg(F.struct(F.sum("v"), F.count("v"))))
    assert rows(functions.group_by(small, "k").agg(total("v"))) == expected
    assert rows(functions.group_by(small, "k").agg(one_place("v"))) == expected
    both = rows(functions.group_by(small, "k").agg(total("v"), one_place("v")))
    assert [(k, a) for k, a, _ in both] == [(k, b) for k, _, b in both] == expected


@pytest.mark.connect
def test_keys_and_arguments_may_be_expressions_of_any_kind(functions, frame):
    total = functions.function("total")
    found = functions.group_by(frame, (F.col("v") % 2).alias("odd"), "k").agg(total(F.col("v") * 2 + 1).alias("t"))
    expected = frame.groupBy((F.col("v") % 2).alias("odd"), "k").agg(F.sum(F.col("v") * 2 + 1))
    assert [(o, k, t.sum) for o, k, t in rows(found)] == rows(expected)
    bound = functions.group_by(frame, frame["k"]).agg(total(frame["v"]), total(F.lit(1)).alias("ones"))
    assert {row.k: row.ones.sum for row in bound.collect()} == {
        r.k: r.n for r in frame.groupBy("k").agg(F.count("*").alias("n")).collect()
    }


@pytest.mark.parametrize(("function", "beside"), [("rows", True), ("rows", False), ("trail", False)])
def test_keys_of_any_type_fall_together_as_in_sparks_group_by(functions, spark, function, beside):
    """Covers nulls, NaNs of any bits, both zeros, decimals, structs, arrays, times and binary in every plan."""
    floats = F.array(*(F.lit(x) for x in (0.0, -0.0, float("nan"), float("inf"))), F.lit(None))
    odd = F.col("id") % 2
    frame = spark.range(0, 120, 1, 5).select(
        F.col("id").alias("i"),
        F.element_at(floats, (F.col("id") % 5 + 1).cast("int")).alias("f"),
        F.element_at(floats, (F.col("id") % 3 + 1).cast("int")).cast("float").alias("g"),
        (F.col("id") % 3).cast("decimal(10,2)").alias("d"),
        F.when(F.col("id") % 4 > 0, F.struct(odd.alias("a"), F.lit(None).cast("string").alias("b"))).alias("s"),
        F.array(odd.cast("double") * -0.0, F.lit(None)).alias("l"),
        F.timestamp_seconds(odd).alias("t"),
        odd.cast("string").cast("binary").alias("b"),
    )
    call = functions.function(function)
    for keys in (["f"], ["g", "l", "d", "t", "b"], [F.struct("f", "s").alias("z")]):
        argument = [] if function == "rows" else ["i"]
        found = functions.group_by(frame, *keys).agg(call(*argument).alias("n"), *([F.count("*")] if beside else []))
        length = F.col("n") if function == "rows" else F.size(F.split("n", ",")) - 1
        names = found.columns[: len(keys)]
        counted = found.select(*(F.col(name).cast("string") for name in names), length.cast("bigint"))
        expected = frame.groupBy(*keys).agg(F.count("*"))
        shown = [F.col(name).cast("string") for name in expected.columns[: len(keys)]]
        assert rows(counted) == rows(expected.select(*shown, "count(1)"))


def test_nans_of_different_bits_are_one_key(functions, spark, tmp_path):
    """Parquet preserves the bits of NaNs, which Spark's GROUP BY ignores."""
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001], np.uint64).view(np.float64)
    pq.write_table(pa.table({"f": np.tile(bits, 4), "v": np.arange(12)}), tmp_path / "nans.parquet")
    frame = spark.read.parquet(str(tmp_path / "nans.parquet"))
    assert frame.groupBy("f").count().count() == 1
    for name in ("total", "trail"):
        assert functions.group_by(frame, "f").agg(functions.function(name)("v")).count() == 1
        assert functions.group_by(frame, F.struct("f")).agg(functions.function(name)("v")).count() == 1


def test_keys_spark_cannot_sort_by_are_merged_and_refused_where_rows_must_be_sorted(functions, spark):
    frame = spark.sql(
        "SELECT map('a', id % 2) AS m, collate(if(id % 2 = 0, 'x', 'X'), 'UTF8_LCASE') AS c, id FROM range(8)"
    )
    found = functions.group_by(frame, "m").agg(functions.function("total")("id")).collect()
    assert sorted(row["total(id)"].sum for row in found) == [12, 16]
    with pytest.raises(PlanError, match="key 'm': type map<string,bigint> is not supported where rows are compared"):
        functions.group_by(frame, "m").agg(functions.function("trail")("id"))


@pytest.mark.connect
def test_conditions_are_for_their_own_aggregate(functions, frame):
    total = functions.function("total")
    frame = frame.withColumn("odd", F.col("v") % 2 == 1)
    few = F.col("id") < 70
    found = functions.group_by(frame, "k").agg(
        total("v").filter(F.col("v") > 50).alias("a"),
        total("v").filter("odd").filter(few).alias("b"),
        total("v").alias("c"),
    )
    expected = frame.groupBy("k").agg(
        F.sum(F.when(F.col("v") > 50, F.col("v"))), F.sum(F.when(F.col("odd") & few, F.col("v"))), F.sum("v")
    )
    assert sorted((row.k, row.a.sum, row.b.sum, row.c.sum) for row in found.collect()) == rows(expected)


def test_a_condition_that_no_row_meets_leaves_the_value_of_no_rows(functions, frame):
    total = functions.function("total")
    found = functions.group_by(frame, "k").agg(total("v").filter(F.lit(None).cast("boolean"))).collect()
    assert [row[1].asDict() for row in found] == [{"sum": 0, "count": 0}] * 7


@pytest.mark.connect
def test_distinct_is_over_combinations_of_arguments_as_spark_compares_them(functions, spark, frame):
    total, trail = functions.function("total"), functions.function("trail")
    twice = frame.select("k", (F.col("v") % 5).alias("v"))
    found = functions.group_by(twice, "k").agg(
        total("v").distinct(), F.count_distinct("v"), total("v").alias("all"), trail("v").distinct().alias("trail")
    )
    for row in found.collect():
        assert row["total(DISTINCT v)"].asDict() == {"sum": 10, "count": 5}
        assert row["count(DISTINCT v)"] == 5
        assert row["all"]["count"] > 100
        assert sorted(row.trail) == sorted("0,1,2,3,4,")


ARGUMENTS = {
    "bigint": "v", "string": "string(v)", "double": "if(v = 0, if(id % 2 = 0, -0D, 0D), v / 8D)",
    "boolean": "nullif(v, 0) = 1", "binary": "binary(string(v))", "decimal(10,2)": "cast(v / 4 AS decimal(10,2))",
    "struct<a:bigint,b:string>": "struct(v AS a, string(v) AS b)", "array<bigint>": "array(v, NULL)",
    "array<struct<a:array<double>>>": "array(struct(array(if(v = 1, if(id % 2 = 0, -0D, 0D), v + 5D)) AS a))",
}  # fmt: skip
"""Expressions with three values, by type."""


def counting(position, types):
    class Counts(udf.BundledAggregateFunction):
        name, parameters = f"counts_{position}", ", ".join(f"p{i} {type_}" for i, type_ in enumerate(types))
        returns = accumulator = "bigint"

        def bundled_accumulate_retract(self, bundle):
            return [udf.BundledKeySegmentApplied(0, None, len(segment.rows)) for segment in bundle]

    return declare_aggregate(Counts)


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1"},
        {"spark.sql.execution.useObjectHashAggregateExec": "false"},
        {"spark.sql.codegen.wholeStage": "false"},
    ],
    ids=["defaults", "falls back to sorting", "no hash aggregation", "no generated code"],
)
def test_distinct_values_are_counted_once_for_any_number_of_keys(remote, spark, setting):
    keys, types = 150, list(ARGUMENTS)
    functions = remote(*(counting(i, [type_]) for i, type_ in enumerate(types)), counting(len(types), types[:2]))
    frame = spark.range(0, keys * 18, 1, 2).selectExpr("id", f"id % {keys} AS k", f"(id div {keys}) % 3 AS v")
    frame = frame.select("k", *(F.expr(text).alias(f"c{i}") for i, text in enumerate(ARGUMENTS.values())))
    calls = [functions.function(f"counts_{i}")(f"c{i}").distinct().alias(type_) for i, type_ in enumerate(types)]
    pairs = functions.function(f"counts_{len(types)}")("c0", "c1").distinct().filter(F.col("c0") > 0).alias("pairs")
    for name, value in setting.items():
        spark.conf.set(name, value)
    try:
        found = functions.group_by(frame, "k").agg(*calls, pairs).collect()
        own = [of_stream(Builtin("count", f.name, True, f.name, T.LongType(), f.dataType)) for f in frame.schema[1:]]
        counted = frame.groupBy("k").agg(*own).collect()
    finally:
        for name in setting:
            spark.conf.unset(name)
    assert sorted(row.k for row in found) == list(range(keys))
    assert {row[1:] for row in found} == {(3,) * len(types) + (2,)}
    # Spark's own count skips nulls.
    assert {row[1:] for row in counted} == {tuple(2 if type_ == "boolean" else 3 for type_ in types)}


def test_grouping_sets_rollup_and_cube_are_as_sparks_own(functions, frame):
    total = functions.function("total")
    frame = frame.withColumn("j", F.when(F.col("k") > 1, F.col("k") % 2)).cache()
    sets = frame.groupingSets([[F.col("j")], [F.col("k")], []], F.col("j"), F.col("k"))
    for ours, theirs, others in (
        (functions.rollup(frame, "j", "k"), frame.rollup("j", "k"), [F.sum("v")]),
        (functions.cube(frame, "j", "k"), frame.cube("j", "k"), []),
        (functions.grouping_sets(frame, [["j"], ["k"], []], "j", "k"), sets, []),
        (functions.grouping_sets(frame, [[F.col("j")], ["k"], []], "j", F.col("k")), sets, []),
    ):
        expected = rows(theirs.agg(F.sum("v"), F.count("v")))
        assert rows(ours.agg(total("v").alias("t"), *others).select("j", "k", "t.sum", "t.count")) == expected
    trail = functions.rollup(frame, "j").agg(functions.function("sum_in_one_place")("v").alias("t"))
    assert rows(trail.select("j", "t.sum")) == rows(frame.rollup("j").agg(F.sum("v")))


def test_a_set_of_no_key_is_refused(functions, frame):
    with pytest.raises(PlanError, match="column 'id' of a grouping set is not one of the keys"):
        functions.grouping_sets(frame, [["id"]], "k")


@pytest.mark.connect
@pytest.mark.parametrize("name", ["total", "sum_in_one_place"])
def test_without_keys_there_is_one_row_even_for_no_input(functions, frame, name):
    function = functions.function(name)
    (row,) = functions.group_by(frame).agg(function("v").alias("t"), F.sum("v").alias("s")).collect()
    assert (row.t.sum, row.t["count"]) == (row.s, 2000)
    nothing = frame.where("v < 0")
    assert functions.group_by(nothing).agg(function("v").alias("t")).collect()[0].t.asDict() == {"sum": 0, "count": 0}
    (row,) = functions.group_by(nothing).agg(F.sum("v").alias("s"), function("v").alias("t"), F.count("*")).collect()
    assert (row.s, row.t.asDict(), row[2]) == (None, {"sum": 0, "count": 0}, 0)
    assert functions.group_by(nothing, "k").agg(function("v")).collect() == []
    (row,) = functions.rollup(frame).agg(function("v").alias("t")).collect()
    assert row.t["count"] == 2000


@pytest.mark.connect
def test_order_by_is_the_order_a_function_gets_its_rows_in(functions, frame):
    trail = functions.function("trail", size=3)
    small = frame.where("id < 30")
    by_key = {k: [i for i in range(30) if i % 7 == k] for k in range(7)}

    def trails(order):
        found = functions.group_by(small, "k", order_by=order).agg(trail("id").alias("t")).collect()
        return {row.k: [int(i) for i in row.t.split(",")[:-1]] for row in found}

    assert trails("id") == by_key
    assert trails(F.monotonically_increasing_id()) == by_key
    assert trails(F.col("id").desc()) == {k: ids[::-1] for k, ids in by_key.items()}
    assert trails([F.col("id") % 2, F.col("id").desc()]) == {
        k: sorted(ids, key=lambda i: (i % 2, -i)) for k, ids in by_key.items()
    }


def test_a_function_that_merges_gets_them_in_order_as_well(functions, frame):
    keys = functions.function("keys")
    (row,) = functions.group_by(frame.where("k = 3"), "k", order_by="id").agg(keys("v")).collect()
    assert row[1] == "(3,)"


def test_one_hot_key_goes_through_many_bundles(functions, spark):
    frame = spark.range(0, 60_000, 1, 4).select(
        F.when(F.col("id") % 100 > 0, 0).otherwise(F.col("id")).alias("k"), "id"
    )
    expected = {
        row.k: (row.s, row.n)
        for row in frame.groupBy("k").agg(F.sum("id").alias("s"), F.count("*").alias("n")).collect()
    }
    for name in ("total", "sum_in_one_place"):
        function = functions.function(name, size=1_000)
        found = functions.group_by(frame, "k").agg(function("id").alias("t")).collect()
        assert {row.k: (row.t.sum, row.t["count"]) for row in found} == expected


def test_a_function_sees_its_key_whatever_the_plan(functions, spark):
    frame = spark.createDataFrame(
        [(1, "x", decimal.Decimal("1.5"), 5), (1, "x", decimal.Decimal("1.5"), 6)],
        "a int, a2 string, d decimal(5,2), v bigint",
    )
    keys = functions.function("keys")
    for others in ([], [F.count("*")], [keys("v").distinct().alias("k2")]):
        (row,) = functions.group_by(frame, "a", "a2", "d").agg(keys("v").alias("k"), *others).collect()
        assert row.k == "(1, 'x', Decimal('1.50'))"


def test_types_of_arguments_and_results_pass_unchanged(functions, spark):
    frame = spark.createDataFrame(
        [(1, decimal.Decimal("1.25")), (1, decimal.Decimal("2.5")), (1, None)], "k int, d decimal(20,4)"
    )
    found = functions.group_by(frame, "k").agg(functions.function("decimal_sum")("d").alias("s"))
    assert found.schema["s"].dataType.simpleString() == "decimal(20,4)"
    assert found.collect()[0].s == decimal.Decimal("3.7500")


@pytest.mark.parametrize(("name", "beside"), [("total", True), ("total", False), ("trail", False)])
def test_a_segment_that_fails_fails_alone_by_the_callers_policy(functions, frame, name, beside):
    bad = frame.withColumn("v", F.when(F.col("id") == 10, F.lit(-13)).otherwise(F.col("v")))
    function, others = functions.function(name, size=100), [F.count("*")] if beside else []
    with pytest.raises(PythonException) as raised:
        functions.group_by(bad, "k").agg(function("v"), *others).collect()
    assert f"function {name}@1: a segment of the key (k=3) failed: FUNCTION_ERROR: ValueError: thirteen" in str(
        raised.value
    )
    null = functions.group_by(bad, "k").agg(function.with_options(on_error="null")("v").alias("x"), *others).collect()
    assert {row.k for row in null if row.x is None} == {3}
    column = functions.group_by(bad, "k").agg(function.with_options(on_error="column")("v").alias("x"), *others)
    assert column.columns[:3] == ["k", "x", "x_error"]
    found = {row.k: row for row in column.collect()}
    assert found[3].x is None
    assert (found[3].x_error.code, found[3].x_error.message) == ("FUNCTION_ERROR", "ValueError: thirteen")
    assert all(row.x is not None and row.x_error is None for k, row in found.items() if k != 3)


def test_what_cannot_be_planned_is_refused_with_the_reason(functions, frame):
    total, grouped = functions.function("total"), functions.group_by(frame, "k")
    with pytest.raises(PlanError, match="agg needs an aggregate"):
        grouped.agg()
    with pytest.raises(PlanError, match="not 'v'"):
        grouped.agg("v")
    with pytest.raises(PlanError, match="total"):
        grouped.agg(total())
    with pytest.raises(PlanError, match=r"total@1.*'v'"):
        grouped.agg(total(F.lit("text")))
    with pytest.raises(PlanError, match="dead letter"):
        grouped.agg(total.with_options(on_error="dead-letter")("v"))
    with pytest.raises(PlanError, match="makes this a changelog"):
        functions.group_by(frame, "k", changelog=True).agg(total("v"))


def test_sparks_own_alone_are_just_that(functions, frame):
    assert rows(
        functions.group_by(frame, "k").agg(F.sum("v"), F.collect_set("v").alias("c")).select("k", "sum(v)")
    ) == rows(frame.groupBy("k").agg(F.sum("v")))


def test_columns_of_one_name_and_odd_names_do_no_harm(functions, spark):
    frame = spark.createDataFrame([(1, 2, 3), (1, 4, 5)], ["a.b", "x", "X y"])
    total = functions.function("total")
    found = functions.group_by(frame, "`a.b`").agg(total("x").alias("a.b"), total("`X y`"), F.sum("`X y`"))
    assert [each if isinstance(each, int) else each.sum for each in found.collect()[0]] == [1, 6, 8, 8]
    assert found.columns[:2] == ["a.b", "a.b"]


def test_a_server_lost_in_the_middle_is_replaced_by_another(spark, serve):
    """Two servers have one address; one stops while bundles are in flight."""
    port = free_port()

    class Stopping(Total):
        name = "stopping"
        rows = 0

        def saw(self, lengths):
            type(self).rows += sum(lengths)
            if first and type(self).rows > 5_000:
                server = first.pop()
                threading.Thread(target=lambda: (server.stop(), serve(declare_aggregate(Calm), port=port))).start()
                threading.Event().wait(0.2)

    class Calm(Total):
        name = "stopping"

    first = []
    first.append(serve(declare_aggregate(Stopping), port=port))
    remote = connect(spark, first[0].target)
    frame = spark.range(0, 40_000, 1, 2).select((F.col("id") % 50).alias("k"), "id")
    found = remote.group_by(frame, "k").agg(remote.function("stopping", size=500)("id").alias("t")).collect()
    assert not first
    assert {row.k: row.t.sum for row in found} == {
        row.k: row.s for row in frame.groupBy("k").agg(F.sum("id").alias("s")).collect()
    }
