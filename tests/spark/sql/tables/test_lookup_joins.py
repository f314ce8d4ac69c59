"""Lookup joins: functions as the right side of a join FOR SYSTEM_TIME AS OF."""

from dataclasses import dataclass

import pytest

import udf_server as udf
from spark_client import PlanError
from tests.spark.sales import Longest, countries, create_sales, found, words
from udf_server.aggregate.declaration import declare_aggregate

pytestmark = pytest.mark.connect


@dataclass
class Customer:
    name: str
    country: str


@udf.scalar(nulls="skip")
async def customers(id: int, region: str = "eu") -> Customer | None:
    return Customer(f"{region}{id}", "no" if id % 2 else "fr") if id < 4 else None


@dataclass
class Visit:
    id: int
    day: int


@udf.scalar(nulls="skip")
async def visits(id: int) -> list[Visit]:
    return [Visit(id, day) if day else None for day in range(id)] + [Visit(id + 1, 99)]


@udf.scalar(nulls="skip")
async def doubled(x: int) -> int:
    return 2 * x


@pytest.fixture
def session(remote, spark):
    create_sales(spark)
    return remote(words, countries, customers, visits, doubled, declare_aggregate(Longest))


LOOKED_UP = [
    (1, 1, "eu1", "no"), (2, 2, "eu2", "fr"), (4, 3, "eu3", "no"),
]  # fmt: skip


@pytest.mark.parametrize(
    "time", ["PROCTIME()", "s.at", "current_timestamp()", "s.at + INTERVAL '1' DAY", "CAST(s.at AS DATE)"]
)
def test_a_lookup_join_calls_with_the_other_sides_of_its_equalities(session, time):
    text = f"""
        SELECT s.n, c.* FROM sales AS s JOIN customers FOR SYSTEM_TIME AS OF {time} AS c ON s.customer = c.id"""
    assert session.sql(text).columns == ["n", "id", "name", "country"]
    assert found(session, text) == LOOKED_UP


def test_a_left_lookup_join_extends_with_nulls(session):
    missing = [(3, None, None, None), (4, None, None, None)]
    text = "SELECT s.n, c.* FROM sales s LEFT JOIN `customers@1` FOR SYSTEM_TIME AS OF s.at AS c ON c.id = s.customer"
    assert found(session, text) == sorted([*LOOKED_UP, *missing], key=repr)
    chosen = found(session, f"{text} AND c.country = 'no' AND s.n < 4 AND c.id + 1 = s.n + 1")
    assert chosen == sorted(
        [LOOKED_UP[0], (2, None, None, None), (3, None, None, None), *missing[1:], *missing[1:]], key=repr
    )


def test_every_parameter_may_have_an_equality(session):
    assert found(session, """
        SELECT s.n, c.region, c.name FROM sales s JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c
        ON c.region = upper(s.item) AND s.customer = c.id AND s.customer < 3""") == [
        (1, "PEARS", "PEARS1"), (2, "NUT", "NUT2"),
    ]  # fmt: skip
    assert found(session, """
        SELECT c.name FROM sales s JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c
        ON c.id = 3 AND c.id = s.n""") == [("eu3",)]  # fmt: skip


def test_an_array_gives_all_its_elements_and_a_field_hides_the_parameter(session):
    text = "SELECT s.n, v.* FROM sales s LEFT JOIN visits FOR SYSTEM_TIME AS OF PROCTIME() v ON s.customer = v.id"
    assert session.sql(text).columns == ["n", "id", "day"]
    assert found(session, text) == sorted([
        (1, None, None), (2, 2, 1), (3, None, None), (4, 3, 1), (4, 3, 2), *((4, 7, day) for day in range(1, 7)),
    ], key=repr)  # fmt: skip


def test_lookup_joins_follow_each_other_and_other_joins(session):
    assert found(session, """
        SELECT s.n, c.country, w.at, k.code FROM sales s
        JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON c.id = s.customer
        JOIN words FOR SYSTEM_TIME AS OF PROCTIME() AS w ON w.text = concat(c.name, ' ', c.country) AND w.at > 0
        JOIN countries() k ON k.code = w.word WHERE s.n < 3""") == [
        (1, "no", 1, "no"), (2, "fr", 1, "fr"),
    ]  # fmt: skip


