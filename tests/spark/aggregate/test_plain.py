"""Remote aggregates in plain Spark: `df.groupBy("k").agg(my_avg.column("v"))` and `.over(window)`."""

import datetime
import decimal
import re
from functools import partial

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, Window
from pyspark.sql import functions as F

import udf_server as udf
from remote_udf.errors import InvalidOption
from spark_client import PlanError, root_cause
from tests.spark.aggregate.mean import MyMean
from tests.spark_client.executor.aggregate.world import Rows, Total, Trail
from udf_server.aggregate.declaration import declare_aggregate

pytestmark = pytest.mark.connect


class PlainAvg(MyMean):
    name = "plain_avg"


class Products(udf.AggregateFunction):
    """The sum of products; not vectorized, and it does not merge."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, x: int, *others: int):
        for each in others:
            x *= each
        return accumulator + x

    def get_value(self, accumulator) -> int:
        return accumulator


TYPES = {
    "texts": (pa.string(), ["a", None]),
    "bytes": (pa.binary(), [b"a", b""]),
    "days": (pa.date32(), [datetime.date(2026, 1, 2), None]),
    "moments": (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), None]),
    "amounts": (pa.decimal128(38, 18), [decimal.Decimal("1.000000000000000001"), None]),
    "small": (pa.int8(), [1, None]),
    "lists": (pa.list_(pa.list_(pa.int32())), [[None, [1, None]], [], None]),
    "maps": (pa.map_(pa.string(), pa.float64()), [{"a": 1.5, "b": None}, {}, None]),
    "structs": (
        pa.struct([("a", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int64()))]),
        [{"a": None, "m": None}, {"a": ["x"], "m": {"k": 1}}, None],
    ),
}


def of_type(name):
    """An aggregate whose value is one of those of TYPES, by the number of its rows."""
    type_, values = TYPES[name]

    class Valued(udf.AggregateFunction):
        parameters = "v bigint"
        returns = type_

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator, v):
            return accumulator + 1

        def get_value(self, accumulator):
            return values[accumulator % len(values)]

    Valued.name = f"of_{name}"
    return declare_aggregate(Valued)


@pytest.fixture
def frame(spark):
    rows = [("a", 1, 1), ("a", 2, 3), ("a", 3, 3), ("b", 4, 9), ("b", 5, None), ("c", 6, None), (None, 7, 4)]
    return spark.createDataFrame(rows, "k string, day int, v bigint").repartition(2)


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_a_group_by_of_spark_has_the_rows_of_its_own_aggregate(remote, frame):
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")
    for ours, own in (
        (mean.column, F.avg),
        (lambda v: (mean.column(v) * 2 + F.lit(1)).alias("m"), lambda v: (F.avg(v) * 2 + F.lit(1)).alias("m")),
        (lambda v: F.round(mean.column(F.col(v) + 1), 1).alias("m"), lambda v: F.round(F.avg(F.col(v) + 1), 1)),
    ):
        for grouped in (
            lambda item: frame.groupBy("k").agg(item("v")),
            lambda item: frame.groupBy("k", (F.col("day") % 2).alias("odd")).agg(item("v"), item("day")),
            lambda item: frame.agg(item("v"), item("day")),
            lambda item: frame.select(item("v")),
            lambda item: frame.rollup("k").agg(item("v")),
            lambda item: frame.where("false").groupBy("k").agg(item("v")),
            lambda item: frame.groupBy("k").agg(item("v").alias("m")).where("m > 2"),
        ):
            assert rows(grouped(ours)) == rows(grouped(own))
    assert frame.groupBy("k").agg(mean.column("v")).columns == ["k", "plain_avg(v)"]


def test_windows_have_the_rows_of_sparks_own_aggregate(remote, frame):
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")
    by_day = Window.partitionBy("k").orderBy("day")
    for window in (
        Window.partitionBy("k"),
        Window.partitionBy(F.lit(1)),
        by_day,
        by_day.rowsBetween(-1, 0),
        by_day.rowsBetween(-5, -2),
        by_day.rowsBetween(1, Window.unboundedFollowing),
        by_day.rangeBetween(-1, 1),
        Window.partitionBy("k").orderBy(F.desc("v")),
    ):
        ours, own = (
            frame.select("k", "day", item("v").over(window).alias("m"), item("day").over(window).alias("d"))
            for item in (mean.column, F.avg)
        )
        assert rows(ours) == rows(own)


def test_an_empty_frame_is_aggregated_over_no_rows(remote, frame):
    session = remote(declare_aggregate(Rows), declare_aggregate(Total))
    before = Window.partitionBy("k").orderBy("day").rowsBetween(-5, -1)
    counted = session.function("rows").column().over(before)
    assert rows(frame.where("k = 'a'").select("day", counted.alias("n"))) == [(1, 0), (2, 1), (3, 2)]
    total = session.function("total").column("v").over(before)
    assert rows(frame.where("k = 'a'").select("day", total.alias("t"))) == [
        (1, Row(sum=0, count=0)), (2, Row(sum=1, count=1)), (3, Row(sum=4, count=2)),
    ]  # fmt: skip


def test_functions_get_literals_expressions_any_number_of_arguments_and_rows_in_the_order_of_the_window(remote, frame):
    session = remote(declare_aggregate(Products), declare_aggregate(Rows), declare_aggregate(Trail))
    products, count, trail = (session.function(name) for name in ("products", "rows", "trail"))
    found = frame.groupBy("k").agg(
        products.column("day"), products.column("day", "day", F.lit(2)), products.column(1), count.column()
    )
    assert rows(found) == [("a", 6, 28, 3, 3), ("b", 9, 82, 2, 2), ("c", 6, 72, 1, 1), (None, 7, 98, 1, 1)]
    by_day = Window.partitionBy("k").orderBy(F.desc("day")).rowsBetween(Window.unboundedPreceding, 0)
    last = frame.where("k = 'a'").select("day", trail.column("v").over(by_day).alias("t"))
    assert rows(last) == [(1, "3,3,1,"), (2, "3,3,"), (3, "3,")]


def test_a_group_that_is_larger_than_a_request_is_sent_in_parts(remote, spark):
    seen = []

    class Parts(Total):
        def saw(self, lengths):
            seen.append(lengths)

    total = remote(declare_aggregate(Parts)).function("parts").with_options(size=100)
    found = spark.range(1000).repartition(1).groupBy((F.col("id") % 2).alias("k")).agg(total.column("id").alias("t"))
    assert rows(found) == [(0, Row(sum=249500, count=500)), (1, Row(sum=250000, count=500))]
    assert max(map(max, seen)) <= 100
    assert sum(map(sum, seen)) == 1000


def test_values_of_every_type_come_back(remote, spark):
    session = remote(*map(of_type, TYPES))
    frame = spark.range(3).repartition(1).select(F.explode(F.sequence(F.lit(0), "id")).alias("v"), "id")

    def items(over=None):
        made = [session.function(f"of_{name}").column("v") for name in TYPES]
        return [(item if over is None else item.over(over)).alias(name) for name, item in zip(TYPES, made, strict=True)]

    expected = {rows: {name: plain(values[rows % len(values)]) for name, (_, values) in TYPES.items()}
                for rows in (1, 2, 3)}  # fmt: skip
    for found in (
        frame.groupBy((F.col("id") + 1).alias("rows")).agg(*items()),
        frame.select((F.col("id") + 1).alias("rows"), *items(Window.partitionBy("id"))),
        frame.select((F.col("v") + 1).alias("rows"), *items(Window.partitionBy("id").orderBy("v"))),
    ):
        for row in found.collect():
            assert {name: plain(row[name]) for name in TYPES} == expected[row.rows]


def plain(value):
    """A value without the classes in which Spark and Python hold it."""
    if isinstance(value, Row):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_map_with_a_null_list_is_refused_for_spark_does_not_take_it(remote, spark):
    class Named(udf.AggregateFunction):
        returns = pa.map_(pa.string(), pa.list_(pa.int64()))

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator, v: int) -> int:
            return max(accumulator, v)

        def get_value(self, accumulator):
            return {"a": [accumulator, None], "b": None if accumulator == 13 else []}

    session = remote(declare_aggregate(Named))
    named = session.function("named")
    small, frame = spark.range(3), spark.range(14)
    assert small.agg(named.column("id").alias("m")).first().m == {"a": [2, None], "b": []}
    with pytest.raises(Exception, match=r"a map of a value has a null list or a null map.*use remote\.group_by"):
        frame.agg(named.column("id")).collect()
    assert session.group_by(frame).agg(named("id").alias("m")).first().m == {"a": [13, None], "b": None}
    as_struct = named.with_options(on_error="column").column("id").alias("m")
    assert frame.agg(as_struct).first().m.value == {"a": [13, None], "b": None}


def test_errors_fail_the_job_or_are_nulls_or_values_as_the_option_says(remote, frame):
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")
    bad = frame.withColumn("v", F.expr("if(day = 4, 13, v)"))
    with pytest.raises(Exception, match="no thirteens") as failed:
        bad.groupBy("k").agg(mean.column("v")).collect()
    assert "function plain_avg@1: a group of 2 rows failed: FUNCTION_ERROR: ValueError" in root_cause(failed.value)
    nulls = bad.groupBy("k").agg(mean.with_options(on_error="null").column("v").alias("m"))
    assert {row.k: row.m for row in nulls.collect()} == {"a": 7 / 3, "b": None, "c": None, None: 4.0}
    column = bad.groupBy("k").agg(mean.with_options(on_error="column").column("v").alias("m"))
    found = {row.k: row.m for row in column.collect()}
    assert (found["b"].value, found["b"].error.code) == (None, "FUNCTION_ERROR")
    assert found[None] == Row(value=4.0, error=None)
    window = Window.partitionBy("k").orderBy("day").rowsBetween(-1, 0)
    framed = bad.select("day", mean.with_options(on_error="column").column("v").over(window).alias("m"))
    assert [day for day, m in rows(framed) if m.error is not None] == [4, 5]


def test_options_of_the_session_apply_and_the_functions_own_come_first(remote, spark, frame):
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")
    bad = frame.withColumn("v", F.lit(13))
    spark.conf.set("spark.remoteudf.bundled-agg.plain_avg.on-error", "null")
    try:
        assert bad.agg(mean.column("v")).first()[0] is None
        with pytest.raises(Exception, match="no thirteens"):
            bad.agg(mean.with_options(on_error="fail").column("v")).collect()
    finally:
        spark.conf.unset("spark.remoteudf.bundled-agg.plain_avg.on-error")


def test_wrong_calls_are_refused_before_or_when_spark_runs_them(remote, frame):
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")
    with pytest.raises(PlanError, match=r"plain_avg@1 takes 1 arguments, got 2"):
        mean.column("v", "v")
    with pytest.raises(PlanError, match="needs two groupings"):
        mean.column(mean("v"))
    with pytest.raises(PlanError, match="got a Python function"):
        mean.column(len)
    with pytest.raises(Exception, match="expected bigint, found string; cast the argument"):
        frame.groupBy("k").agg(mean.column("k")).collect()


def test_two_sessions_call_their_own_functions_of_one_name_in_one_query(remote, frame):
    class Other(PlainAvg):
        def get_value(self, accumulator) -> float:
            return -1.0

    one, two = (remote(declare_aggregate(each)).function("plain_avg") for each in (PlainAvg, Other))
    found = frame.groupBy("k").agg(one.column("v").alias("one"), two.column("v").alias("two"))
    assert rows(found.where("k = 'b'")) == [("b", 9.0, -1.0)]


def test_what_spark_refuses_or_answers_otherwise_than_for_its_own_aggregates(remote, spark, frame):
    """Limits of Spark's aggregate Arrow UDFs, also of local ones, which docs/plain-spark.md lists."""
    mean = remote(declare_aggregate(PlainAvg)).function("plain_avg")

    @F.arrow_udf("double")
    def local(v: pa.Array) -> float:
        return 1.0

    for call in (mean.column, local):
        item = call("v")
        wrong = {
            "INVALID_PANDAS_UDF_PLACEMENT": partial(frame.groupBy("k").agg, item, F.max("v")),
            "PANDAS_UDAF_IN_PIVOT": partial(frame.groupBy().pivot("k").agg, item),
            "INVALID_WHERE_CONDITION": partial(frame.where, item > 1),
            "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION": partial(
                frame.groupBy("k").agg, call(F.monotonically_increasing_id())
            ),
        }
        for message, attempt in wrong.items():
            with pytest.raises(PySparkException, match=message):
                attempt().collect()
        stream = spark.readStream.format("rate").load().groupBy("value").agg(call("value"))
        with pytest.raises(PySparkException, match="Streaming aggregation doesn't support"):
            stream.writeStream.format("noop").outputMode("complete").start().awaitTermination()
        # Spark's own aggregates have one row here.
        assert frame.where("false").agg(item).collect() == []


