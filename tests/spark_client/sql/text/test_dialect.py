"""The dialect writes the tokens that it reads, except optional words."""

import pytest
import sqlglot
from sqlglot.tokens import TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.text.dialect import RemoteSpark
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import canonical

LEFT_OUT = {"AS", "ASC", "INNER", "OUTER"}
AS_WRITTEN = r"""
SELECT a IS NOT NULL, a IS NULL, NOT a IS NULL, a IS DISTINCT FROM b, a NOT LIKE 'x', a NOT LIKE ANY ('x', 'y')
SELECT substr(a, 1, 2), substring(a FROM 1 FOR 2), position('a' IN b), overlay(a PLACING 'x' FROM 2)
SELECT trim(a), trim('x' FROM a), ltrim(a), date_part('year', d), extract(year FROM d), try_cast(a AS INT)
SELECT cast(a AS DECIMAL(12, 2)), cast(a AS TIME)
SELECT cast(a AS array<struct<x: int, y: string>>), cast(a AS interval day to second), cast(a AS timestamp_ntz)
SELECT DATE '2020-01-01', timestamp '2020-01-01 00:00:00', timestamp_ltz'2020-01-01', TIME '10:00:00', X'1F'
SELECT 1L, 1S, 1Y, 1.5D, 1.5BD, 1e3, 1.5F, -1, 1e-3, 12345678901234567890, 1.50, true, null
SELECT interval 30 days, interval '1-2' year to month, interval 1 day 2 hours, interval -1 day
SELECT d + interval '1 day 2 hours'
SELECT interval a days, interval (a + 1) day
SELECT CASE a WHEN 1 THEN 2 ELSE 3 END, if(a, b, c), decode(a, 1, 2), nvl2(a, b, c), isnull(a), ifnull(a, b)
SELECT a LIKE 'x' ESCAPE '/', a ILIKE 'b', a RLIKE 'c', a LIKE ALL ('x'), like(a, b), rlike(a, b)
SELECT a BETWEEN 1 AND 2, a IN (1, 2), a IN (SELECT b FROM u), EXISTS (SELECT 1), (a, b) IN (SELECT 1, 2)
SELECT transform(x, y -> y + 1), filter(x, (y, i) -> y > i), aggregate(x, 0, (s, z) -> s + z), exists(x, y -> y)
SELECT a.b.c, a[0], a['k'].b, m['x'][1], struct(a, b).a, array(1, 2)[0], map('a', 1)['a'], t.*, (a).b FROM t
SELECT count(*), count(DISTINCT a, b), sum(a) FILTER (WHERE b > 1), first(a) IGNORE NULLS
SELECT mode() WITHIN GROUP (ORDER BY a)
SELECT listagg(a, ',') WITHIN GROUP (ORDER BY b), string_agg(DISTINCT a, ','), std(a), every(a), any_value(a)
SELECT rank() OVER (PARTITION BY a ORDER BY b DESC), lag(a, 1, 0) OVER w, lead(a) IGNORE NULLS OVER (ORDER BY b) FROM t
SELECT sum(a) OVER (ORDER BY b RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND UNBOUNDED FOLLOWING) FROM t
SELECT sum(a) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM t WINDOW w AS (PARTITION BY a ORDER BY b)
SELECT a FROM t GROUP BY a, b WITH ROLLUP
SELECT a FROM t GROUP BY ROLLUP (a, b), c
SELECT a FROM t GROUP BY CUBE (a, (b, c)), GROUPING SETS ((a), (b, c), ())
SELECT a, count(*) FROM t GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL
SELECT a FROM t ORDER BY 1 DESC NULLS FIRST, 2 NULLS LAST LIMIT 10 OFFSET 5
SELECT DISTINCT a FROM t DISTRIBUTE BY a SORT BY b
SELECT /*+ BROADCAST(t), REPARTITION(3, a) */ * EXCEPT (a, b), t.* EXCEPT (c) FROM t
SELECT a FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (7)
SELECT a FROM t TABLESAMPLE (BUCKET 1 OUT OF 10) x
SELECT v:a, t.v:a.b[0]['c d'].`e f`, f(v):a, v:['b'].c, x[0]:y + :p, v:a:b FROM t WHERE v:a IS NULL AND a > :p LIMIT :n
SELECT a FROM STREAM t JOIN stream `u` x ON true JOIN stream ON true, stream AS y
SELECT a FROM (SELECT b FROM t) TABLESAMPLE (3 ROWS) x JOIN (SELECT 1) TABLESAMPLE (10 PERCENT) ON true
SELECT * FROM t PIVOT (sum(v) AS s, avg(v) AS m FOR (a, b) IN ((1, 'x') AS one, (2, 'y')))
SELECT * FROM t PIVOT (sum(v) FOR j IN (0, 1 AS one)) AS p WHERE x
SELECT * FROM t UNPIVOT INCLUDE NULLS ((v, w) FOR n IN ((a, b) AS x, (c, d))) AS u
SELECT * FROM t LATERAL VIEW explode(a) x AS y LATERAL VIEW OUTER posexplode(m) z AS k, v
SELECT * FROM t, LATERAL (SELECT t.a) x, LATERAL explode(b) AS e(c)
SELECT * FROM a, b JOIN c ON a.x = c.x LEFT OUTER JOIN d USING (y, z) FULL OUTER JOIN e ON 1 = 1 CROSS JOIN f
SELECT * FROM a LEFT SEMI JOIN b ON a.x = b.x LEFT ANTI JOIN c ON true NATURAL JOIN d
SELECT * FROM (a JOIN b ON a.x = b.x) JOIN c ON true
SELECT * FROM (SELECT 1 AS x) AS y(z), VALUES (1, 'a'), (2, 'b') AS v(a, b), range(1, 10, 2) AS r(id)
WITH x AS (WITH z AS (SELECT 1 AS q) SELECT q FROM z), y(a, b) AS (SELECT 2, 3) SELECT * FROM x, y
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
(SELECT 1 UNION SELECT 2) EXCEPT (SELECT 3) ORDER BY 1 LIMIT 2
SELECT a || b, a & b | c ^ d, ~a, a % b, a DIV b, -a, a << 1, NOT a AND b OR c
SELECT `a b`, `a``b`, `1x` AS `x y`, a b, (a, b) AS s, explode(m) AS (k, v)
SELECT date_add(d, 1), datediff(day, a, b), dateadd(month, 1, d), date_trunc('month', d), to_date(a), current_date
SELECT left(a, 1), concat_ws(',', a), split(a, ','), instr(a, b), ceil(a), pow(a, 2), log(a), greatest(a, b), now()
SELECT a FROM db.t, spark_catalog.db.t AS x, parquet.`/a/b`, identifier('t')
SELECT :p, f(a => x, 1) FROM t LIMIT :n
SELECT * FROM f(TABLE t, 1), f(r => TABLE db.t, limit => DEFAULT, on_time => DESCRIPTOR(ts, timestamp)) x
SELECT * FROM f(TABLE t PARTITION BY (a, `b c`) ORDER BY (timestamp DESC, date NULLS LAST))
SELECT * FROM TABLE(TUMBLE(TABLE (SELECT 1 UNION SELECT 2), DESCRIPTOR(`t`), INTERVAL '10' MINUTES)) w
SELECT * FROM SESSION(DATA => TABLE g(TABLE u) PARTITION BY (k), TIMECOL => descriptor(ts)), load(TABLE t), show(1)
SELECT * FROM t, LATERAL f(r => TABLE u) x JOIN f(TABLE (TUMBLE(TABLE t)) PARTITION BY (k)) ON true
SELECT f(table), f(table, x), f(table IS NULL), f(table.x), f(table IN (1)), f(table => 1), f(descriptor) FROM t
EXECUTE IMMEDIATE 'SELECT 1'
SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1
INSERT OVERWRITE TABLE t PARTITION (p) SELECT 1, 2
INSERT INTO t (a, b) SELECT 1, 2
INSERT INTO t REPLACE WHERE a > 1 SELECT 1
CREATE TABLE IF NOT EXISTS db.t USING csv OPTIONS ('header' = 'true') PARTITIONED BY (a) LOCATION '/x' AS SELECT 1 AS a
CREATE OR REPLACE TEMPORARY VIEW v (a, b) AS SELECT 1, 2
"""


