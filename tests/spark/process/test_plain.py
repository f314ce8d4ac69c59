"""Process table functions in plain Spark: `SELECT * FROM f(TABLE(t) PARTITION BY k ORDER BY ts)`."""

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import udf_server as udf
from remote_udf.errors import InvalidOption
from spark_client import PlanError, connect, root_cause
from tests.spark.process.test_tables import KEYED, Doubled, Running
from tests.waiting import wait_until
from udf_process import ToChangelog
from udf_server import ArgumentTrait
from udf_server.process.declaration import declare_process

pytestmark = pytest.mark.connect

ROWS = Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]
PASSED = (
    "moment timestamp, days array<date>, prices map<string, decimal(10, 2)>, wait interval day to second, data binary"
)


class Twice(udf.ProcessTableFunction):
    """Twice the value of each row."""

    returns = "doubled bigint"

    def eval(self, rows: ROWS):
        if rows.v == 13:
            raise ValueError("thirteen")
        yield (rows.v * 2,)


class Scaled(udf.ProcessTableFunction):
    """The values of a key, in the order in which they come, times a factor."""

    returns = "scaled double, label string, key string"

    def eval(self, ctx: udf.ProcessContext, rows: KEYED, factor: float = 1.0, label: str | None = "none"):
        yield rows.v * factor, label, str(ctx.key)


@dataclass
class Priced:
    """A row of a typed table."""

    k: str | None
    price: float


class Typed(udf.ProcessTableFunction):
    """The names and prices of a typed table."""

    returns = "name string, price double"

    def eval(self, rows: Annotated[Priced, ArgumentTrait.SET_SEMANTIC_TABLE]):
        yield rows.k, rows.price


@pytest.fixture
def frame(spark):
    rows = [("a", 1, 1), ("a", 2, 3), ("a", 3, 5), ("b", 4, 9), ("b", 5, 2), ("c", 6, 7), (None, 7, 4), (None, 8, 1)]
    frame = spark.createDataFrame(rows, "k string, day int, v bigint").withColumn("ts", F.timestamp_seconds("day"))
    frame = frame.repartition(2)
    frame.createOrReplaceTempView("plain_rows")
    return frame


@pytest.fixture
def small_batches(spark):
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "2")
    yield
    spark.conf.set(name, before)


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def called(spark, call):
    return rows(spark.sql(f"SELECT * FROM {call}"))


def test_a_registered_function_has_the_rows_of_remote_process_without_the_key(remote, spark, frame):
    session = remote(declare_process(Running))
    assert session.register() == ["running@1", "running"]
    found = spark.sql("SELECT * FROM running(rows => TABLE(plain_rows) PARTITION BY k ORDER BY ts)")
    assert found.columns == ["total", "rows", "last"]
    by_key = rows(session.process("running", frame, partition_by="k", order_by="ts").drop("k"))
    assert rows(found) == by_key
    for call in (
        "running(TABLE(SELECT * FROM plain_rows) PARTITION BY (k) ORDER BY (ts))",
        "`running@1`(TABLE(plain_rows) PARTITION BY upper(k) ORDER BY ts)",
        "running(TABLE(SELECT v, k AS key, ts FROM plain_rows) PARTITION BY (key, key = 'a') ORDER BY (ts, v))",
    ):
        assert called(spark, call) == by_key, call
    backwards = called(spark, "running(TABLE(plain_rows) PARTITION BY k ORDER BY ts DESC)")
    each = sorted(row[:2] for row in backwards if not row[2])
    assert each == [(1, 1), (2, 1), (5, 1), (5, 2), (7, 1), (8, 2), (9, 3), (11, 2)]
    counted = spark.sql(
        "SELECT max(total) AS t, count(*) AS n FROM running(TABLE(plain_rows) PARTITION BY k) WHERE last GROUP BY rows"
    )
    assert sorted(tuple(row) for row in counted.collect()) == [(7, 1), (9, 1), (11, 2)]


def test_a_table_without_keys_is_one_partition_and_a_table_without_rows_has_no_result(remote, spark, frame):
    remote(declare_process(Running)).register()
    whole = called(spark, "running(TABLE(plain_rows) WITH SINGLE PARTITION ORDER BY ts)")
    assert whole == rows(spark.createDataFrame([
        (1, 1, False), (4, 2, False), (9, 3, False), (18, 4, False), (20, 5, False), (27, 6, False), (31, 7, False),
        (32, 8, False), (32, 8, True),
    ]))  # fmt: skip
    for clause in ("PARTITION BY k", "WITH SINGLE PARTITION"):
        assert called(spark, f"running(TABLE(SELECT * FROM plain_rows WHERE v > 99) {clause})") == []


@pytest.mark.parametrize("options", [{}, {"size": 2}])
def test_rows_come_in_batches_of_any_size_and_keys_larger_than_a_bundle_in_parts(
    remote, spark, frame, small_batches, options
):
    session = remote(declare_process(Running), declare_process(Twice))
    session.register(**options)
    many = frame.unionAll(frame).withColumn("v", F.lit(1).cast("bigint"))
    many.createOrReplaceTempView("plain_many")
    found = called(spark, "running(TABLE(plain_many) PARTITION BY k ORDER BY ts)")
    assert found == rows(session.process("running", many, partition_by="k", order_by="ts").drop("k"))
    assert called(spark, "twice(TABLE(plain_rows))") == rows(frame.select(F.col("v") * 2))
    assert called(spark, "twice(TABLE(plain_rows) PARTITION BY k)") == rows(frame.select(F.col("v") * 2))


