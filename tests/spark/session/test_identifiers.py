"""Names of columns: they are compared as the session is configured, and may contain any characters."""

from collections.abc import Iterator
from typing import Annotated

import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, Window, windows
from spark_client.base.identifiers import quoted
from udf_server import ArgumentTrait
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

ODD = ["x.y", "x`y", "*", "x y", "x.y.", "`x`"]


@udf.scalar(vectorized=True, parameters="x bigint", returns="bigint")
def same(x):
    return x


@udf.scalar(vectorized=True, parameters="x bigint", returns="bigint")
def negative(x):
    return pc.negate(x)


@udf.scalar
def no_ones(x: int) -> int:
    return x // (x - 1) if x == 1 else x


class MySum(udf.AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, acc, v: int):
        return [acc[0] + v]

    def retract(self, acc, v: int):
        return [acc[0] - v]

    def merge(self, acc, others):
        return [acc[0] + sum(other[0] for other in others)]

    def get_value(self, acc) -> int:
        return acc[0]


class Passing(udf.ProcessTableFunction):
    """Returns each row unchanged."""

    returns = "n int"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH]
    ) -> Iterator[tuple[int]]:
        yield (len(rows),)


@pytest.fixture
def session(remote):
    return remote(same, negative, no_ones, declare_aggregate(MySum), declare_process(Passing))


