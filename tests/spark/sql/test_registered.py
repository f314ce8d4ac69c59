"""Registered functions in Spark SQL."""

from typing import NamedTuple

import pyspark
import pytest
from packaging.version import Version
from pyspark.sql import Row
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError
from udf_server.aggregate.declaration import declare_aggregate


@udf.scalar
async def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar
def split_words(text: str) -> list[str]:
    return text.split()


@udf.scalar
async def times(x: int = 1, y: int = 3) -> int:
    return x * y


class Hits(udf.AggregateFunction):
    """How often `weight`."""

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, acc, weight: int = 1):
        return [acc[0] + (1 if weight is not None else 0)]

    def merge(self, acc, others):
        return [acc[0] + sum(other[0] for other in others)]

    def get_value(self, acc) -> int:
        return acc[0]


@udf.scalar
def answer() -> int:
    return 42


class Letter(NamedTuple):
    letter: str


@udf.scalar(rows=True)
def letters(text: str) -> list[Letter]:
    return [Letter(each) for each in text]


@udf.scalar(rows=True, deterministic=False)
def drawn(text: str) -> list[Letter]:
    return [Letter(each) for each in text]


@pytest.mark.connect
def test_functions_are_registered_under_their_names_and_versions(remote, spark):
    @udf.scalar(name="plus_ten", version="2")
    async def plus_ten_and_a_half(x: int) -> float:
        return x + 10.5

    session = remote(plus_ten, plus_ten_and_a_half)
    assert session.register() == ["plus_ten@1", "plus_ten@2", "plus_ten"]
    row = spark.sql("SELECT plus_ten(1) AS newest, `plus_ten@1`(1) AS first").first()
    assert row == Row(newest=11.5, first=11)


@pytest.mark.connect
def test_without_names_no_function_of_spark_is_replaced(remote, spark):
    class Median(udf.AggregateFunction):
        name = "Median"

        def create_accumulator(self) -> list[int]:
            return [0]

        def accumulate(self, acc, v: int) -> None:
            acc[0] += v

        def merge(self, acc, others) -> None:
            acc[0] += sum(other for (other,) in others)

        def get_value(self, acc) -> int:
            return -acc[0]

    @udf.scalar
    async def upper(text: str) -> str:
        return text[::-1]

    session = remote(declare_aggregate(Median), upper, plus_ten)
    assert set(session.register()) == {"Median@1", "upper@1", "plus_ten@1", "plus_ten"}
    assert set(session.register(prefix="my_")) >= {"my_Median", "my_upper"}
    assert spark.range(4).agg(F.median("id")).first()[0] == 1.5
    assert spark.sql("SELECT `Median@1`(id), my_median(id) FROM range(4)").first()[:] == (-6, -6)
    assert spark.sql("SELECT upper('abc'), `upper@1`('abc'), my_upper('abc')").first()[:] == ("ABC", "cba", "cba")


@pytest.mark.connect
def test_each_session_calls_its_own_function_although_another_one_has_registered_the_name(remote, spark):
    @udf.scalar(name="number")
    async def parsed(text: str) -> int:
        return int(text)

    @udf.scalar(name="number")
    async def length(text: str) -> int:
        return len(text)

    one, two = remote(parsed), remote(length)
    one.register("number", on_error="null")
    two.register("number")
    assert one.sql("SELECT number('12') AS known, number('?') AS unknown").first() == Row(known=12, unknown=None)
    assert two.sql("SELECT number('?') AS n").first() == Row(n=1)
    assert one.sql("SELECT number('12') AS n").first() == Row(n=12)


@pytest.mark.connect
def test_sparks_catalog_lists_functions_after_queries_that_call_versions(remote, spark):
    for row in spark.sql("SHOW USER FUNCTIONS").collect():
        if "@" in row.function:  # `register` in another test
            spark.sql(f"DROP TEMPORARY FUNCTION `{row.function}`")
    session = remote(plus_ten, times, answer, letters, drawn)
    texts = {
        "SELECT `plus_ten@1`(id), 1 + `PLUS_TEN@1`(id) FROM range(1)": (
            ["plus_ten@1(id)", "(1 + plus_ten@1(id))"], (10, 11),
        ),
        "SELECT `plus_ten@1`(`times@1`(id)) AS x FROM range(1) WHERE `plus_ten@1`(`times@1`(id)) > 0": (["x"], (10,)),
        "SELECT `times@1`(), `answer@1`(), ', `plus_ten@1`(2)' AS text": (
            ["times@1()", "answer@1()", "text"], (3, 42, ", `plus_ten@1`(2)"),
        ),
        "SELECT t.`plus_ten@1(id)` + 1 AS x FROM (SELECT `plus_ten@1`(id) FROM range(1)) AS t": (["x"], (11,)),
        "SELECT letter FROM VALUES ('a') AS t(text), LATERAL `letters@1`(text)": (["letter"], ("a",)),
        "SELECT letter FROM VALUES ('a') AS t(text), LATERAL `drawn@1`(text)": (["letter"], ("a",)),
        "SELECT * FROM `letters@1`('a')": (["letter"], ("a",)),
    }  # fmt: skip
    for text, (columns, row) in texts.items():
        found = session.sql(text)
        assert (found.columns, [tuple(each) for each in found.collect()]) == (columns, [row]), text
    assert not [each.name for each in spark.catalog.listFunctions() if "@" in each.name]