def tokens(sql):
    found = []
    for token in RemoteSpark().tokenize(sql):
        text = repr(token.text) if token.token_type is TokenType.STRING else token.text.upper()
        found += [part for part in text.split() if part not in LEFT_OUT]
    return found


@pytest.mark.parametrize("sql", AS_WRITTEN.strip().splitlines())
def test_a_query_comes_out_as_it_went_in(sql):
    assert tokens(canonical(sqlglot.parse_one(sql, dialect=RemoteSpark))) == tokens(sql)


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("SELECT 'a' 'b' \"c\"", "SELECT 'abc'"),
        ("SELECT a != b, a == b, a <=> b", "SELECT a <> b, a = b, a IS NOT DISTINCT FROM b"),
        ("SELECT a NOT IN (1), a NOT BETWEEN 1 AND 2", "SELECT NOT a IN (1), NOT a BETWEEN 1 AND 2"),
        ("SELECT a REGEXP 'x', a::int", "SELECT a RLIKE 'x', CAST(a AS INT)"),
        ("SELECT 1 UNION SELECT 2 INTERSECT SELECT 3", "SELECT 1 UNION (SELECT 2 INTERSECT SELECT 3)"),
        ("SELECT CAST(a AS TIMESTAMP(3)), CAST(a AS TIMESTAMP_LTZ(3))",
         "SELECT CAST(a AS TIMESTAMP), CAST(a AS TIMESTAMP_LTZ)"),
        ("SELECT INTERVAL '5' SECOND(2, 3), a - INTERVAL '1 02' DAY(3) TO HOUR",
         "SELECT INTERVAL '5' SECOND, a - INTERVAL '1 02' DAY TO HOUR"),
        ("SELECT * FROM f(TABLE t PARTITION BY k ORDER BY ts, x)",
         "SELECT * FROM f(TABLE t PARTITION BY (k) ORDER BY (ts), x)"),
        ("SELECT * FROM f((SELECT 1) PARTITION BY k, (SELECT 2) ORDER BY ts, TUMBLE(TABLE t) PARTITION BY k)",
         "SELECT * FROM f(TABLE (SELECT 1) PARTITION BY (k), TABLE (SELECT 2) ORDER BY (ts), "
         "TABLE TUMBLE(TABLE t) PARTITION BY (k))"),
        ("FROM t SELECT a WHERE b", "SELECT a FROM t WHERE b"),
        ("SELECT INTERVAL x, INTERVAL y DAY FROM t", "SELECT INTERVAL AS x, INTERVAL y DAY FROM t"),
        ("SELECT sum(a) OVER (ORDER BY b ROWS 2 PRECEDING)",
         "SELECT sum(a) OVER (ORDER BY b ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"),
    ],
)  # fmt: skip
def test_some_things_come_out_as_others_that_mean_the_same(sql, same):
    assert canonical(sqlglot.parse_one(sql, dialect=RemoteSpark)) == same


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT INTERVAL NOT a '10' MINUTES",
        "CREATE TEMP ORDER VIEW v AS SELECT f(a) FROM t",
        "SELECT * FROM t |> LIMIT :n",
        "SELECT FROM t WHERE f(a) > 1",
        "INSERT INTO b TABLE .c",
        "SELECT f(a) FROM .t",
    ],
)
def test_what_spark_does_not_have_is_not_read_as_something_else(sql):
    with pytest.raises(PlanError):
        canonical(Text(sql, None, {}).tree)


def test_a_literal_that_holds_a_column_is_rewritten_with_it():
    tree = sqlglot.parse_one("SELECT INTERVAL a DAYS, substring(a FROM 2)", dialect=RemoteSpark)
    for column in list(tree.find_all(sqlglot.exp.Column)):
        column.replace(sqlglot.exp.column("z"))
    assert canonical(tree) == "SELECT INTERVAL z DAYS, SUBSTRING(z FROM 2)"


def test_a_path_in_a_variant_can_be_written_by_sqlglots_own_dialect_with_which_expressions_are_compared():
    paths = [sqlglot.parse_one(f"SELECT {sql}", dialect=RemoteSpark) for sql in ("v:a[0]", "v : a[0]", "v:b")]
    first, spaced, other = (tree.sql(dialect="spark") for tree in paths)
    assert first == spaced != other