def test_scalar_arguments_are_passed_by_position_and_by_name(remote, spark, frame):
    remote(declare_process(Scaled)).register()
    for call, factor, label in (
        ("TABLE(plain_rows) PARTITION BY k", 1.0, "none"),
        ("TABLE(plain_rows) PARTITION BY (k), 2", 2.0, "none"),
        ("TABLE(plain_rows) PARTITION BY (k) ORDER BY (ts), 2.5, 'x'", 2.5, "x"),
        ("rows => TABLE(plain_rows) PARTITION BY k, LABEL => upper('y'), Factor => 1 + 1", 2.0, "Y"),
        ("rows => TABLE(plain_rows) PARTITION BY k, label => NULL", 1.0, None),
        ("label => 'z', rows => TABLE(plain_rows) PARTITION BY k", 1.0, "z"),
    ):
        expected = rows(frame.select(F.col("v") * factor, F.lit(label), F.lit("()")))
        assert called(spark, f"scaled({call})") == expected, call


def test_values_of_every_type_go_and_come_back(remote, spark):
    class Passed(udf.ProcessTableFunction):
        returns = PASSED

        def eval(self, rows: KEYED, when: dt.datetime, lists: list[int], prices: dict[str, Decimal]):
            yield rows.moment or when, [*(rows.days or []), None], rows.prices or prices, rows.wait, rows.data

    remote(declare_process(Passed)).register()
    moment, day = dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.date(2026, 1, 2)
    when = spark.sql("SELECT timestamp'2026-05-06 07:08:09'").first()[0]
    given = [(moment, [day, None], {"a": Decimal("1.50"), "b": None}, dt.timedelta(hours=-5), b"\x00"), (None,) * 5]
    spark.createDataFrame(given, PASSED).createOrReplaceTempView("plain_types")
    call = "TABLE(plain_types) PARTITION BY (1), timestamp'2026-05-06 07:08:09', array(1, 2), map('c', 2.25BD)"
    found = spark.sql(f"SELECT * FROM passed({call}) ORDER BY data")
    assert [tuple(row) for row in found.collect()] == [
        (when, [None], {"c": Decimal("2.25")}, None, None),
        (moment, [day, None, None], {"a": Decimal("1.50"), "b": None}, dt.timedelta(hours=-5), bytearray(b"\x00")),
    ]


def test_errors_fail_the_job_with_the_message_of_the_function(remote, spark, frame):
    remote(declare_process(Running), declare_process(Twice)).register()
    frame.withColumn("v", F.when(F.col("day") != 6, F.col("v")).otherwise(13)).createOrReplaceTempView("plain_bad")
    for call in ("running(TABLE(plain_bad) PARTITION BY k ORDER BY ts)", "twice(TABLE(plain_bad))"):
        with pytest.raises(PySparkException) as failed:
            called(spark, call)
        said = r"FunctionFailed: function \w+@1: a segment without a key failed: .*ValueError: thirteen"
        assert re.search(said, root_cause(failed.value))
    # The next query uses the same worker.
    assert len(called(spark, "twice(TABLE(plain_rows))")) == 8


def test_a_query_that_needs_no_more_rows_ends_early(remote, spark):
    remote(declare_process(Twice), declare_process(Running)).register()
    spark.range(0, 100_000, 1, 2).selectExpr("id % 1000 AS k", "id + 20 AS v").createOrReplaceTempView("plain_many")
    assert len(called(spark, "twice(TABLE(plain_many)) LIMIT 3")) == 3
    assert len(called(spark, "running(TABLE(plain_many) PARTITION BY k) LIMIT 3")) == 3


def test_the_keys_of_a_task_share_a_stream_which_ends_with_the_task(spark, serve):
    serving = serve(declare_process(Running))
    connect(spark, serving.target).register()

    def streams(end):
        return serving.metric("udf_streams_total", function="running", version="1", end=end)

    spark.range(100).selectExpr("id % 50 AS k", "id + 20 AS v").createOrReplaceTempView("plain_many")
    assert len(called(spark, "running(TABLE(plain_many) PARTITION BY k)")) == 150
    # There are two partitions of a shuffle in tests.
    wait_until(lambda: not serving.metric("udf_streams_open", function="running", version="1"))
    assert 1 <= streams("finished") <= 2
    with pytest.raises(PySparkException, match="thirteen"):
        called(spark, "running(TABLE(SELECT k, v - 20 AS v FROM plain_many) PARTITION BY k)")
    wait_until(lambda: not serving.metric("udf_streams_open", function="running", version="1"))


