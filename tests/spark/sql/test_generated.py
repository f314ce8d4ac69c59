"""Generated queries without remote functions: the dialect does not change Spark's plan, names and types."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import udf_server as udf
from spark_client import PlanError
from tests.spark.rewritten import plan_of, rewritten


@pytest.fixture(scope="module")
def tables(spark):
    spark.range(6).selectExpr(
        "if(id % 3 = 0, null, id % 3) AS k", "cast(id % 2 AS int) AS j", "id AS v", "concat('a_', id, '%') AS name",
        "timestamp_seconds(1700000000 + id * 4000) AS at", "array(1, cast(id AS int)) AS xs", "map('a', id) AS m",
        "struct(id AS a, 'b' AS b) AS s",
    ).createOrReplaceTempView("t")  # fmt: skip
    spark.createDataFrame([(1, "one"), (2, "two")], "k bigint, word string").createOrReplaceTempView("u")
    yield spark
    spark.catalog.dropTempView("t")
    spark.catalog.dropTempView("u")


def one_of(*templates):
    return st.sampled_from(templates)


LEAVES = one_of(
    "k", "t.j", "v", "1", "2L", "1.5D", "1.50", "2.5BD", "-3", "1e2", "NULL", "xs[0]", "m['a']", "s.a", "t.s.a",
    "size(xs)",
    "aggregate(xs, 0, (acc, x) -> acc + x)", "size(filter(transform(xs, y -> y + 1), (z, i) -> z > i))", "length(name)",
    "extract(DAY FROM at)", "year(at)", "datediff(DATE '2024-01-05', at)", "position('_' IN name)", "locate('_', name)",
    "length(substr(name, 2))", "length(substring(name FROM 2 FOR 1))", "`k`", "(SELECT max(k) FROM u)", "hash(name, s)",
    "element_at(map('x', 1), 'x')", "array(1, 2)[1]", "named_struct('q', 4).q",
    "cast(at AS date) - DATE'2023-11-01' IS NULL",
    "length('it''s' 'x')", "length(r'\\d')", "length(\"q\")", "unix_timestamp(at + INTERVAL 2 days 3 hours)",
)  # fmt: skip


def combined(inner):
    two = st.tuples(inner, inner)
    return st.one_of(
        two.flatmap(lambda p: one_of(
            f"{p[0]} + {p[1]}", f"({p[0]}) * -({p[1]})", f"coalesce({p[0]}, {p[1]})", f"nullif({p[0]}, {p[1]})",
            f"CASE WHEN {p[0]} > 1 THEN {p[1]} ELSE 0 END", f"CASE {p[0]} WHEN 1 THEN {p[1]} END",
            f"if({p[0]} > 1, 1, {p[1]})",
            f"greatest({p[0]}, {p[1]})", f"({p[0]}) % 3 - ({p[1]}) DIV 2",
        )),
        inner.flatmap(lambda e: one_of(
            f"CAST({e} AS decimal(20, 2))", f"try_cast({e} AS BIGINT)", f"round({e}, 1)", f"abs({e})", f"({e})::double",
            f"1 << cast({e} AS int)", f"~cast({e} AS int)", f"decode({e}, 1, 2, 3)",
        )),
    )  # fmt: skip


VALUES = st.recursive(LEAVES, combined, max_leaves=3)


def conditions():
    simple = st.tuples(VALUES, VALUES).flatmap(lambda p: one_of(
        f"{p[0]} > {p[1]}", f"{p[0]} <> {p[1]}", f"{p[0]} != {p[1]}", f"{p[0]} == 2", f"{p[0]} <=> {p[1]}",
        f"{p[0]} IS NULL",
        f"{p[0]} IS NOT NULL", f"NOT {p[0]} IS NULL", f"{p[0]} BETWEEN 1 AND {p[1]}", f"{p[0]} NOT BETWEEN 0 AND 1",
        f"{p[0]} IN (1, {p[1]})", f"{p[0]} NOT IN (1, 2)", "name LIKE 'a^_%' ESCAPE '^'", "name NOT LIKE '%\\_2_'",
        "name RLIKE '\\\\d'", "name ILIKE 'A%'", "name LIKE ANY ('a%', 'b')", "name NOT LIKE ALL ('x')",
        "k IN (SELECT k FROM u)",
        "EXISTS (SELECT 1 FROM u WHERE u.k = t.k)", "NOT EXISTS (SELECT * FROM u WHERE word = name)",
        "k NOT IN (SELECT k FROM u)",
        "at > TIMESTAMP '2023-11-14 00:00:00' - INTERVAL '1' DAY", "at < timestamp_ntz'2024-01-01' + INTERVAL 1 MONTH",
        f"{p[0]} IS DISTINCT FROM {p[1]}", "exists(xs, x -> x > 1)", "(k, j) IN ((1, 1), (2, 0))",
    ))  # fmt: skip
    return st.recursive(simple, lambda c: st.tuples(c, c).flatmap(lambda p: one_of(
        f"{p[0]} AND {p[1]}", f"({p[0]} OR {p[1]})", f"NOT ({p[0]})", f"{p[0]} OR {p[1]} AND v > 0",
    )), max_leaves=3)  # fmt: skip


SOURCES = one_of(
    "t", "t AS t", "(SELECT * FROM t WHERE v > 1) AS t", "t TABLESAMPLE (50 PERCENT) REPEATABLE (7)",
    "t JOIN u USING (k)",
    "t LEFT OUTER JOIN u ON t.k = u.k AND word LIKE 'o%'", "t, u", "t CROSS JOIN u", "t LEFT ANTI JOIN u ON t.k = u.k",
    "t FULL OUTER JOIN u AS w ON w.k = t.k", "t NATURAL JOIN u", "t LEFT SEMI JOIN u USING (k)",
    "t, u JOIN u w ON w.k = u.k",
    "t LATERAL VIEW explode(xs) e AS x", "t LATERAL VIEW OUTER posexplode(xs) e AS pos, x",
    "t, LATERAL (SELECT t.v + 1 AS next)",
    "t JOIN LATERAL explode(xs) AS e(x)", "(t JOIN VALUES (1L, 'x'), (2L, 'y') AS w(k, z) ON t.k = w.k)",
)  # fmt: skip
WINDOW_ITEMS = (
    "rank() OVER (PARTITION BY j ORDER BY v DESC NULLS LAST) AS r", "sum(v) OVER w",
    "lag(v, 1, 0) OVER (ORDER BY v) AS l",
    "sum(v) OVER (PARTITION BY j ORDER BY at RANGE BETWEEN INTERVAL 2 HOURS PRECEDING AND CURRENT ROW) AS recent",
    "avg(v) OVER (ORDER BY v ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING)", "count(*) OVER () AS n",
    "first_value(name) IGNORE NULLS OVER w AS f",
)  # fmt: skip
GROUPED_ITEMS = (
    "count(*)", "count(DISTINCT j, v)", "sum(v) FILTER (WHERE j = 1) AS s", "max(name)", "stddev_samp(v)",
    "first(v, true)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p", "collect_list(v)", "any_value(k) IGNORE NULLS",
    "listagg(name, ',')",
    "sum(DISTINCT v) + 1", "max_by(name, v)", "rank() OVER (ORDER BY sum(v)) AS r",
)  # fmt: skip
GROUPS = (
    "k",
    "j, k",
    "ROLLUP (j, k)",
    "CUBE (j, k)",
    "GROUPING SETS ((j, k), (k), ())",
    "j, k WITH ROLLUP",
    "1",
    "ALL",
    "k % 2, k",
)


@st.composite
def selects(draw):
    hint = draw(
        one_of(
            "", "", "/*+ REPARTITION(2) */ ", "/*+ BROADCAST(u), COALESCE(1) */ ", "/* a comment */ ", "-- another\n "
        )
    )
    source, where = draw(SOURCES), draw(st.one_of(st.just(""), conditions().map(lambda c: f" WHERE {c}")))
    if draw(st.booleans()):
        keys = draw(st.sampled_from(GROUPS))
        items = draw(st.lists(st.sampled_from(GROUPED_ITEMS), min_size=1, max_size=3, unique=True))
        having = draw(one_of("", "", " HAVING count(*) > 1", " HAVING max(v) > 2 AND NOT sum(j) IS NULL"))
        return f"SELECT {hint}k, {', '.join(items)} FROM {source}{where} GROUP BY {keys}{having}"
    plain = one_of(
        "t.*", "* EXCEPT (v)", "name AS `a b`", "v x", "window(at, '1 hour').start", "upper(name) || 'x'",
        "struct(v, name AS n).n",
    )  # fmt: skip
    items = draw(st.lists(st.one_of(VALUES, st.sampled_from(WINDOW_ITEMS), plain), min_size=1, max_size=3))
    windows = " WINDOW w AS (PARTITION BY j ORDER BY v)" if any("OVER w" in item for item in items) else ""
    end = draw(one_of("", " ORDER BY v DESC NULLS LAST LIMIT 3 OFFSET 1", " SORT BY v", " DISTRIBUTE BY j", " LIMIT 2"))
    distinct = draw(one_of("", "" if end else "DISTINCT "))
    return f"SELECT {hint}{distinct}{', '.join(items)} FROM {source}{where}{windows}{end}"


@st.composite
def queries(draw):
    one, other = draw(selects()), draw(selects())
    return draw(one_of(
        one, one, f"SELECT * FROM ({one}) AS x",
        f"WITH x AS ({one}), y AS (SELECT count(*) AS n FROM x) SELECT * FROM x, y",
        f"({one}) UNION ALL ({other})", f"(SELECT k FROM t) EXCEPT ({other})",
        f"SELECT k FROM u INTERSECT ({one}) UNION SELECT 1",
        f"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n, x.* FROM r, ({one}) x",
        "SELECT * FROM (SELECT j, v, k FROM t) PIVOT (sum(v) AS s, max(v) FOR j IN (0 AS zero, 1)) LIMIT (SELECT 5)",
        f"SELECT * FROM (SELECT v, k FROM t) UNPIVOT (value FOR what IN (v AS one, k)) "
        f"WHERE value IN (SELECT count(*) FROM ({other}))",
    ))  # fmt: skip


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(query=queries())
def test_any_query_without_our_functions_has_sparks_plan(tables, query):
    try:
        sparks = tables.sql(query)
    except PySparkException as refused:
        with pytest.raises((PySparkException, PlanError)) as ours:
            rewritten(tables, query)
        assert isinstance(ours.value, PlanError) or ours.value.getCondition() == refused.getCondition()
    else:
        mine = rewritten(tables, query)
        assert mine.schema == sparks.schema
        assert plan_of(mine) == plan_of(sparks)


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


COMMANDS = [
    "SET spark.sql.shuffle.partitions", "DESCRIBE TABLE t", "DESCRIBE QUERY SELECT 1 AS x", "SHOW VIEWS LIKE 'u'",
    "USE default",
    "SHOW FUNCTIONS LIKE 'plus*'", "EXPLAIN SELECT plus_ten(v) FROM t WHERE plus_ten(v) > 2",
    "CACHE LAZY TABLE lazy AS SELECT 1",
    "UNCACHE TABLE lazy", "DECLARE OR REPLACE VARIABLE five INT DEFAULT 5", "SET VAR five = plus_ten(1)",
    "SELECT plus_ten(five), five",
    "BEGIN DECLARE a INT = 1; IF plus_ten(a) > 2 THEN SELECT plus_ten(a), plus_ten(2); END IF; END",
    "DROP TEMPORARY VARIABLE five",
    "CREATE TEMPORARY FUNCTION doubled_here(x INT) RETURNS INT RETURN x * 2",
    "SELECT doubled_here(plus_ten(1)), plus_ten(1)", "DROP TEMPORARY FUNCTION doubled_here",
    "SELECT plus_ten(1), plus_ten(1)", "TABLE u",
]  # fmt: skip
REFUSED = [
    "MERGE INTO u USING t ON u.k = plus_ten(t.k) WHEN MATCHED THEN UPDATE SET word = plus_ten(1)",
    "ANALYZE TABLE nobody COMPUTE STATISTICS",
    "UPDATE u SET k = plus_ten(plus_ten(1))", "DELETE FROM u WHERE plus_ten(k) = plus_ten(1)",
    "SELECT plus_ten(1), plus_ten(1) FORM t",
    "SELECT plus_ten(1); SELECT plus_ten(1)", "ALTER TABLE nobody ADD COLUMN x INT", "CALL nothing(plus_ten(1))",
    "GRANT nothing", "VALUES (plus_ten(1)), (plus_ten(1))",
]  # fmt: skip


def test_commands_and_scripts_are_sparks(tables, remote):
    ours = remote(plus_ten)
    ours.register("plus_ten")

    def outcome(run, command):
        try:
            return [tuple(row) for row in run(command).collect() if "plan" not in row.asDict()]
        except PySparkException as error:
            return error.getCondition() or type(error).__name__
        except Py4JJavaError:
            return "an internal error of Spark's"

    for command in COMMANDS:
        before = (
            outcome(tables.sql, command) if not command.startswith(("CREATE", "DROP", "CACHE", "UNCACHE")) else None
        )
        found = outcome(ours.sql, command)
        assert not isinstance(found, str), (command, found)
        assert before is None or found == before, command
    for command in REFUSED:
        assert isinstance(outcome(ours.sql, command), str), command
        assert outcome(ours.sql, command) == outcome(tables.sql, command), command
