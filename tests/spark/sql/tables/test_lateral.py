"""Functions that return rows in FROM, in SQL."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

import udf_server as udf
from spark_client import PlanError
from tests.spark.sales import Longest, countries, create_sales, found, words
from udf_server.aggregate.declaration import declare_aggregate

pytestmark = pytest.mark.connect
CALLED = []
"""The texts that `offers` was called with."""


@dataclass
class Offer:
    shop: str
    price: float


@udf.scalar(rows=True, nulls="skip")
async def offers(item: str) -> AsyncIterator[Offer]:
    CALLED.append(item)
    for place in range(len(item) - 3):
        yield Offer(f"{item}{place}", float(place))


@udf.scalar
async def doubled(x: int) -> int:
    return 2 * x


@pytest.fixture
def session(remote, spark):
    CALLED.clear()
    create_sales(spark)
    return remote(offers, words, countries, doubled, declare_aggregate(Longest))


INNER = [(1, "pears0", 0.0), (1, "pears1", 1.0), (4, "figs0", 0.0), (4, "figs0", 0.0)]
LEFT = sorted([*INNER, (2, None, None), (3, None, None)], key=repr)


@pytest.mark.parametrize("text", [
    "FROM sales AS t, LATERAL TABLE(offers(t.item)) AS r",
    "FROM sales, LATERAL TABLE(offers(item)) AS r(shop, price)",
    "FROM sales CROSS JOIN LATERAL TABLE(offers(item)) AS r",
    "FROM sales JOIN LATERAL TABLE(offers(item)) r ON TRUE",
    "FROM sales INNER JOIN LATERAL offers(item) ON true",
    "FROM sales, LATERAL offers(item)",
    "FROM sales, LATERAL `offers@1`(item)",
    "FROM sales LATERAL VIEW offers(item) r AS shop, price",
    "FROM sales, LATERAL (SELECT * FROM offers(sales.item))",
    "FROM (SELECT n, concat(item, '') AS item FROM sales), LATERAL OFFERS(item) AS r",
])  # fmt: skip
def test_rows_are_joined_with_the_row_of_their_call(session, text):
    assert found(session, f"SELECT n, shop, price {text}") == INNER


@pytest.mark.parametrize("text", [
    "FROM sales LEFT JOIN LATERAL TABLE(offers(item)) AS r ON TRUE",
    "FROM sales AS t LEFT OUTER JOIN LATERAL TABLE(offers(t.item)) r(shop, price) ON TRUE",
    "FROM sales LEFT JOIN LATERAL offers(item)",
    "FROM sales LATERAL VIEW OUTER offers(item) r AS shop, price",
])  # fmt: skip
def test_a_left_join_keeps_rows_without_rows(session, text):
    assert found(session, f"SELECT n, shop, price {text}") == LEFT


def test_all_columns_are_those_of_the_left_side_and_of_the_rows(session):
    renamed = session.sql("SELECT * FROM sales, LATERAL TABLE(offers(item)) AS r(a, b)")
    assert renamed.columns == ["n", "item", "customer", "a", "b"]
    two = session.sql("SELECT r.*, offers.shop FROM sales, LATERAL offers(item), LATERAL words(item) AS r")
    assert two.columns == ["word", "at", "shop"]


def test_conditions_of_a_left_join_choose_rows_and_keep_the_left_side(session):
    rows = found(session, """
        SELECT n, r.shop FROM sales LEFT JOIN LATERAL TABLE(offers(item)) AS r(shop, cost)
        ON r.cost > 0 AND r.shop LIKE concat(sales.item, '%') AND sales.customer < 3""")  # fmt: skip
    assert rows == [(1, "pears1"), (2, None), (3, None), (4, None), (4, None)]
    rows = found(session, "SELECT n, r.shop FROM sales JOIN LATERAL offers(item) AS r ON r.price + customer > 2")
    assert rows == [(4, "figs0"), (4, "figs0")]


def test_conditions_on_the_left_side_may_call_any_function(session, spark):
    spark.udf.register("more_than_one", lambda n: n > 1, "boolean")
    text = "SELECT n, r.shop FROM sales LEFT JOIN LATERAL offers(item) AS r ON {}"
    left = [(1, None), (2, None), (3, None), (4, "figs0"), (4, "figs0")]
    assert found(session, text.format("more_than_one(n)")) == left
    assert found(session, text.format("doubled(n) > 2")) == left
    with pytest.raises(PlanError, match="a call of more_than_one cannot be in a condition of ON on r"):
        session.sql(text.format("more_than_one(r.price)"))


def test_arguments_and_conditions_may_have_between_and_nullif(session, spark):
    """Spark itself refuses them in the generator of a lateral join."""
    fruit = [(1, "plum"), (2, "apple"), (3, "melon")]
    spark.createDataFrame(fruit, "n int, item string").createOrReplaceTempView("fruit")
    rows = session.sql("""
        SELECT t.n, r.shop FROM fruit AS t LEFT JOIN LATERAL TABLE(offers(nullif(lower(t.item), 'melon'))) AS r
        ON r.price + 1 BETWEEN 1 AND nullif(t.n, 1) AND NOT t.n - 1 BETWEEN 5 AND 6 ORDER BY ALL
    """).collect()
    assert rows == [(1, None), (2, "apple0"), (2, "apple1"), (3, None)]


def test_conditions_may_be_constant(session):
    text = "SELECT n, r.shop FROM sales {} JOIN LATERAL offers(item) AS r ON {}"
    assert found(session, text.format("", "1 = 2")) == []
    assert found(session, text.format("LEFT", "1 = 2 AND r.price < 1")) == [(n, None) for n in (1, 2, 3, 4, 4)]


def test_a_row_is_called_once_in_one_operator(session):
    text = "SELECT n, r.shop FROM sales LEFT JOIN LATERAL offers(item) AS r ON r.price > 0"
    plan = session.explain(text)
    assert "offers@1 in FROM: 1 call per row" in plan
    assert "Join" not in plan.split("\n\n", 1)[1]
    session.sql(text).collect()
    assert sorted(CALLED) == ["figs", "figs", "nut", "pears"]


def test_calls_in_from_may_be_constant_nested_and_anywhere(session):
    assert found(session, "SELECT * FROM offers('pears')") == [("pears0", 0.0), ("pears1", 1.0)]
    assert found(session, "SELECT * FROM TABLE(offers('pears')) AS r(a, b)") == [("pears0", 0.0), ("pears1", 1.0)]
    assert found(session, "SELECT code FROM countries()") == [("fr",), ("no",)]
    assert found(session, "SELECT code FROM TABLE(countries('no'))") == [("no",)]
    assert found(session, "SELECT n, r.code FROM sales LEFT JOIN countries() r ON r.code = 'fr' WHERE n = 1") == [
        (1, "fr")
    ]
    assert found(session, """
        WITH few AS (SELECT n, r.shop FROM sales, LATERAL offers(item) AS r WHERE r.price < 1)
        SELECT n, longest(w.word) FROM few, LATERAL TABLE(words(concat(shop, ' x'), CAST(2 AS INT))) AS w
        GROUP BY n""") == [(1, "pears0"), (4, "figs0")]  # fmt: skip
    assert found(session, "SELECT n FROM sales WHERE EXISTS (SELECT 1 FROM offers(item) AS r WHERE r.price > 0)") == [
        (1,)
    ]
    assert found(session, """
        SELECT a.n, r.shop, b.n FROM sales a, LATERAL offers(a.item) r
        JOIN sales b ON b.n = a.n + 1 WHERE r.price = 0""") == [(1, "pears0", 2)]  # fmt: skip


def test_functions_that_are_not_deterministic_return_rows(session):
    rows = [("figs", 0), ("figs", 0), ("none", 0), ("nut", 0), ("pears", 0)]
    assert found(session, "SELECT r.* FROM sales, LATERAL words(item) AS r") == rows
    assert found(session, "SELECT r.* FROM sales LEFT JOIN LATERAL words(item) AS r ON TRUE") == rows


def test_statements_and_views_take_rows(session, spark, tmp_path):
    spark.sql(f"CREATE TABLE kept (n INT, shop STRING) USING parquet LOCATION '{tmp_path}/kept'")
    try:
        session.sql("INSERT INTO kept SELECT n, shop FROM sales, LATERAL offers(item)")
        assert found(session, "SELECT n, shop FROM kept") == [row[:2] for row in INNER]
    finally:
        spark.sql("DROP TABLE kept")
    session.sql(
        "CREATE OR REPLACE TEMPORARY VIEW best AS SELECT n, shop FROM sales, LATERAL offers(item) WHERE price > 0"
    )
    assert found(session, "SELECT * FROM best") == [(1, "pears1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM sales, LATERAL doubled(n)", "line 1, column 30: doubled(x bigint) -> bigint returns a value"),
        (
            "SELECT *\nFROM sales, LATERAL offers(item) AS r(a)",
            "line 2, column 21: r(a) names 1 columns, but there are 2",
        ),
        ("SELECT * FROM doubled(3)", "line 1, column 15: doubled(x bigint) -> bigint returns a value, not rows"),
        ("SELECT * FROM sales, LATERAL offers(item => 'a')", "arguments of offers@1 in FROM are passed by position"),
        ("SELECT * FROM sales, LATERAL offers(item) WITH ORDINALITY", "nothing but AS can follow the call of offers@1"),
        ("SELECT * FROM sales LEFT JOIN LATERAL offers(item) AS r ON price > 1", "column 'price' in ON needs the name"),
        (
            "SELECT * FROM sales LEFT JOIN LATERAL offers(item) AS r ON r.cost > 1",
            "r has no column 'cost'; it has shop",
        ),
        (
            "SELECT * FROM sales LEFT JOIN LATERAL offers(item) AS r ON doubled(r.price) > 1",
            "a call of doubled cannot be in a condition of ON on r: write it in WHERE",
        ),
        (
            "SELECT * FROM sales LEFT JOIN LATERAL offers(item) AS r ON r.shop IN (SELECT 'x')",
            "a subquery or a window cannot be in a condition of ON on r",
        ),
    ],
)
def test_what_cannot_be_joined_is_an_error(session, text, message):
    with pytest.raises(PlanError) as caught:
        session.sql(text)
    assert message in str(caught.value)


@udf.scalar(rows=True, returns="part string")
def split(text: str) -> list[dict]:
    return [{"part": part} for part in text]


@pytest.mark.parametrize(("text", "column"), [
    ("SELECT * FROM sales, LATERAL TABLE(split(item))", 36),
    ("SELECT * FROM sales LEFT JOIN LATERAL TABLE(split(item, ',')) AS r ON TRUE", 45),
    ("SELECT * FROM split('ab')", 15),
    ("SELECT Split(item) FROM sales", 8),
])  # fmt: skip
def test_a_name_that_spark_has_too_is_told_where_the_call_fails(remote, session, text, column):
    hiding = remote(split)
    with pytest.raises(PlanError, match=rf"(?i)^line 1, column {column}: split is Spark's own.*write `split@1`: "):
        hiding.sql(text)
    assert hiding.sql(text.replace("split", "`split@1`").replace("Split", "`split@1`").replace(", ','", "")).columns


def test_a_call_of_a_function_that_needs_arguments_names_it_and_its_place(session):
    with pytest.raises(PlanError, match=r"^line 2, column 2: function doubled@1 takes 1 arguments, got 0: doubled\(x "):
        session.sql("SELECT n,\n doubled() FROM sales")
    with pytest.raises(PlanError, match="column 15: function offers@1 takes 1 arguments, got 0"):
        session.sql("SELECT * FROM offers()")


def test_words_of_sql_before_brackets_are_no_calls(remote, session):
    @udf.scalar(name="over")
    async def over(x: int) -> int:
        return x

    assert found(remote(over), "SELECT n, count(*) OVER () FROM sales WHERE n < 3") == [(1, 2), (2, 2)]


def test_errors_as_columns_are_not_joined(session):
    session.register("offers", on_error="column")
    with pytest.raises(PlanError, match="offers@1 has on-error column, but only its values are joined in SQL"):
        session.sql("SELECT * FROM sales, LATERAL offers(item)")


def test_a_stream_is_joined(session, spark, tmp_path):
    spark.sql("SELECT n, item FROM sales").write.parquet(f"{tmp_path}/in")
    spark.readStream.schema("n int, item string").parquet(f"{tmp_path}/in").createOrReplaceTempView("live")
    frame = session.sql("SELECT n, r.shop FROM live LEFT JOIN LATERAL TABLE(offers(item)) AS r ON r.price < 1")
    query = frame.writeStream.format("memory").queryName("lateral_out").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(map(tuple, spark.table("lateral_out").collect()), key=repr) == [
        (1, "pears0"), (2, None), (3, None), (4, "figs0"), (4, "figs0"),
    ]  # fmt: skip


def test_describe_function_shows_parameters_and_whether_rows_are_returned(session):
    lines = [row.function_desc for row in session.sql("DESCRIBE FUNCTION offers").collect()]
    assert lines == [
        "Function: offers@1", "Kind: scalar, returns rows: call it in FROM",
        "Usage: offers(item string) -> rows<shop:string,price:double>",
    ]  # fmt: skip
    more = [row.function_desc for row in session.sql("desc function extended `longest@1`").collect()]
    assert more[1:4] == ["Kind: aggregate", "Usage: longest(text string) -> string", "Description: The longest text."]
    assert "Deterministic: true" in more
    assert "upper" in session.sql("DESCRIBE FUNCTION upper").collect()[0].function_desc


@pytest.mark.parametrize("fields", ["l.s.item, l.s.least", "s.item, S.`least`", "l.s.item, s.least"])
def test_arguments_may_be_several_fields_of_one_struct_beside_other_columns(session, spark, fields):
    rows = [(("a bb", 2), 1, True), (("ccc", 1), 2, False), (("d", 3), 3, True)]
    spark.createDataFrame(rows, "s struct<item:string,least:int>, n int, b boolean").createOrReplaceTempView("nested")
    try:
        query = f"SELECT l.n FROM nested AS l LEFT JOIN LATERAL words({fields}) AS r ON l.b WHERE doubled(l.n) > 0"
        assert sorted(session.sql(query).collect()) == [(1,), (2,), (3,)]
        inner = "FROM (nested AS l JOIN sales ON item = 'nut'), LATERAL (SELECT * FROM words(l.s.item, l.s.least))"
        assert sorted(session.sql(f"SELECT l.n {inner}").collect()) == [(1,), (2,)]
    finally:
        spark.catalog.dropTempView("nested")