def test_registered_aggregates_are_called_in_plain_sql_and_by_name(remote, spark, frame):
    session = remote(declare_aggregate(PlainAvg), declare_aggregate(Products))
    assert session.register() == ["plain_avg@1", "plain_avg", "products@1", "products"]
    frame.createOrReplaceTempView("plain_rows")
    for query in (
        "SELECT k, plain_avg(v) AS m FROM plain_rows GROUP BY k",
        "SELECT plain_avg(v + 1) * 2 AS m FROM plain_rows",
        "SELECT k, plain_avg(v) AS m FROM plain_rows GROUP BY k HAVING plain_avg(v) > 2 ORDER BY plain_avg(v)",
        "SELECT k, day % 2, plain_avg(v) AS m FROM plain_rows GROUP BY GROUPING SETS ((k), (day % 2), ())",
        "SELECT k, (SELECT plain_avg(v) FROM plain_rows) AS m FROM plain_rows",
        "SELECT day, plain_avg(v) OVER (PARTITION BY k ORDER BY day ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS m "
        "FROM plain_rows",
    ):
        own = spark.sql(query.replace("plain_avg", "avg"))
        assert rows(spark.sql(query)) == rows(own), query
        assert rows(session.sql(query)) == rows(own), query
    correlated = "SELECT day, (SELECT plain_avg(v) FROM plain_rows AS u WHERE u.k = t.k) AS m FROM plain_rows AS t"
    assert rows(spark.sql(correlated)) == rows(spark.sql(correlated.replace("plain_avg", "avg")))
    assert spark.sql("SELECT `plain_avg@1`(v), products(day, 2) FROM plain_rows").first() == Row(4.0, 56)
    called = frame.groupBy("k").agg(F.call_function("plain_avg", "v").alias("m"))
    assert rows(called) == rows(frame.groupBy("k").agg(F.avg("v").alias("m")))