def test_tables_of_the_name_come_first_and_the_message_tells_how_to_call_the_function(session, spark):
    text = "SELECT c.id FROM sales s JOIN {} FOR SYSTEM_TIME AS OF {} AS c ON s.customer = c.id"
    spark.sql("SELECT 7 AS id").createOrReplaceTempView("customers")
    try:
        for time in ("s.at", "PROCTIME()"):
            with pytest.raises(PlanError, match=r"column 31: lookup join with customers: Spark has .*`customers@1`"):
                session.sql(text.format("customers", time))
        # Spark reads it as time travel, which a view does not have.
        with pytest.raises(Exception, match=r"(?i)time.travel"):
            session.sql(text.format("customers", "TIMESTAMP '2020-01-01 00:00:00'")).collect()
        assert len(found(session, text.format("`customers@1`", "PROCTIME()"))) == 3
    finally:
        spark.catalog.dropTempView("customers")
    with pytest.raises(PlanError, match=r"lookup join with customers: WITH defines a table or view of this name"):
        session.sql(f"WITH customers AS (SELECT 7 AS id) {text.format('customers', 'PROCTIME()')}")


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (
            "JOIN customers FOR SYSTEM_TIME AS OF s.at AS c ON c.region = s.item",
            "line 1, column 31: lookup join with customers: ON has no equality for parameter 'id' of customers(id "
            "bigint, region string = ...)",
        ),
        (
            "JOIN customers FOR SYSTEM_TIME AS OF s.at AS c ON s.customer < c.id",
            "ON has no equality for parameter 'id'",
        ),
        ("JOIN customers FOR SYSTEM_TIME AS OF s.at AS c", "only JOIN and LEFT JOIN with ON are supported, not a join"),
        ("RIGHT JOIN customers FOR SYSTEM_TIME AS OF s.at AS c ON s.n = c.id", "not RIGHT with ON"),
        (", customers FOR SYSTEM_TIME AS OF s.at AS c", "only JOIN and LEFT JOIN with ON"),
        ("JOIN customers FOR SYSTEM_TIME AS OF s.at AS c USING (id)", "only JOIN and LEFT JOIN with ON"),
        (
            "JOIN customers FOR SYSTEM_TIME AS OF TIMESTAMP '2020-01-01 00:00:00' AS c ON s.n = c.id",
            "a function has no past versions, so it cannot answer as of TIMESTAMP '2020-01-01 00:00:00'",
        ),
        (
            "JOIN doubled FOR SYSTEM_TIME AS OF s.at AS c ON s.n = c.x",
            "returns a struct, or rows, is expected, not doubled",
        ),
        ("JOIN longest FOR SYSTEM_TIME AS OF s.at AS c ON s.n = c.text", "a scalar function that returns a struct"),
        ("JOIN customers FOR SYSTEM_TIME AS OF s.at AS c(a) ON s.n = c.a", "cannot have other names for its columns"),
        ("JOIN customers FOR SYSTEM_TIME AS OF s.at AS c ON s.n = id", "column 'id' in ON needs the name of its table"),
        (
            "JOIN customers FOR SYSTEM_TIME AS OF s.at AS c ON s.n = c.id AND c.region IS NULL",
            "c has no column 'region'; it has id, name, country",
        ),
    ],
)
def test_an_impossible_lookup_join_is_an_error(session, join, message):
    with pytest.raises(PlanError) as caught:
        session.sql(f"SELECT * FROM sales AS s {join}")
    assert message in str(caught.value)
    assert "lookup join with " in str(caught.value)


def test_a_function_cannot_be_the_left_side(session):
    with pytest.raises(PlanError, match="there is no table on its left"):
        session.sql("SELECT * FROM customers FOR SYSTEM_TIME AS OF PROCTIME() AS c")


def test_a_stream_is_joined(session, spark, tmp_path):
    spark.sql("SELECT n, customer FROM sales").write.parquet(f"{tmp_path}/in")
    spark.readStream.schema("n int, customer int").parquet(f"{tmp_path}/in").createOrReplaceTempView("live")
    frame = session.sql(
        "SELECT n, c.id, c.name FROM live LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c"
        " ON c.id = live.customer AND c.country = 'no'"
    )
    query = frame.writeStream.format("memory").queryName("lookup_out").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(map(tuple, spark.table("lookup_out").collect()), key=repr) == [
        (1, 1, "eu1"), (2, None, None), (3, None, None), (4, 3, "eu3"), (4, None, None),
    ]  # fmt: skip