def test_wrong_arguments_are_refused_when_spark_runs_the_query(remote, spark, frame):
    remote(declare_process(Scaled), declare_process(Typed), declare_process(Twice)).register()
    for call, message in (
        ("scaled(TABLE(plain_rows) PARTITION BY (k), 1, 'x', 3)", "function scaled@1 takes 3 arguments: scaled("),
        ("scaled(rows => TABLE(plain_rows) PARTITION BY k, wrong => 1)", "has no argument 'wrong'"),
        ("scaled(TABLE(plain_rows) PARTITION BY (k), 'x')", "argument 'factor': expected double, got 'x'"),
        ("scaled(1)", "Argument 'rows' expects a table to be passed"),
        ("scaled(factor => TABLE(plain_rows) PARTITION BY k)", "Argument 'rows' expects a table to be passed"),
        (
            "typed(TABLE(plain_rows) PARTITION BY k)",
            "table argument 'rows' wants rows of struct<k:string,price:double>",
        ),
    ):
        with pytest.raises(PySparkException) as failed:
            called(spark, call)
        assert message in root_cause(failed.value), call
    assert called(spark, "typed(TABLE(SELECT k, v FROM plain_rows WHERE day = 6) PARTITION BY k)") == [("c", 7.0)]


def test_what_spark_itself_refuses_or_does_otherwise(remote, spark, frame):
    remote(declare_process(Running), declare_process(Scaled)).register()
    for call, message in (
        ("plain_rows AS t, LATERAL running(TABLE(plain_rows) PARTITION BY k)", "LATERAL"),
        ("scaled(TABLE(plain_rows) PARTITION BY k, 2)", "multiple expressions without parentheses"),
        ("scaled(TABLE(plain_rows) PARTITION BY (k), TABLE(plain_rows))", "TOO_MANY_TABLE_ARGUMENTS"),
        ("running(rows => TABLE(plain_rows) PARTITION BY k, on_time => DESCRIPTOR(ts))", "UNRESOLVED_ROUTINE"),
        ("running(TABLE(SELECT v, v FROM plain_rows) PARTITION BY v)", "DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT"),
    ):
        with pytest.raises(PySparkException, match=message):
            called(spark, call)
    # A key NaN is not equal to itself in Spark's worker, and rows without a key are those of a partition.
    spark.sql("SELECT double('NaN') AS k, 1L AS v FROM range(3)").createOrReplaceTempView("plain_nans")
    assert [row[:2] for row in called(spark, "running(TABLE(plain_nans) PARTITION BY k)") if row[2]] == [(1, 1)] * 3
    spark.range(0, 4, 1, 2).selectExpr("1L AS v").createOrReplaceTempView("plain_apart")
    assert [row[:2] for row in called(spark, "running(TABLE(plain_apart))") if row[2]] == [(2, 2)] * 2


def test_a_registration_fixes_the_options_also_for_remote_sql(remote, spark, frame):
    session = remote(declare_process(Twice))
    with pytest.raises(InvalidOption, match="buffer_capacity"):
        session.register("twice", buffer_capacity=3)
    session.register("twice", prefix="my_", max_attempts=2, retry_on="ValueError", fixed_delay="1 ms")
    session.register("twice", max_attempts=3, retry_on="ValueError", fixed_delay="1 ms")
    for run, name, attempts in ((spark.sql, "my_twice", 2), (spark.sql, "twice", 3), (session.sql, "twice", 3)):
        with pytest.raises(PySparkException, match=f"thirteen .{attempts} attempts."):
            run(f"SELECT * FROM {name}(TABLE(SELECT 13 AS v))").collect()


class Through(Doubled):
    """Passes columns through."""


class Timed(udf.ProcessTableFunction):
    """Needs times."""

    returns = "n bigint"

    def eval(self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME]):
        yield (1,)


class Joined(udf.ProcessTableFunction):
    """Has two tables."""

    returns = "n bigint"

    def eval(self, left: KEYED, right: KEYED):
        yield (1,)


class Either(udf.ProcessTableFunction):
    """Has one kind of table or the other."""

    returns = "n bigint"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE,
            ArgumentTrait.SET_SEMANTIC_TABLE.when(has_partition_by=True)],
    ):  # fmt: skip
        yield (1,)


class Copied(udf.ProcessTableFunction):
    """Has the columns of its table."""

    returns = (udf.columns_of("rows"),)

    def eval(self, rows: KEYED):
        yield tuple(rows)


def test_functions_that_a_table_function_of_spark_cannot_be_are_not_registered_and_said_why(remote):
    session = remote(*map(declare_process, (Through, Timed, Joined, Either, Copied, Twice, ToChangelog)))
    assert session.register() == ["twice@1", "twice"]
    for name, why in (
        ("through", "its table 'rows' has the trait PASS_COLUMNS_THROUGH"),
        ("timed", "its table 'rows' has the trait REQUIRE_ON_TIME"),
        ("joined", "it takes 2 tables"),
        ("either", "not always one with row or set semantics"),
        ("copied", "its columns depend on the call"),
        ("to_changelog", "not always one with row or set semantics"),
    ):
        with pytest.raises(PlanError, match=rf"function {name}@1 cannot be registered: .*{why}.*; use remote\.process"):
            session.register(name)