def test_a_registration_fixes_options_and_each_option_is_for_the_functions_that_have_it(remote, spark, frame):
    @udf.scalar
    def plain_half(x: int) -> float:
        if x == 13:
            raise ValueError("no thirteens")
        return x / 2

    frame.createOrReplaceTempView("plain_rows")
    session = remote(declare_aggregate(PlainAvg), plain_half)
    session.register(on_error="null", buffer_capacity=3, size=100)
    assert spark.sql("SELECT plain_avg(13) AS m FROM range(2)").first().m is None
    assert spark.sql("SELECT plain_half(13) AS m FROM range(2)").first().m is None
    assert session.sql("SELECT plain_avg(13) AS m FROM range(2)").first().m is None
    session.register("plain_avg", on_error="fail")
    for run in (spark.sql, session.sql):
        with pytest.raises(Exception, match="no thirteens"):
            run("SELECT plain_avg(13) AS m FROM range(2)").collect()
    with pytest.raises(InvalidOption, match="buffer_capacity"):
        session.register("plain_avg", buffer_capacity=3)
    with pytest.raises(InvalidOption, match="bufer_capacity"):
        session.register(bufer_capacity=3)


def test_what_spark_sql_cannot_call_is_not_registered_and_said_why(remote, spark):
    @udf.scalar
    def plain_half(x: int) -> float:
        return x / 2

    session = remote(declare_aggregate(Rows), plain_half)
    assert session.register() == ["plain_half@1", "plain_half"]
    with pytest.raises(PlanError, match=r"rows@1 cannot be registered: .*aggregate without arguments; use remote.sql"):
        session.register("rows")