@pytest.mark.connect
def test_a_view_has_the_columns_of_its_query_named_after_calls(remote, spark):
    query = "SELECT `plus_ten@1`(id), `plus_ten@1`(id) * 2, id AS n FROM range(1)"
    remote(plus_ten).sql(f"CREATE OR REPLACE TEMPORARY VIEW named AS {query}")
    assert spark.table("named").columns == ["plus_ten@1(id)", "(plus_ten@1(id) * 2)", "n"]
    assert spark.sql("SELECT `plus_ten@1(id)` AS x, n FROM named").collect() == [Row(x=10, n=0)]
    found = remote(plus_ten).sql("SELECT `plus_ten@1`(n) AS x, `plus_ten@1(id)` AS y FROM named")
    assert found.collect() == [Row(x=10, y=10)]
    spark.catalog.dropTempView("named")


@pytest.mark.connect
def test_some_functions_under_a_prefix_with_options(remote, spark):
    @udf.scalar
    def fail(x: int) -> int:
        raise ValueError("no")

    session = remote(plus_ten, fail)
    assert session.register("fail", prefix="safe_", on_error="null") == ["safe_fail"]
    assert spark.sql("SELECT safe_fail(1) AS x").first().x is None
    with pytest.raises(Exception, match="UNRESOLVED_ROUTINE"):
        spark.sql("SELECT fail(1)").collect()


@pytest.mark.connect
def test_calls_stand_wherever_sql_takes_a_function(remote, spark):
    remote(plus_ten, split_words).register()
    spark.createDataFrame([(1, "a b"), (2, "c")], "k bigint, text string").createOrReplaceTempView("lines")
    query = """
        WITH words AS (SELECT k, word FROM lines LATERAL VIEW explode(split_words(text)) AS word)
        SELECT plus_ten(k) AS k, count(*) AS n FROM words
        WHERE plus_ten(k) > 10 GROUP BY plus_ten(k) HAVING plus_ten(count(*)) > 10 ORDER BY plus_ten(k) DESC
    """
    assert spark.sql(query).collect() == [Row(k=12, n=1), Row(k=11, n=2)]
    lateral = spark.sql("SELECT word FROM lines, LATERAL explode(split_words(text)) AS t(word) ORDER BY word")
    assert [row.word for row in lateral.collect()] == ["a", "b", "c"]


@pytest.mark.connect
def test_a_function_without_parameters_is_called_without_arguments(remote, spark):
    remote(answer).register()
    assert spark.sql("SELECT answer() AS x, id FROM range(2)").collect() == [Row(x=42, id=0), Row(x=42, id=1)]


@pytest.mark.connect
def test_a_function_whose_parameters_have_defaults_is_called_without_arguments(remote, spark):
    session = remote(times, declare_aggregate(Hits))
    session.register()
    now = session.function("times")()
    found = spark.range(2).select("id", now, now + 1, now.alias("n"))
    assert found.columns == ["id", "times()", "(times() + 1)", "n"]
    assert [tuple(row) for row in found.collect()] == [(0, 3, 4, 3), (1, 3, 4, 3)]
    assert session.select(spark.range(1), "id", now).columns == ["id", "times()"]
    found = session.sql(
        "SELECT times(), times() * times(id) AS n, `times@1`(), times(id, 2) FROM range(2) WHERE times() > 0"
    )
    assert found.columns == ["times()", "n", "times@1()", "times(id, 2)"]
    assert sorted(tuple(row) for row in found.collect()) == [(3, 0, 3, 0), (3, 9, 3, 2)]
    keyed = session.sql("SELECT times() AS k, hits(), hits(id) FROM range(3) GROUP BY times() HAVING hits() = times()")
    assert [tuple(row) for row in keyed.collect()] == [(3, 3, 3)]
    over = session.sql("SELECT id, hits() OVER (ORDER BY id) AS n FROM (SELECT id FROM range(2) WHERE times() = 3)")
    assert sorted(tuple(row) for row in over.collect()) == [(0, 1), (1, 2)]
    ours = r"without arguments in spark.sql: .* remote.sql, or pass an argument: times\("
    # PySpark's own worker fails before it calls any function of ours.
    older = "list index out of range"
    with pytest.raises(Exception, match=ours if Version(pyspark.__version__) >= Version("4.2") else older):
        spark.sql("SELECT times() FROM range(2)").collect()