def test_the_value_of_an_argument_may_be_a_call_in_a_subquery(session):
    text = "SELECT s.n, c.id FROM {} AS s JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON c.id = {}"
    with pytest.raises(PlanError, match="the value of 'id' has a remote call; make it in a subquery"):
        session.sql(text.format("sales", "doubled(s.customer)"))
    assert found(session, text.format("(SELECT *, doubled(customer) AS k FROM sales)", "s.k")) == [(1, 2)]


@udf.scalar(nulls="skip")
async def flaky(id: int) -> Customer:
    FLAKY.append(id)
    if FLAKY.count(id) < 3:
        raise udf.RetryableError("not yet")
    return Customer(f"c{id}", "no")


FLAKY: list[int] = []


def test_a_hint_sets_the_options_of_the_calls_of_a_join(remote, spark):
    FLAKY.clear()
    create_sales(spark)
    session = remote(flaky)
    options = "'async'='true', 'output-mode'='allow_unordered', 'capacity'='20', 'timeout'='180s', "
    retries = "'retry-strategy'='fixed_delay', 'fixed-delay'='1 ms', 'max-attempts'="
    text = """
        SELECT /*+ LOOKUP('table'='{}', {}) */ s.n, c.name
        FROM sales AS s JOIN flaky FOR SYSTEM_TIME AS OF PROCTIME() AS c ON s.customer = c.id WHERE s.n = 2"""
    # As in Flink, 2 attempts follow the first call.
    for table, config in (("C", f"{options} {retries}'2'"), ("flaky", f"{retries}'9'")):
        FLAKY.clear()
        assert found(session, text.format(table, config)) == [(2, "c2")]
        assert FLAKY == [2, 2, 2]
    FLAKY.clear()
    with pytest.raises(Exception, match="not yet"):
        found(session, text.format("c", f"{retries}'1'"))
    assert FLAKY == [2, 2]


@udf.scalar(nulls="skip")
async def replicated(id: int) -> Customer | None:
    FLAKY.append(id)
    return Customer(f"c{id}", "no") if id == 2 and FLAKY.count(id) == 3 else None


def test_a_hint_looks_a_missing_row_up_again(remote, spark):
    create_sales(spark)
    text = """
        SELECT /*+ LOOKUP('table'='c', 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay',
                          'fixed-delay'='1 ms', 'max-attempts'='{}') */ s.n, c.name
        FROM sales AS s LEFT JOIN replicated FOR SYSTEM_TIME AS OF PROCTIME() AS c ON s.customer = c.id
        WHERE s.customer IS NOT NULL"""
    for more, name in ((2, "c2"), (1, None)):
        FLAKY.clear()
        rows = found(remote(replicated), text.format(more))
        assert [row for row in rows if row[0] == 2] == [(2, name)]
        assert {FLAKY.count(each) for each in FLAKY} == {more + 1}
        assert [row[1] for row in rows if row[0] != 2] == [None] * (len(rows) - 1)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("'table'='x', 'async'='true'", "no lookup join of this SELECT is with a table 'x'"),
        ("'async'='true'", "hint LOOKUP: there is no 'table'"),
        ("'table'='c', 'asynk'='true'", "LOOKUP has no option 'asynk'; there are async, capacity, fixed-delay, "),
        ("'table'='c', 'capacity'='many'", "LOOKUP: option 'buffer-capacity': 'many'"),
        (
            "'table'='c', 'retry-predicate'='always'",
            "'retry-predicate' is 'always', .* the only predicate is 'lookup_miss'",
        ),
        ("'table'='c', async", "async is not 'option'='value'"),
    ],
)
def test_a_hint_that_cannot_be_obeyed_is_refused(session, hint, message):
    with pytest.raises(PlanError, match=message):
        session.sql(f"""
            SELECT /*+ LOOKUP({hint}) */ c.name
            FROM sales AS s JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON s.customer = c.id""")