def test_a_call_without_arguments_in_plain_sql_says_what_to_write(remote, spark):
    class Hits(udf.AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator, weight: int = 1):
            return accumulator + weight

        def get_value(self, accumulator) -> int:
            return accumulator

    session = remote(declare_aggregate(Hits))
    session.register()
    assert session.sql("SELECT hits() AS n FROM range(3)").first().n == 3
    ours = r"call of hits@1 without arguments in spark.sql.* remote.sql, or pass an argument"
    with pytest.raises(Exception, match=ours):
        spark.sql("SELECT hits() AS n FROM range(3)").collect()


def test_syntax_that_spark_refuses_for_registered_aggregates(remote, spark, frame):
    remote(declare_aggregate(PlainAvg)).register()
    frame.createOrReplaceTempView("plain_rows")
    for call, message in (
        ("plain_avg(DISTINCT v)", "does not support DISTINCT"),
        ("plain_avg(v) FILTER (WHERE v > 1)", "does not support FILTER CLAUSE"),
        ("plain_avg(v) WITHIN GROUP (ORDER BY v)", "does not support WITHIN GROUP"),
        ("plain_avg(v) IGNORE NULLS", "does not support IGNORE NULLS"),
        ("plain_avg(avg(v))", "NESTED_AGGREGATE_FUNCTION"),
        ("plain_avg(v), avg(v)", "INVALID_PANDAS_UDF_PLACEMENT"),
    ):
        with pytest.raises(PySparkException, match=re.escape(message)):
            spark.sql(f"SELECT {call} FROM plain_rows").collect()
    assert spark.sql("SELECT plain_avg(v) FROM plain_rows WHERE false").collect() == []
