"""Remote aggregates in SQL, compared with Spark's own aggregates in the same query."""

import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import udf_server as udf
from spark_client import PlanError, UnknownFunction, connect
from tests.conftest import serving
from tests.udf_server.aggregate_functions import RetractsAndMerges


class MySum(RetractsAndMerges, udf.BundledAggregateFunction):
    """Equals Spark's sum of bigints; nulls are skipped."""

    parameters = "v bigint"
    returns = "bigint"
    accumulator = "struct<sum:bigint,count:bigint>"
    nulls = "skip"

    def bundled_accumulate_retract(self, bundle):
        return [self._applied(segment) for segment in bundle]

    def _applied(self, segment):
        total = sum(each["sum"] for each in segment.accumulators)
        count = sum(each["count"] for each in segment.accumulators)
        values = [total if count else None]
        for adds, (v,) in segment.changes():
            total, count = (total + v, count + 1) if adds else (total - v, count - 1)
            values.append(total if count else None)
        return udf.BundledKeySegmentApplied({"sum": total, "count": count}, values[0], values[-1], values[1:])


class Trail(udf.AggregateFunction):
    """Concatenates texts: neither merges nor retracts."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator, text: str):
        return accumulator + text

    def get_value(self, accumulator) -> str:
        return accumulator


class Median(udf.AggregateFunction):
    """Not Spark's."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, v: int):
        return accumulator

    def get_value(self, accumulator) -> int:
        return -1


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


def declared(*functions):
    from udf_server.aggregate.declaration import declare_aggregate

    return [f if isinstance(f, udf.Function) else declare_aggregate(f) for f in functions]


@pytest.fixture(scope="module")
def session(spark):
    """A session with a server, and two tables."""
    with serving(*declared(MySum, Trail, Median, plus_ten)) as server:
        rows = [
            (i % 3 or None, i % 2, i if i % 5 else None, datetime.datetime(2024, 1, 1, 0, i * 10)) for i in range(6)
        ]
        spark.createDataFrame(rows, "k int, j int, v bigint, at timestamp_ntz").createOrReplaceTempView("numbers")
        spark.createDataFrame([(1, "one"), (2, "two")], "k int, name string").createOrReplaceTempView("names")
        yield connect(spark, server.target)
        spark.catalog.dropTempView("numbers")
        spark.catalog.dropTempView("names")