@pytest.fixture
def case_sensitive(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


def rows_of(frame):
    return frame.columns, sorted(map(tuple, frame.collect()), key=repr)


@pytest.fixture
def two_cases(spark, case_sensitive):
    """Columns, fields and tables whose names differ only in case."""
    rows = [(1, 2, 30, (5, 60)), (1, 4, 50, (7, 80)), (2, 4, 70, (9, 90))]
    frame = spark.createDataFrame(rows, "k bigint, a bigint, A bigint, s struct<f:bigint,F:bigint>")
    frame.createOrReplaceTempView("cases")
    frame.select("k", F.col("A").alias("b")).createOrReplaceTempView("CASES")
    yield frame
    for view in ("cases", "CASES"):
        spark.catalog.dropTempView(view)


QUERIES = """\
SELECT my_sum(a), my_sum(A) FROM cases GROUP BY k
SELECT a, A, my_sum(k) FROM cases GROUP BY a, A
SELECT A AS a, my_sum(k) AS n FROM cases GROUP BY A HAVING my_sum(a) > 2
SELECT a + 1 AS A, my_sum(k) FROM cases GROUP BY a + 1 ORDER BY A
SELECT A AS x, a AS X, my_sum(k) FROM cases GROUP BY x, X
SELECT a, A, my_sum(k), grouping(A) FROM cases GROUP BY CUBE (a, A)
SELECT my_sum(s.f), my_sum(s.F) FROM cases
SELECT s.F, my_sum(s.f) FROM cases GROUP BY s.F
SELECT my_sum(c.a), my_sum(C.b) FROM cases c JOIN CASES C ON c.k = C.k
SELECT a, A, my_sum(A) OVER (PARTITION BY a) AS n FROM cases
SELECT a, my_sum(A) OVER w, my_sum(a) OVER W FROM cases WINDOW w AS (ORDER BY A), W AS (PARTITION BY a)
SELECT a AS x, my_sum(a) OVER () AS X FROM cases ORDER BY X, x
WITH t AS (SELECT k AS x FROM CASES WHERE b > 30) SELECT my_sum(t.x), my_sum(T.a) FROM t, cases T
SELECT same(a), same(A) FROM cases WHERE same(a) > 0 AND same(A) > 40
SELECT same(A) AS x, same(a) AS X FROM cases WHERE same(A) > 40 ORDER BY X, x
"""


@pytest.mark.connect
@pytest.mark.parametrize("query", QUERIES.splitlines())
def test_a_case_sensitive_session_tells_names_apart_in_sql(session, spark, two_cases, query):
    session.register()
    theirs = query.replace("my_sum", "sum").replace("same(", "(")
    assert rows_of(session.sql(query))[1] == rows_of(spark.sql(theirs))[1]


@pytest.mark.connect
@pytest.mark.parametrize(
    "query",
    [
        "SELECT my_sum(C.a) FROM cases c",
        "SELECT my_sum(K) FROM cases",
        "SELECT my_sum(a) AS n FROM cases GROUP BY K",
        "SELECT my_sum(a) AS n FROM cases GROUP BY k HAVING N > 1",
        "SELECT my_sum(a) OVER W FROM cases WINDOW w AS (ORDER BY k)",
    ],
)
def test_a_case_sensitive_session_knows_no_name_in_another_case(session, two_cases, query):
    with pytest.raises(Exception, match=r"(?i)cannot be resolved|neither in GROUP BY|no window"):
        session.sql(query).collect()


@pytest.mark.connect
def test_a_case_sensitive_session_tells_columns_of_frames_apart(session, spark, two_cases):
    frame = two_cases.drop("s")
    minus, my_sum = session.function("negative"), session.function("my_sum")
    assert rows_of(session.with_columns(frame, {"A": minus("a"), "K": minus("k")})) == rows_of(
        frame.withColumns({"A": -F.col("a"), "K": -F.col("k")})
    )
    assert rows_of(session.select(frame, "a", "A", minus("A").alias("n"))) == rows_of(
        frame.select("a", "A", (-F.col("A")).alias("n"))
    )
    assert rows_of(session.group_by(frame, "A").agg(my_sum("a").alias("n"), F.sum("A").alias("m"))) == rows_of(
        frame.groupBy("A").agg(F.sum("a").alias("n"), F.sum("A").alias("m"))
    )
    over = session.with_columns(frame, {"A": my_sum("A").over(Window.partitionBy("a"))})
    assert rows_of(over) == rows_of(spark.sql("SELECT k, a, sum(A) OVER (PARTITION BY a) AS A FROM cases"))


@pytest.mark.connect
def test_keys_with_one_name_are_different_keys(session, spark):
    frame = spark.sql("SELECT id AS a, named_struct('a', id % 2) AS s, id % 3 AS a_1 FROM range(6)")
    my_sum = session.function("my_sum")
    over = my_sum("a").over(Window.partitionBy("s.a", "a", "a_1", F.col("s.a")))
    assert sorted(rows_of(session.select(frame, "a", over.alias("n")))[1]) == [(n, n) for n in range(6)]
    grouped = session.group_by(frame, "s.a", F.col("a") % 2, F.col("s.a")).agg(my_sum("a").alias("n"))
    assert sorted(grouped.select("n").toPandas()["n"]) == [6, 9]


@pytest.mark.connect
def test_a_case_sensitive_session_tells_columns_of_windows_and_tables_apart(session, spark, two_cases):
    timed = two_cases.select("k", "a", "A", F.timestamp_seconds("a").alias("t"), F.timestamp_seconds("A").alias("T"))
    small, large = (windows.tumble(timed, time, "10 s").select("window_start").distinct().count() for time in "tT")
    assert (small, large) == (1, 3)
    assert windows.tumble(timed.withColumn("WINDOW_START", F.lit(1)), "t", "10 s").columns[-4] == "WINDOW_START"
    with pytest.raises(PlanError, match="column 'K' is not found"):
        windows.session(timed, "t", "10 s", partition_by="K")
    passed = session.process("passing", two_cases.select("k", "a", "A"), partition_by="A")
    assert passed.columns == ["k", "a", "A", "n"]
    assert sorted(row["A"] for row in passed.collect()) == [30, 50, 70]
    # If case is ignored, this column makes the table a changelog.
    odd, my_sum = timed.withColumn("ROW_KIND", F.lit("?")), session.function("my_sum")
    assert session.group_by(odd).agg(my_sum("k")).first()[0] == 4


@pytest.mark.connect
def test_names_are_one_in_any_case_unless_the_session_says_otherwise(session, spark):
    frame = spark.createDataFrame([(1, 2), (1, 3)], "k bigint, a bigint")
    my_sum = session.function("my_sum")
    sets = session.grouping_sets(frame, [["K"], []], "k").agg(my_sum("A").alias("n"))
    assert sorted(sets.collect(), key=str) == [(1, 5), (None, 5)]
    assert session.process("passing", frame, partition_by="K").columns == ["k", "a", "n"]
    assert windows.tumble(frame.withColumn("t", F.timestamp_seconds("a")), "T", "1 s").count() == 2


@pytest.mark.connect
@pytest.mark.parametrize("name", ODD)
def test_a_column_may_have_any_name(session, spark, name):
    text = quoted(name)
    frame = spark.range(3).withColumn(name, F.col("id") % 2)
    same, my_sum = session.function("same"), session.function("my_sum")
    assert rows_of(session.with_columns(frame, {"z": same("id")})) == rows_of(frame.withColumns({"z": F.col("id")}))
    assert rows_of(session.with_columns(frame, {name: same("id"), "z": same(same(text))})) == rows_of(
        frame.withColumns({name: F.col("id"), "z": F.col(text)})
    )
    assert rows_of(session.select(frame, text, same(text).alias(name))) == rows_of(
        frame.select(text, F.col(text).alias(name))
    )
    assert rows_of(session.group_by(frame, text).agg(my_sum("id").alias(name), F.sum(text).alias("z"))) == rows_of(
        frame.groupBy(text).agg(F.sum("id").alias(name), F.sum(text).alias("z"))
    )
    by_name = Window.partitionBy(text).orderBy("id")
    assert rows_of(session.with_columns(frame, {"z": my_sum("id").over(by_name)})) == rows_of(
        frame.withColumns({"z": F.col("id")})
    )
    assert rows_of(session.select(frame, "*", my_sum(text).over(Window.partitionBy(text)).alias(name)))[1] == [
        (0, 0, 0), (1, 1, 1), (2, 0, 0),
    ]  # fmt: skip


@pytest.mark.connect
@pytest.mark.parametrize("name", ODD)
def test_a_table_and_a_window_may_have_columns_of_any_name(session, spark, name):
    frame = spark.range(2).withColumn(name, F.timestamp_seconds("id"))
    assert session.process("passing", frame, partition_by=name).columns == ["id", name, "n"]
    assert session.process("passing", frame, partition_by="id", order_by=name).count() == 2
    assert rows_of(windows.session(frame, name, "1 s", partition_by="id").select("id")) == (["id"], [(0,), (1,)])
    cumulated = windows.cumulate(frame, name, "1 s", "2 s", emit_only_on_update=True)
    my_sum = session.function("my_sum")
    assert session.group_by(cumulated, "window_start", "window_end").agg(my_sum("id").alias(name)).columns[-1] == name
    changes = spark.createDataFrame([("+I", 1, 5), ("-D", 1, 5), ("+I", 2, 3)], ["row_kind", "k", name])
    found = session.group_by(changes, "k").agg(my_sum(quoted(name)).alias("n"), F.max(quoted(name)).alias("m"))
    assert rows_of(found) == (["k", "n", "m"], [(2, 3, 3)])


def test_a_dead_letter_has_the_names_of_the_frame(session, spark, tmp_path):
    frame = spark.range(2).select(F.lit("v").alias("x.y"), "id")
    call = session.function("no_ones")("id")
    result = session.with_columns(frame, {"z": call}, on_error="dead-letter", dead_letter=str(tmp_path))
    assert rows_of(result) == (["x.y", "id", "z"], [("v", 0, 0)])
    letters = spark.read.parquet(str(tmp_path))
    assert letters.columns[:2] == ["x.y", "id"]
    assert letters.select("`x.y`", "id").collect() == [("v", 1)]