@pytest.mark.connect
def test_a_call_without_arguments_sorts_and_makes_rows(remote):
    session = remote(answer, times)
    found = session.sql("SELECT times(), `answer@1`(), id FROM range(2) ORDER BY times() - id, answer()")
    assert (found.columns, [tuple(row) for row in found.collect()]) == (
        ["times()", "answer@1()", "id"],
        [(3, 42, 1), (3, 42, 0)],
    )
    rows = session.sql("SELECT n, stack(2, answer(), 1L) FROM range(1) LATERAL VIEW explode(array(times( ))) AS n")
    assert sorted(tuple(row) for row in rows.collect()) == [(3, 1), (3, 42)]


@pytest.mark.parametrize("statement", ["CREATE TEMPORARY VIEW", "CACHE TABLE"])
@pytest.mark.connect
def test_columns_of_a_view_and_of_a_cached_table_have_the_names_of_their_calls(remote, spark, statement):
    session, first, second = remote(answer, times), f"{statement[:5]}_1", f"{statement[:5]}_2"
    session.sql(f"{statement} {first} AS SELECT times(), 1 + times() FROM range(1)")
    session.sql(f"{statement} {second} AS SELECT `times@1`(2), answer() FROM range(1)")
    assert spark.table(first).columns == ["times()", "(1 + times())"]
    assert spark.table(second).columns == ["times@1(2)", "answer()"]


@pytest.mark.connect
def test_wrong_arguments_are_clear_errors(remote, spark):
    remote(plus_ten).register()
    with pytest.raises(Exception, match=r"plus_ten@1 takes 1 arguments, got 2: plus_ten\(x bigint\) -> bigint"):
        spark.sql("SELECT plus_ten(1, 2)").collect()
    with pytest.raises(Exception, match=r"plus_ten@1, parameter 'x': expected bigint, found double"):
        spark.sql("SELECT plus_ten(1.5D)").collect()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id,\n  plus_ten(id, 1) FROM range(3)",
        "SELECT id\n, PLUS_TEN(id, 1).x FROM range(3)",
        "SELECT id FROM range(3) WHERE\n  `plus_ten@1`(plus_ten(id), 1) > 0",
        "SELECT max(id) FROM range(3) GROUP BY\n  plus_ten(id, 1)",
        "CREATE TEMPORARY VIEW never AS SELECT\n  plus_ten(id, 1) AS a FROM range(3)",
        "SELECT id FROM range(3) ORDER BY (SELECT\n  plus_ten(:one, 1))",
    ],
)
@pytest.mark.connect
def test_a_wrong_number_of_arguments_is_refused_before_the_job_starts(remote, text):
    session = remote(plus_ten, times)
    with pytest.raises(
        PlanError, match=r"^line 2, column 3: function plus_ten@1 takes 1 arguments, got 2: plus_ten\(x"
    ):
        session.sql(text, args={"one": 1})


@pytest.mark.connect
def test_a_star_stands_for_any_number_of_arguments(remote, spark):
    session = remote(plus_ten, times)
    spark.sql("SELECT 2L AS a, 3L AS b").createOrReplaceTempView("pair")
    assert session.sql("SELECT times(*), times(pair.*) FROM pair").first() == (6, 6)


def test_a_dead_letter_is_refused_since_sql_functions_never_see_whole_rows(remote):
    session = remote(plus_ten)
    with pytest.raises(PlanError, match="a dead letter holds whole rows"):
        session.register(on_error="dead-letter", dead_letter="/nowhere")


@pytest.mark.connect
def test_one_call_in_where_and_select_is_made_once_per_row(remote, spark):
    seen = []

    @udf.scalar
    async def noted(x: int) -> int:
        seen.append(x)
        return x

    remote(noted).register()
    spark.sql("SELECT noted(id), noted(id) + 1 FROM range(10)").collect()
    assert len(seen) == 10