def as_sorted(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def same_as_spark(session, query):
    """Runs the query with SUM as the remote sum and as Spark's own."""
    mine, sparks = session.sql(query.replace("SUM(", "my_sum(")), session.spark.sql(query)
    assert [name.replace("my_sum", "sum").lower() for name in mine.columns] == [n.lower() for n in sparks.columns]
    assert as_sorted(mine) == as_sorted(sparks)


GROUPED = [
    "SELECT k, SUM(v) FROM numbers GROUP BY k",
    "SELECT SUM(v) AS s, count(*) AS n, max(v) FILTER (WHERE j = 1) AS m FROM numbers WHERE v > 1",
    "SELECT SUM(v) AS s FROM numbers WHERE false",
    "SELECT k % 2 AS p, SUM(v) + sum(j) * 2 AS z FROM numbers GROUP BY p HAVING z > 3 ORDER BY 2 DESC LIMIT 1",
    "SELECT t.k, name, SUM(t.v + 1) FILTER (WHERE t.j = 0) AS a, SUM(DISTINCT j) AS b FROM numbers t JOIN names u "
    "ON t.k = u.k GROUP BY t.k, u.name",
    "SELECT k, j, SUM(v) AS s, grouping(k) AS g, grouping_id() AS i FROM numbers GROUP BY ROLLUP (k, j)",
    "SELECT k, j, SUM(v) AS s, avg(v) AS a FROM numbers GROUP BY k, j GROUPING SETS ((k), (j), ())",
    "SELECT grouping_id() AS i, SUM(v) AS s FROM numbers GROUP BY GROUPING SETS (())",
    "SELECT struct(k) AS s, SUM(v) AS n FROM numbers GROUP BY struct(k) ORDER BY s.k",
    "SELECT CASE WHEN SUM(v) > 3 THEN 'big' ELSE 'small' END AS c, percentile(v, 0.5) AS p FROM numbers GROUP BY k",
    "SELECT window.start AS at, SUM(v) AS s FROM numbers GROUP BY window(at, '20 minutes') "
    "HAVING window.end IS NOT NULL",
    "SELECT DISTINCT SUM(j) AS s FROM numbers GROUP BY k ORDER BY s",
    "SELECT k, SUM(v) AS s, s + 1 AS t, rank() OVER (ORDER BY SUM(v)) AS r FROM numbers GROUP BY k",
    "SELECT k, SUM(v) AS k FROM numbers GROUP BY k ORDER BY k DESC LIMIT 1",
]
NESTED = [
    "WITH a AS (SELECT k, SUM(v) AS m FROM numbers GROUP BY k), b AS (SELECT SUM(m) AS mm FROM a) SELECT * FROM a, b",
    "WITH a AS (SELECT 1 AS k), b AS (WITH a AS (SELECT 2L AS k) SELECT SUM(k) AS s FROM a) SELECT * FROM a, b",
    "SELECT name, m FROM (SELECT k, SUM(v) AS m FROM numbers GROUP BY k) x JOIN names USING (k)",
    "SELECT k FROM numbers GROUP BY k HAVING SUM(v) > 4 UNION ALL SELECT SUM(k) FROM names ORDER BY 1",
    "SELECT (SELECT SUM(v) FROM numbers) AS total, k FROM names WHERE k IN (SELECT SUM(j) - 1 FROM numbers)",
    "WITH a AS (TABLE numbers), b AS (SELECT k, SUM(v) AS m FROM a GROUP BY k) TABLE b ORDER BY m LIMIT 2",
    "TABLE names UNION ALL SELECT SUM(x.k), 'all' FROM (TABLE names) TABLESAMPLE (100 PERCENT) AS x",
    "SELECT k, SUM(v) AS s FROM numbers n GROUP BY k HAVING EXISTS (SELECT 1 FROM names WHERE names.k = n.k)",
    "SELECT j, SUM(v) AS s FROM numbers GROUP BY j HAVING SUM(v) > (SELECT max(k) FROM names WHERE k <> j)",
    "SELECT n.k, name, SUM(v) AS s FROM numbers n JOIN names m ON n.k = m.k GROUP BY n.k, name "
    "HAVING EXISTS (SELECT 1 FROM names o WHERE o.k <> n.k AND o.name <> m.name AND n.k = 1)",
    "SELECT (SELECT m.name FROM names m WHERE m.k = n.k) AS name, SUM(v) AS s FROM numbers n GROUP BY 1",
    "SELECT (SELECT max(name) FROM names) AS name, k, SUM(v) AS s FROM numbers n GROUP BY ALL",
    "SELECT k, SUM(v) AS s, max((SELECT name FROM names m WHERE m.k = n.k)) AS m FROM numbers n GROUP BY k",
]
OVER = [
    "SELECT k, v, SUM(v) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS r, "
    "sum(v) OVER (PARTITION BY k) AS w FROM numbers",
    "SELECT *, SUM(v) OVER w + 1 AS z FROM numbers WINDOW w AS (PARTITION BY j ORDER BY v DESC)",
    "SELECT j, SUM(v) OVER (PARTITION BY j ORDER BY at RANGE BETWEEN INTERVAL '20' MINUTE PRECEDING AND CURRENT ROW) "
    "AS z FROM numbers",
    "SELECT j, SUM(v) OVER (PARTITION BY j ORDER BY at RANGE BETWEEN INTERVAL '1-2' YEAR TO MONTH PRECEDING AND "
    "INTERVAL '0-1' YEAR TO MONTH PRECEDING) AS a, "
    "SUM(v) OVER (ORDER BY at DESC RANGE INTERVAL 36 HOURS PRECEDING) AS b FROM numbers",
    "SELECT j, SUM(v) OVER (ORDER BY v NULLS LAST) AS z FROM numbers",
    "SELECT k, SUM(v) AS s, SUM(SUM(v)) OVER (ORDER BY k) AS z FROM numbers GROUP BY k",
    "SELECT k, sum(v) AS s, SUM(sum(v)) OVER (ORDER BY k DESC) AS z FROM numbers GROUP BY k",
    "SELECT k, v FROM numbers QUALIFY SUM(v) OVER (PARTITION BY j ORDER BY at) > 2",
    "SELECT k, SUM(v) OVER (PARTITION BY k) AS k FROM numbers ORDER BY k DESC LIMIT 1",
    "SELECT v AS t, SUM(v) OVER (PARTITION BY t.s.j) AS z FROM (SELECT v, struct(j) AS s FROM numbers) AS t",
]


@pytest.mark.parametrize("query", GROUPED)
def test_a_remote_aggregate_is_grouped_as_sparks_own(session, query):
    same_as_spark(session, query)


@pytest.mark.connect
@pytest.mark.parametrize("query", NESTED)
def test_a_query_inside_a_query_may_have_remote_aggregates(session, query):
    same_as_spark(session, query)


@pytest.mark.connect
@pytest.mark.parametrize("query", OVER)
def test_a_remote_aggregate_over_a_window_is_as_sparks_own(session, query):
    same_as_spark(session, query)


def test_times_are_distinguished_from_timestamps_and_by_their_digits(session):
    conf = session.spark.conf
    conf.set("spark.sql.timeType.enabled", "true")
    try:
        times = "CAST(at AS TIME) AS a, CAST(at + INTERVAL '0.25' SECOND AS TIME(0)) AS b, CAST(at AS TIMESTAMP) AS c"
        same_as_spark(session, f"SELECT {times}, SUM(v) OVER () AS s FROM numbers")
        same_as_spark(
            session, "SELECT CAST(at AS TIME) AS a, CAST(at AS TIMESTAMP) AS b, SUM(v) AS s FROM numbers GROUP BY 1, 2"
        )
    finally:
        conf.unset("spark.sql.timeType.enabled")


def test_scalar_functions_are_known_without_registration(session):
    query = "SELECT plus_ten(my_sum(plus_ten(v))) AS s FROM numbers WHERE plus_ten(v) > 11 AND v IS NOT NULL"
    assert session.sql(query).first() == Row(s=12 + 13 + 14 + 10)
    assert session.sql("SELECT plus_ten(1) AS x").first() == Row(x=11)


def test_options_of_a_registration_are_kept(session):
    @udf.scalar
    def fails(x: int) -> int:
        raise ValueError("no")

    with serving(fails) as server:
        other = connect(session.spark, server.target)
        other.register("fails", on_error="null")
        assert other.sql("SELECT fails(1) AS x").first() == Row(x=None)


def test_aggregates_without_keys_have_the_names_of_the_items(session):
    rows = "FROM VALUES (3L), (4L) AS t(v)"
    names = session.sql(f"SELECT my_sum(v) AS v, my_sum(v + 1) AS `a.b`, max(v) AS c {rows}")
    assert names.columns == ["v", "a.b", "c"]
    assert names.collect() == [(7, 9, 4)]
    assert session.sql(f"SELECT my_sum(v), my_sum(v) AS again {rows}").collect() == [(7, 7)]
    assert session.sql(f"SELECT my_sum(v) AS a, my_sum(v + 1) AS a {rows}").collect() == [(7, 9)]
    assert session.sql(f"SELECT max(v) AS b, my_sum(v) AS a {rows} HAVING a > 6 ORDER BY a").collect() == [(4, 7)]
    inside = f"(SELECT my_sum(v) AS one, my_sum(v + 1) AS One_error {rows}) AS t"
    assert session.sql(f"SELECT One_error, one FROM {inside}").collect() == [(9, 7)]


def test_a_column_of_errors_takes_no_name_of_another_item(session):
    key = "spark.remoteudf.bundled-agg.my_sum.on-error"
    session.spark.conf.set(key, "column")
    try:
        query = "SELECT my_sum(v) AS s, my_sum(v + 1) AS s_error, max(v) AS m FROM VALUES (3L) AS t(v)"
        found = session.sql(query)
        assert (found.columns, found.collect()) == (["s", "s_error", "m"], [(3, 4, 3)])
        found = session.sql("SELECT my_sum(v) AS s, max(v) AS m FROM VALUES (3L) AS t(v)")
        assert (found.columns, found.collect()) == (["s", "m"], [(3, 3)])
    finally:
        session.spark.conf.unset(key)


def test_rows_in_an_order_within_the_group(session):
    query = (
        "SELECT j, trail(CAST(v AS STRING)) WITHIN GROUP (ORDER BY at DESC) AS t FROM numbers WHERE v > 0 GROUP BY j"
    )
    assert as_sorted(session.sql(query)) == [(0, "42"), (1, "31")]


def test_a_built_in_function_keeps_its_name(session):
    row = session.sql("SELECT median(v) AS spark, `median@1`(v) AS remote FROM VALUES (3L) AS t(v)").first()
    assert row == Row(spark=3.0, remote=-1)
    with pytest.raises(UnknownFunction, match="'7'"):
        session.sql("SELECT `median@7`(v) FROM numbers")


@pytest.mark.connect
def test_a_changelog_is_aggregated_as_the_table_it_leaves(session):
    rows = [("+I", 1, 5), ("+I", 2, 7), ("-D", 2, 7), ("-U", 1, 5), ("+U", 1, 8)]
    changes = session.spark.createDataFrame(rows, "row_kind string, k int, v bigint")
    query = "SELECT k, my_sum(v) AS s FROM {changes} WHERE v > 0 GROUP BY k"
    assert as_sorted(session.sql(query, changes=changes)) == [(1, 8)]
    named = "SELECT row_kind, my_sum(v) AS s FROM {changes} GROUP BY row_kind"
    assert as_sorted(session.sql(named, changes=changes)) == [("+I", 12), ("+U", 8), ("-D", 7), ("-U", 5)]
    with pytest.raises(PlanError, match="Retract functionality is not implemented for the aggregate function: trail@1"):
        session.sql("SELECT trail(CAST(v AS STRING)) FROM {changes}", changes=changes)


@pytest.mark.connect
def test_parameters_and_fields_are_sparks(session):
    frame = session.spark.table("numbers")
    query = "SELECT {name} AS n, '{{x}}' AS b, my_sum(v) AS s FROM {frame} WHERE v > :least GROUP BY j HAVING s > {n}"
    rows = session.sql(query, {"least": 1}, frame=frame, name="o'neill", n=3).collect()
    assert sorted(rows) == [Row(n="o'neill", b="{x}", s=6)]
    with pytest.raises(PlanError, match="names, as in :limit"):
        session.sql("SELECT my_sum(v) FROM numbers WHERE v > ?", [1])


@pytest.mark.connect
def test_a_temporary_view_holds_the_aggregate_and_nothing_else_is_left(session, compiled):
    spark = session.spark
    before = {table.name for table in spark.catalog.listTables()}
    session.sql("CREATE OR REPLACE TEMP VIEW totals(key, total) AS SELECT j, my_sum(v) FROM numbers GROUP BY j")
    assert as_sorted(spark.sql("SELECT * FROM totals WHERE total > 4")) == [(0, 6)]
    assert {table.name for table in spark.catalog.listTables()} - before == {"totals"}
    with pytest.raises(Exception, match="TEMP_TABLE_OR_VIEW_ALREADY_EXISTS"):
        session.sql("CREATE TEMPORARY VIEW totals AS SELECT my_sum(v) FROM numbers")
    spark.catalog.dropTempView("totals")
    with pytest.raises(PlanError, match="must be temporary"):
        session.sql("CREATE VIEW totals AS SELECT my_sum(v) FROM numbers")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT k,\n  my_sum(v) FROM numbers WHERE my_sum(v) > 1", "line 2, column 32: .* cannot be used in WHERE"),
        ("SELECT k, v, my_sum(v) FROM numbers GROUP BY k", "line 1, column 11: v is neither in GROUP BY"),
        (
            "SELECT my_sum(v), my_sun(v) FROM numbers",
            r"column 26: v is neither.*; my_sun is not.*did you mean my_sum\b",
        ),
        ("SELECT my_sum(max(v)) FROM numbers", "line 1, column 8: .* needs a subquery"),
        ("SELECT my_sum(v, k) FROM numbers", "line 1, column 8: .* takes 1 arguments, got 2"),
        ("SELECT my_sum(*) FROM numbers", r"line 1, column 8: .*\* is not an argument"),
        ("SELECT grouping(k), my_sum(v) FROM numbers GROUP BY k", "line 1, column 8: grouping needs"),
        ("SELECT my_sum(v) FROM numbers GROUP BY GROUPING SETS ((), ())", "several empty sets repeat one row"),
        ("SELECT *, my_sum(v) FROM numbers GROUP BY k", r"\* beside an aggregate: name"),
        ("SELECT k FROM names n WHERE (SELECT my_sum(v) FROM numbers t WHERE t.k = n.k) > 1", "column 37: a subquery"),
        ("SELECT * FROM numbers PIVOT (my_sum(v) FOR j IN (0, 1))", "column 30: .* cannot be used in FROM"),
        ("SELECT my_sum(DISTINCT v) OVER (ORDER BY k) FROM numbers", "line 1, column 8: .*DISTINCT over a window"),
        ("SELECT my_sum(v) FROM numbers |> LIMIT 1", "line 1, column 31: .*pipe syntax.*temporary view"),
        ("BEGIN SELECT my_sum(v) FROM numbers; SELECT 1; END", "line 1, column 36: only one statement"),
        ("CREATE TEMPORARY FUNCTION f() RETURNS BIGINT RETURN (SELECT my_sum(1))", "statement CREATE FUNC"),
        ("CACHE TABLE sums AS SELECT my_sum(v) FROM numbers", "statement CACHE cannot"),
        ("FROM numbers INSERT INTO a SELECT my_sum(v) INSERT INTO b SELECT my_sum(k)", "INSERT of several tables"),
        ("EXECUTE IMMEDIATE 'SELECT my_sum(v) FROM numbers'", "does not know this remote function"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_place(session, query, message):
    with pytest.raises(PlanError, match=message):
        session.sql(query)


def test_what_is_unknown_is_left_to_spark(session, spark):
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        session.sql("SELECT my_sum(v) FROM nowhere").collect()
    with pytest.raises(UnknownFunction, match="neither Spark nor the server has a function 'nobody'"):
        session.sql("SELECT nobody(v) FROM numbers").collect()
    assert session.sql("EXPLAIN SELECT 1").count() == 1
    assert session.sql("SET spark.sql.shuffle.partitions").first().value == spark.conf.get(
        "spark.sql.shuffle.partitions"
    )


@st.composite
def queries(draw):
    """Queries over the table `numbers` with SUM, which means Spark's or the remote sum."""
    keys = draw(st.lists(st.sampled_from(["k", "j", "v % 2", "k + j"]), max_size=2, unique=True))
    argument = draw(st.sampled_from(["v", "v + j", "coalesce(v, 7)", "k"]))
    only = draw(st.sampled_from(["", " FILTER (WHERE j = 1)", " FILTER (WHERE v > 2)"]))
    items = [f"{key} AS key_{place}" for place, key in enumerate(keys)]
    items += [f"SUM({argument}){only} AS total", "count(v) AS n"]
    where = draw(st.sampled_from(["", " WHERE v > 1", " WHERE k IS NULL"]))
    group = draw(st.sampled_from(["{}", "ROLLUP ({})", "CUBE ({})"])).format(", ".join(keys)) if keys else ""
    having = draw(st.sampled_from(["", " HAVING count(*) > 1", " HAVING SUM(v) > 3"]))
    return f"SELECT {', '.join(items)} FROM numbers{where}{f' GROUP BY {group}' if keys else ''}{having}"


EXAMPLES = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(query=queries())
def test_any_grouping_is_as_sparks_own(session, query):
    same_as_spark(session, query)


@EXAMPLES
@given(query=queries(), wrapper=st.sampled_from(["{}", "SELECT * FROM ({}) AS x", "WITH x AS ({}) SELECT * FROM x"]))
def test_any_query_without_our_functions_is_sparks(session, query, wrapper):
    text = wrapper.format(query)
    mine, sparks = session.sql(text), session.spark.sql(text)
    assert mine.columns == sparks.columns and as_sorted(mine) == as_sorted(sparks)
