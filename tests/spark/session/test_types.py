"""Every Spark type is passed to a function and back, including nulls at every level."""

import datetime as dt
import re
from decimal import Decimal

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

import udf_server as udf
from remote_udf.errors import UnsupportedType
from spark_client import Window
from udf_server.aggregate.declaration import declare_aggregate

UTC = dt.UTC
MATRIX = [
    ("boolean", [True, False]),
    ("tinyint", [-128, 127]),
    ("smallint", [-32768, 32767]),
    ("int", [-(2**31), 2**31 - 1]),
    ("bigint", [-(2**63), 2**63 - 1]),
    ("float", [1.5, float("inf")]),
    ("double", [1e300, -0.0]),
    ("decimal(10,2)", [Decimal("12345678.90"), Decimal("-0.01")]),
    ("decimal(38,18)", [Decimal("12345678901234567890.123456789012345678")]),
    ("string", ["", "straße 🚲", "a\x00b"]),
    ("binary", [bytearray(b""), bytearray(b"\x00\xff")]),
    ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("timestamp", [dt.datetime(2024, 3, 10, 1, 59, 59, 999999), dt.datetime(1900, 1, 1)]),
    ("timestamp_ntz", [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(1, 1, 1)]),
    ("interval day to second", [dt.timedelta(days=-3, microseconds=1), dt.timedelta(0)]),
    ("array<int>", [[], [1, None, 3]]),
    ("map<string,double>", [{}, {"a": 1.0, "b": None}]),
    ("struct<a:int,b:string>", [Row(a=1, b=None), Row(a=None, b="x")]),
    ("array<struct<m:map<string,array<date>>>>", [[Row(m={"k": [dt.date(2020, 2, 29), None]}), None, Row(m=None)]]),
    ("struct<s:struct<t:struct<u:array<timestamp>>>>", [Row(s=Row(t=Row(u=[dt.datetime(2020, 1, 1)]))), Row(s=None)]),
]


def identities(ddl: str) -> list[udf.Function]:
    """The identity function of that type in each execution mode."""

    @udf.scalar(parameters=f"x {ddl}", returns=ddl)
    async def by_coroutine(x):
        return x

    @udf.scalar(parameters=f"x {ddl}", returns=ddl)
    def by_thread(x):
        return x

    @udf.scalar(parameters=f"x {ddl}", returns=ddl, vectorized=True)
    def by_array(x):
        return x

    return [by_coroutine, by_thread, by_array]


@pytest.mark.connect
@pytest.mark.parametrize(("ddl", "values"), MATRIX, ids=[ddl for ddl, _ in MATRIX])
def test_the_type_comes_back_as_it_went(remote, spark, ddl, values):
    session = remote(*identities(ddl))
    frame = spark.createDataFrame([(value,) for value in [*values, None]], f"x {ddl}")
    calls = {spec.name: session.function(spec.name)("x") for spec in session.functions()}
    direct = frame.select("x", *(call.alias(name) for name, call in calls.items()))
    for result in (direct, session.with_columns(frame, calls)):
        for row in result.collect():
            assert row.by_coroutine == row.x
            assert row.by_thread == row.x
            assert row.by_array == row.x
        types = {field.name: field.dataType.simpleString() for field in result.schema}
        assert len(set(types.values())) == 1, types


def test_a_timestamp_arrives_as_the_instant_it_is_whatever_the_session_zone(remote, spark):
    seen = []

    @udf.scalar
    def note(x: dt.datetime) -> dt.datetime:
        seen.append(x)
        return x + dt.timedelta(hours=1)

    note_ = remote(note).function("note")
    frame = spark.sql("SELECT TIMESTAMP '2024-07-01 12:00:00 UTC' AS t")
    result = frame.select(F.date_format(note_("t"), "yyyy-MM-dd HH:mm").alias("local")).first()
    assert seen == [dt.datetime(2024, 7, 1, 12, tzinfo=UTC)]
    assert result.local == "2024-07-01 06:00"  # 13:00 UTC in Los Angeles


def test_char_and_varchar_columns_are_strings(remote, spark, tmp_path):
    @udf.scalar
    def shout(x: str) -> str:
        return x.upper()

    session = remote(shout)
    spark.sql(f"CREATE TABLE chars (c CHAR(3), v VARCHAR(5)) USING parquet LOCATION '{tmp_path}/chars'")
    try:
        spark.sql("INSERT INTO chars VALUES ('ab', 'cd')")
        shout_ = session.function("shout")
        row = spark.table("chars").select(shout_("c").alias("c"), shout_("v").alias("v")).first()
        assert (row.c, row.v) == ("AB ", "CD")
    finally:
        spark.sql("DROP TABLE chars")


def test_null_literals_fit_every_parameter(remote, spark):
    @udf.scalar
    def describe(x: dt.date) -> str:
        return f"got {x}"

    describe_ = remote(describe).function("describe")
    assert spark.range(1).select(describe_(F.lit(None))).first()[0] == "got None"


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("parse_json('1')", "variant"),
        ("INTERVAL '1' MONTH", "interval month"),
        ("named_struct('a', make_interval(1))", "interval"),
        ("array(parse_json('[]'))", "variant"),
        ("map()", "map<void,void>"),
        ("array(map())", "map<void,void>"),
    ],
)
def test_types_without_a_counterpart_are_refused_when_whole_rows_are_planned(remote, spark, expression, named):
    @udf.scalar
    def anything(x: int) -> int:
        return x

    session = remote(anything)
    frame = spark.sql(f"SELECT {expression} AS odd")
    with pytest.raises(UnsupportedType, match=rf"call of anything@1, argument 'x': type {named} cannot be sent"):
        session.with_columns(frame, {"y": session.function("anything")("odd")})


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("parse_json('1')", "anything@1, parameter 'x': expected bigint, found"),
        ("INTERVAL '1' MONTH", "call of anything@1: an argument is an INTERVAL YEAR TO MONTH"),
        ("array(INTERVAL '1' MONTH)", "anything@1, parameter 'x': expected bigint, found array<month_interval>"),
        ("struct(INTERVAL '1' YEAR AS a)", "parameter 'x': expected bigint, found struct<a:month_interval>"),
        ("map()", "anything@1, parameter 'x': expected bigint, found map<void,void>"),
        ("array(map())", "anything@1, parameter 'x': expected bigint, found array<map<void,void>>"),
    ],
)
def test_such_types_are_refused_in_a_select_before_a_row_is_sent(remote, spark, expression, named):
    seen = []

    @udf.scalar
    def anything(x: int) -> int:
        seen.append(x)
        return x

    anything_ = remote(anything).function("anything")
    with pytest.raises(Exception, match=re.escape(named)):
        spark.sql(f"SELECT {expression} AS odd").select(anything_("odd")).collect()
    assert seen == []


def test_a_map_of_void_keys_is_no_map_of_texts(remote, spark):
    @udf.scalar
    def count(x: dict[str, int]) -> int:
        return len(x)

    count_ = remote(count).function("count")
    with pytest.raises(Exception, match=r"expected map<string,bigint>, found map<void,void>; cast the argument"):
        spark.sql("SELECT map() AS x").select(count_("x")).collect()
    cast = spark.sql("SELECT CAST(map() AS MAP<STRING,BIGINT>) AS x")
    assert cast.select(count_("x")).first()[0] == 0


def test_columns_that_no_call_uses_may_have_any_type_spark_can_hand_over(remote, spark):
    @udf.scalar
    def plus(x: int) -> int:
        return x + 1

    session = remote(plus)
    frame = spark.sql(
        "SELECT 1 AS x, array(named_struct('t', TIMESTAMP '2024-01-01 00:00:00')) AS deep, NULL AS nothing"
    )
    row = session.with_columns(frame, {"y": session.function("plus")("x")}).first()
    assert (row.y, row.nothing, row.deep) == (2, None, frame.first().deep)


class Total(udf.AggregateFunction):
    """sum, merging."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator, x: int):
        accumulator[0] += x

    def merge(self, accumulator, others):
        accumulator[0] += sum(other[0] for other in others)

    def get_value(self, accumulator) -> int:
        return accumulator[0]


@pytest.mark.connect
def test_year_month_intervals_pass_along_although_spark_hands_none_to_python(remote, spark):
    @udf.scalar
    def plus(x: int) -> int:
        return x + 1

    session = remote(plus, declare_aggregate(Total))
    plus_, total = session.function("plus"), session.function("total")
    frame = spark.sql("""
        SELECT id, make_ym_interval(0, id * 7 - 7) AS m, CAST(make_ym_interval(0, id * 7) AS INTERVAL YEAR) AS y,
               named_struct('a', array(make_ym_interval(0, id), NULL), 'b', map(make_ym_interval(0, id), NULL)) AS s
        FROM (SELECT CAST(id AS int) AS id FROM range(3)) UNION ALL SELECT NULL, NULL, NULL, NULL""")
    passed = frame.schema[1:]

    def texts(of):
        return sorted(map(str, of.select(*(F.col(f.name).cast("string") for f in passed)).collect()))

    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            for made in (
                session.with_columns(frame.where("id >= 0"), {"z": plus_(F.expr("bigint(id)"))}),
                session.with_columns(
                    frame.where("id >= 0"), {"z": total(F.expr("bigint(id)")).over(Window.partitionBy("id"))}
                ),
            ):
                assert [field.dataType for field in made.schema[1:4]] == [field.dataType for field in passed]
                assert texts(made) == texts(frame.where("id >= 0"))
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
    grouped = session.group_by(frame.where("id >= 0")).agg(
        total(F.expr("bigint(id)")).alias("t"), F.max("m").cast("string").alias("m"), F.max("y").alias("y")
    )
    assert [tuple(row) for row in grouped.select("t", "m").collect()] == [(3, "INTERVAL '0-7' YEAR TO MONTH")]
    assert grouped.schema["y"].dataType == T.YearMonthIntervalType(0, 0)


def test_dead_letters_keep_year_month_intervals(remote, spark, tmp_path):
    @udf.scalar
    def never(x: int) -> int:
        raise ValueError("never")

    session = remote(never)
    frame = spark.sql("SELECT 1L AS x, INTERVAL '1-2' YEAR TO MONTH AS m")
    options = {"on_error": "dead-letter", "dead_letter": str(tmp_path)}
    session.with_columns(frame, {"y": session.function("never")("x")}, **options).collect()
    back = session.replay(str(tmp_path))
    assert [field.dataType for field in back.schema] == [field.dataType for field in frame.schema]
    assert back.selectExpr("CAST(m AS string)").first()[0] == "INTERVAL '1-2' YEAR TO MONTH"


def test_nullability_of_the_input_does_not_matter(remote, spark):
    @udf.scalar
    def total(xs: list[int]) -> int:
        return sum(xs)

    schema = T.StructType([T.StructField("xs", T.ArrayType(T.LongType(), containsNull=False), nullable=False)])
    frame = spark.createDataFrame([([1, 2],)], schema)
    assert frame.select(remote(total).function("total")("xs")).first()[0] == 3
