"""The meaning of names in a rewritten SELECT, and the evaluated expressions, are the same as in Spark.

`SUM` is a remote sum or Spark's own, `SAME(x)` is a remote function that returns its argument or `x`.
"""

import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, Window, connect
from tests.conftest import serving
from udf_server.aggregate.declaration import declare_aggregate


class MySum(udf.AggregateFunction):
    """Equals Spark's sum of bigints."""

    nulls = "skip"

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator, v: int):
        return [sum([v, *accumulator])]

    def merge(self, accumulator, others):
        values = [v for each in [accumulator, *others] for v in each]
        return [sum(values)] if values else []

    def get_value(self, accumulator) -> int:
        return accumulator[0] if accumulator else None


CALLS: list[int] = []


class Shown(udf.AggregateFunction):
    """A text."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator, text: str):
        return text

    def get_value(self, accumulator) -> str:
        return accumulator


@udf.scalar
def same(x: int) -> int:
    CALLS.append(x)
    return x


@pytest.fixture(scope="module")
def remote(spark):
    """A session with both functions, and a table in which v may be 0 or null, and s.k is not k."""
    with serving(declare_aggregate(MySum), declare_aggregate(Shown), same) as server:
        rows = [(1, 10), (2, 20), (3, 30), (3, 5), (None, 7), (1, None), (2, 0)]
        spark.createDataFrame(rows, "k bigint, v bigint").selectExpr(
            "k", "v", "named_struct('k', -k, 'v', v) AS s"
        ).createOrReplaceTempView("pairs")
        # Functions of Spark's have the same names in a schema.
        for name in ("my_sum", "same"):
            spark.sql(f"CREATE OR REPLACE FUNCTION default.{name}(x BIGINT) RETURNS BIGINT RETURN x + 100")
        yield connect(spark, server.target)
        for name in ("my_sum", "same"):
            spark.sql(f"DROP FUNCTION default.{name}")
        spark.catalog.dropTempView("pairs")


def rows_of(frame, ordered):
    found = [tuple(row) for row in frame.collect()]
    return found if ordered else sorted(found, key=repr)


def as_spark(remote, query):
    """Runs the query both ways. Rows are compared in order if an ORDER BY ends the query."""
    ordered = re.search(r"ORDER BY [^()]*$", query.replace("SAME(k)", "k")) is not None
    sparks = remote.spark.sql(re.sub(r"SAME(\([^()]*\))", r"\1", query))
    expected = rows_of(sparks, ordered)
    assert rows_of(remote.sql(query.replace("SUM(", "my_sum(").replace("SAME(", "same(")), ordered) == expected


NAMES = [
    "SELECT -k AS k, SUM(v) AS n FROM pairs GROUP BY k ORDER BY k LIMIT 2",
    "SELECT -k AS k, SUM(v) AS n FROM pairs GROUP BY k HAVING k > 1 ORDER BY k + 1 DESC",
    "SELECT -k AS k, SUM(v) AS n FROM pairs GROUP BY CUBE (k) HAVING k > -2 AND SUM(k) > 0 ORDER BY k",
    "SELECT -(k + 1) AS k, SUM(v) AS n FROM pairs GROUP BY ROLLUP (k + 1) HAVING k + 1 < 0 ORDER BY k + 1, n",
    "SELECT -(k + 1) AS k, SUM(v) AS n FROM pairs GROUP BY k + 1 ORDER BY k + 1",
    "SELECT -k AS k, SUM(v) AS n FROM pairs GROUP BY k ORDER BY pairs.k",
    "SELECT s.k AS k, SUM(v) AS n FROM pairs GROUP BY s, k ORDER BY k, n",
    "SELECT named_struct('k', -k) AS pairs, SUM(v) AS n FROM pairs GROUP BY k ORDER BY pairs.k",
    "SELECT -k AS k, SUM(v) AS n, grouping(k) AS g FROM pairs GROUP BY ROLLUP (k) ORDER BY g, k",
    "SELECT named_struct('v', -v) AS pairs, SUM(v) OVER (PARTITION BY k) AS n FROM pairs ORDER BY pairs.v",
    "SELECT s.v AS k, SUM(v) OVER (PARTITION BY k) AS n FROM pairs ORDER BY k",
    "SELECT s.k AS k FROM pairs WHERE SAME(k) > 0 ORDER BY SAME(k), 1 LIMIT 3",
    "SELECT k, SUM(v) AS n, CURRENT_DATE > DATE'2020-01-01' AS d FROM pairs GROUP BY k HAVING CURRENT_DATE IS NOT NULL",
    "SELECT k, timestampdiff(DAY, DATE'2024-01-01', date_add(DATE'2024-01-01', CAST(SUM(v) AS int))) AS d "
    "FROM pairs GROUP BY k",
    "SELECT -v AS k, SUM(v) AS n FROM pairs GROUP BY v HAVING exists(array(-10, -20), v -> v = k)",
    "SELECT s.v AS p, SUM(v) AS n FROM pairs GROUP BY s.v HAVING exists(array(named_struct('v', 5)), s -> s.v = p)",
    "SELECT k + 1 AS p, SUM(v) AS n FROM pairs GROUP BY k + 1 HAVING exists(array(1, 2), k -> k + 1 = p)",
    "SELECT transform(array(1, 2), k -> k + 1) AS t, SUM(v) AS n FROM pairs GROUP BY k + 1",
    "SELECT SUM(v) AS n, any(v > 20) AS a, some(v > 20) AS b, every(v > 20) AS c, max(struct(*)) AS m FROM pairs",
    "SELECT to_json(struct(K, s.v, k + 1, SUM(v), SUM(v) AS n)) AS j FROM pairs GROUP BY k, s.v, k + 1",
    "SELECT k, to_json(max_by(struct(v, s.k, v + 1), v)) AS j, SUM(v) AS n FROM pairs GROUP BY k",
    "SELECT k + 1 AS s, SUM(v) AS n FROM pairs GROUP BY k, s ORDER BY s.k, s.v",
    "SELECT k AS s, SUM(v) AS n FROM pairs GROUP BY k, s.k ORDER BY s.k",
    "SELECT v AS s, SUM(v) OVER (PARTITION BY k) AS n FROM pairs ORDER BY s.k, s",
    "SELECT k AS pairs, SUM(v) AS n FROM pairs GROUP BY ROLLUP (k) ORDER BY pairs.k, n",
    "SELECT k + 1 AS pairs, SUM(v) OVER (PARTITION BY k) AS n FROM pairs ORDER BY pairs.v, pairs.k",
    "SELECT named_struct('k', -k) AS q, SUM(v) AS n FROM pairs GROUP BY CUBE (k) HAVING q.k < -1 ORDER BY q.k",
    "SELECT SUM(v)>>>2 AS a, k >>> 1 AS b, SUM(-v >>> 60) >> 1 << 2 & 7 AS c FROM pairs GROUP BY k, k >>> 1 "
    "HAVING SUM(v) >>> 1 > 3",
    "SELECT values + 1 AS a, 2 * for AS b, SUM(all * 2) AS n, interval 1 day -2 hours -3 minutes AS i FROM "
    "(SELECT k AS values, v AS for, v AS all FROM pairs) GROUP BY values, for ORDER BY values - 1, b",
]
SCOPES = [
    "WITH pairs AS (SELECT * FROM pairs WHERE k > 1) SELECT * FROM (WITH pairs AS (SELECT * FROM pairs WHERE v > 5) "
    "SELECT SUM(v) AS n FROM pairs), (SELECT SUM(k) AS m FROM pairs)",
    "WITH c AS (SELECT 5L AS v) (WITH c AS (SELECT v + 1 AS v FROM c) SELECT SUM(v) AS n FROM c) UNION SELECT v FROM c",
    "WITH RECURSIVE pairs(v) AS (SELECT 1L UNION ALL SELECT v + 1 FROM pairs WHERE v < 3) SELECT SUM(v) n FROM pairs",
]
WINDOWS = [
    "SELECT k, SUM(v) OVER w AS a, sum(v) OVER w AS b FROM pairs WINDOW w AS (PARTITION BY k ORDER BY v)",
    "SELECT k, SUM(v) OVER w AS a, lag(v) OVER u AS b FROM pairs WINDOW u AS (ORDER BY v), w AS (PARTITION BY k)",
    "SELECT k, SUM(SUM(v)) OVER w AS a, rank() OVER w AS b FROM pairs GROUP BY k WINDOW w AS (ORDER BY SUM(v), k)",
    "SELECT * FROM pairs WINDOW w AS (PARTITION BY k ORDER BY v) QUALIFY SUM(v) OVER w > sum(v) OVER w - 1",
    "SELECT k, posexplode(array(v, 1)) AS (at, x), SUM(v) OVER () AS n FROM pairs",
]
GUARDED = [
    "SELECT k, SUM(10 div v) FILTER (WHERE v <> 0) AS a, SUM(v) AS b FROM pairs GROUP BY k",
    "SELECT SUM(k) AS a, max(10 div v) FILTER (WHERE v <> 0) AS b, count(nullif(v, 0), 20 div v) AS c FROM pairs",
    "SELECT SUM(k) AS a, max_by(k, 10 div v) FILTER (WHERE v <> 0) AS b, max(struct(*)) FILTER (WHERE v > 1) AS c, "
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY 10 div v) FILTER (WHERE v <> 0) AS d FROM pairs",
    "SELECT CASE WHEN v <> 0 THEN 10 div v * SUM(v) OVER (PARTITION BY k) END AS a FROM pairs",
    "SELECT v = 0 OR 10 div v > SUM(v) OVER (PARTITION BY k) AS a, coalesce(SUM(k) OVER (), 10 div v) AS b FROM pairs",
    "SELECT v FROM pairs QUALIFY v <> 0 AND 10 div v * 100 > SUM(v) OVER (PARTITION BY k)",
    "SELECT CASE WHEN v IN (SELECT 5L) THEN (SELECT max(k) FROM pairs) + SUM(v) OVER () ELSE sum(v) OVER () END AS a "
    "FROM pairs",
    "SELECT k, CASE WHEN k > 1 THEN 10 div (k - 1) END AS a, SUM(v) AS n FROM pairs GROUP BY k HAVING n > 0",
    "SELECT k, SUM(10 div (k - 1)) AS n FROM pairs GROUP BY k HAVING k > 1",
    "SELECT k + 1 AS p, SUM(10 div (k - 1)) AS n FROM pairs p GROUP BY p.k HAVING n > 2 AND (p > 2 AND p.k < 9)",
    "SELECT -k AS k, SUM(10 div (k - 1)) AS n FROM pairs WHERE v > 0 OR v IS NULL GROUP BY k HAVING k > 1 OR k IS NULL",
    "SELECT SUM(10 div (v - 20)) AS n FROM pairs GROUP BY k % 2, s HAVING s.v <> 20 AND abs(k % 2) >= 0",
    "SELECT k, v, SUM(10 div v) AS n FROM pairs GROUP BY GROUPING SETS ((k, v), (v)) HAVING v <> 0",
    "SELECT q.k, SUM(10 div p.v) AS n FROM pairs p LEFT JOIN pairs q ON p.v = q.v GROUP BY q.k, p.v HAVING p.v > 0",
    "SELECT k AS p, SUM(10 div (k - 1)) AS n FROM pairs GROUP BY k HAVING exists(array(2, 3), x -> x = p AND x > 1)",
    "SELECT v, SUM(10 div v) AS n, first(v) AS f FROM pairs GROUP BY v HAVING v > 0 AND rand() < 2",
]
KEPT = [
    "SELECT k, SUM(10 div v) AS n FROM pairs GROUP BY k, v HAVING v <> 0 OR SUM(k) > 0",
    "SELECT v, SUM(10 div v) AS n, rand() AS r FROM pairs GROUP BY v HAVING v > 0",
    "SELECT v, SUM(10 div v) AS n FROM pairs GROUP BY v HAVING v + rand() > 1",
]
"""Queries that fail in Spark, because it evaluates the condition on groups only."""


QUALIFIED = [
    "SELECT default.same(k) AS a, SAME(k) AS b, default.my_sum(v) AS c FROM pairs WHERE default.my_sum(v) > 104",
    "SELECT k FROM pairs WHERE SAME(v) > 4 AND default.same(v) < 125 AND SAME(k) < 4",
    "SELECT k, SUM(default.my_sum(v)) AS a, sum(default.same(v)) AS b, default.my_sum(k) AS c FROM pairs GROUP BY k",
    "SELECT k, SUM(v) OVER (PARTITION BY default.my_sum(k)) AS a, default.my_sum(v) AS b FROM pairs",
    "SELECT SUM(v) AS a FROM pairs GROUP BY default.my_sum(k) HAVING default.my_sum(SUM(v)) > 120",
]
NESTED = "SELECT {0}k{1} AS a, SUM({0}v{1}) AS n FROM pairs GROUP BY k".format("abs(" * 60, ")" * 60)
"""As many calls in each other as Spark runs."""


@pytest.mark.parametrize("query", [*NAMES, *SCOPES, *QUALIFIED, NESTED])
def test_a_name_means_what_it_means_to_spark(remote, query):
    as_spark(remote, query)


def test_a_value_without_parentheses_has_the_name_that_spark_gives_it(remote):
    query = "SELECT current_date, CURRENT_USER, SUM(v) AS n, length(X '1F0A') AS l, current_date AS d FROM pairs"
    assert remote.sql(query.replace("SUM(", "my_sum(")).columns == remote.spark.sql(query).columns
    as_spark(remote, query)
    over = query.replace("SUM(v)", "SUM(v) OVER ()")
    assert remote.sql(over.replace("SUM(", "my_sum(")).columns == remote.spark.sql(over).columns


LATERAL_NAMES = [
    "SELECT 'a' AS a, a LIKE 'a', NOT a RLIKE 'b', substring(a, 1), a || k, SUM(v) AS n FROM pairs GROUP BY k",
    "SELECT k AS g, g + 1, CASE WHEN g > 1 THEN 2 END, SUM(v) AS n, n LIKE '1%', -n, count(*) AS c, c * 2 FROM pairs "
    "GROUP BY k",
    "SELECT k AS v, v + 1, 'x' AS x, x IN ('x', 'y'), SUM(v) OVER (PARTITION BY k) AS n, n IS NULL FROM pairs",
]


@pytest.mark.parametrize("query", LATERAL_NAMES)
def test_a_column_over_an_item_of_the_same_select_has_the_name_that_spark_gives_it(remote, query):
    assert remote.sql(query.replace("SUM(", "my_sum(")).columns == remote.spark.sql(query).columns
    as_spark(remote, query)


def test_every_aggregate_and_predicate_of_spark_stands_beside_a_remote_one(remote):
    query = (
        "SELECT k, SUM(v) AS n, hex(bitmap_construct_agg(bitmap_bit_position(coalesce(v, 1)))) AS b,"
        " hex(bitmap_or_agg(X'01')) AS o, schema_of_variant_agg(parse_json('1')) AS s,"
        " NOT regexp(string(k), '[0-9]') AS r FROM pairs GROUP BY k"
    )
    as_spark(remote, query)


@pytest.mark.parametrize("query", WINDOWS)
def test_no_clause_is_lost(remote, query):
    as_spark(remote, query)


@pytest.mark.parametrize("query", GUARDED)
def test_an_expression_is_computed_where_spark_computes_it(remote, query):
    as_spark(remote, query)


@pytest.mark.parametrize("query", KEPT)
def test_a_condition_stays_on_groups_where_sparks_does(remote, query):
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        remote.spark.sql(query).collect()
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        remote.sql(query.replace("SUM(", "my_sum(")).collect()


@pytest.mark.parametrize("having", ["k > 1", "-k < -1 AND window_start > TIMESTAMP '2000-01-01'"])
@pytest.mark.parametrize(
    "windows", ["TUMBLE({}, INTERVAL '4' HOURS)", "HOP({}, INTERVAL '1' HOUR, INTERVAL '4' HOURS)"]
)
def test_having_on_keys_beside_a_window_is_checked_before_rows_are_grouped(remote, windows, having):
    source = windows.format("TABLE {timed}, DESCRIPTOR(at)")
    query = f"SELECT k, SUM(10 div (k - 1)) AS n FROM {source} GROUP BY window_start, window_end, k HAVING {having}"
    timed = remote.spark.table("pairs").withColumn("at", F.lit("2026-01-01 03:30:00").cast("timestamp"))
    found = remote.sql(query.replace("SUM(", "my_sum("), timed=timed).collect()
    windows_of_a_row = 1 if windows.startswith("TUMBLE") else 4
    assert sorted(map(tuple, found)) == [(2, 20)] * windows_of_a_row + [(3, 10)] * windows_of_a_row


def test_rows_of_groups_that_having_excludes_are_not_sent(remote):
    CALLS.clear()
    query = "SELECT k, my_sum(same(v)) AS n FROM pairs GROUP BY k HAVING k > :least"
    assert remote.sql(query, {"least": 2}).collect() == [(3, 35)]
    assert sorted(CALLS) == [5, 30]
    assert "HAVING k > 2: checked before" in remote.explain(query.replace(":least", "2"))


def test_a_condition_with_a_remote_call_stays_on_groups(remote):
    CALLS.clear()
    query = "SELECT k, my_sum(v) AS n FROM pairs GROUP BY k HAVING same(k) > 2 AND k IS NOT NULL"
    assert remote.sql(query).collect() == [(3, 35)]
    assert sorted(CALLS) == [1, 2, 3]


def test_equal_calls_beside_a_remote_aggregate_are_made_once(remote):
    for query in [
        "SELECT same(k) AS a, CASE WHEN same(k) > 1 THEN same(k) + my_sum(v) OVER () END AS b FROM pairs",
        "SELECT my_sum(same(k)) FILTER (WHERE same(k) > 1), max_by(v, same(k)) FILTER (WHERE v > 1) FROM pairs",
    ]:
        CALLS.clear()
        remote.sql(query).collect()
        assert sorted(CALLS, key=repr) == [1, 1, 2, 2, 3, 3, None], query


def test_arguments_are_computed_for_the_rows_of_their_filter(remote, spark):
    pairs, total = spark.table("pairs"), remote.function("my_sum")(F.expr("10 div v"))
    some = total.filter(F.col("v") != 0)
    assert remote.group_by(pairs).agg(some, F.max("v")).first() == (4, 30)
    assert remote.group_by(pairs).agg(some.distinct()).first() == (3,)
    over = remote.with_columns(pairs, {"n": some.over(Window.partitionBy("k"))})
    assert sorted((row.k, row.n) for row in over.where("v = 0 OR v = 5").collect()) == [(2, 0), (3, 2)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT my_sum(v).* FROM pairs",
            r"column 8: my_sum\(v\)\.\*: .* SELECT s\.\* FROM \(SELECT my_sum\(v\)",
        ),
        ("SELECT *, my_sum(v) FROM pairs", r"\* beside an aggregate: name the columns"),
        ("SELECT inline(array(struct(my_sum(v), 1))) FROM pairs", r"makes several columns: .* AS \(a, b\)"),
        ("SELECT inline(array(struct(my_sum(v) OVER (), 1))) FROM pairs", r"makes several columns: .* AS \(a, b\)"),
        ("SELECT my_sum(k), count(DISTINCT *) FROM pairs", "name the columns instead of"),
        ("SELECT struct(*, my_sum(v) OVER ()) FROM pairs", "name the columns instead of"),
        ("SELECT shown(DISTINCT 'a' COLLATE UTF8_LCASE) FROM pairs", "shown@1, DISTINCT argument 1: .*a text without"),
        (
            "SELECT my_sum(v) OVER (PARTITION BY upper('a' COLLATE UTF8_LCASE)) FROM pairs",
            r"column 37: window, column upper\(.a. COLLATE UTF8_LCASE\): type .* a text without",
        ),
        ("SELECT k, shown('a') FROM pairs GROUP BY k, map(k, v)", r"column 45: key map\(k, v\): type"),
        ("SELECT v + 1 AS x, my_sum(x) OVER () FROM pairs", "cannot name another item .*, as in Spark"),
        ("SELECT -v AS v, my_sum(v) OVER () FROM pairs QUALIFY v > 1", "column 54: v in QUALIFY is ambiguous"),
    ],
)
def test_a_refusal_says_what_to_write(remote, query, message):
    with pytest.raises(PlanError, match=message):
        remote.sql(query)


ITEMS = {
    "k": ["k", "-k", "k + 1", "v % 2", "s.k", "10 - k"],
    "v": [
        "SUM(v)",
        "-SUM(v)",
        "max(10 div v) FILTER (WHERE v <> 0)",
        "SUM(10 div v) FILTER (WHERE v > 0)",
        "k",
        "-k",
        "SUM(default.my_sum(v))",
        "default.my_sum(k)",
    ],
    "s": ["count(*)", "SUM(CASE WHEN v <> 0 THEN 10 div v END)", "CASE WHEN k > 0 THEN 10 div k END", "-k"],
    "r": ["SUM(10 div (k - 1))", "k"],
}
CONDITIONS = [
    "",
    *(f" HAVING {each}" for each in ("k > 1", "v > 1", "SUM(v) > 5 OR s IS NULL", "k > 1 AND SUM(v) > 5")),
]
LATERAL = [f"{each} AS q" for each in ("r + 1", "v + 1", "k + 1", "s", "s.k", "coalesce(r, v)", "SUM(v) + r", "SUM(r)")]
"""Items after those above: a name is a column first, then an item before it."""
SORTED = ["k", "-k", "v", "k + v", "pairs.k", "abs(s)", "k + 1", "max(k)", "SUM(v)", "s"]


@st.composite
def groupings(draw):
    """SELECTs whose aliases are names of columns."""
    chosen = [f"{draw(st.sampled_from(ITEMS[name]))} AS {name}" for name in draw(st.permutations(sorted(ITEMS)))]
    keys = draw(st.sampled_from(["k", "k, v", "k, s", "ALL", "k + 1, k", "s.k, k", "ROLLUP (k)", "k, v % 2", "1, k"]))
    having = draw(st.sampled_from(CONDITIONS))
    if draw(st.booleans()):
        parameter, body = draw(st.sampled_from(["k", "v", "s", "r", "y"])), draw(st.sampled_from(["{}", "{} + 1"]))
        compared = draw(st.sampled_from(["k", "v", "s", "r"]))
        part = f"exists(array(1L, 2L, 3L, -1L), {parameter} -> {body.format(parameter)} = {compared})"
        having = f"{having} AND {part}" if having else f" HAVING {part}"
    directions = st.tuples(st.sampled_from(SORTED), st.sampled_from(["", " DESC", " NULLS LAST"])).map("".join)
    order = draw(st.lists(directions, min_size=1, max_size=2))
    lateral = draw(st.lists(st.sampled_from(LATERAL), max_size=1))
    items, sorting = ", ".join([*chosen, *lateral]), ", ".join([*order, "1, 2, 3, 4"])
    return f"SELECT {items} FROM pairs GROUP BY {keys}{having} ORDER BY {sorting}"


OVER = "SUM(v) OVER (PARTITION BY k)"
VALUES = [
    "v",
    "k",
    "default.my_sum(v)",
    "10 div v",
    "sum(v) OVER w",
    "SUM(k) OVER w",
    OVER,
    "0L",
    "(SELECT max(k) FROM pairs)",
]


def combined(inner):
    two = st.tuples(inner, inner)
    return two.flatmap(lambda p: st.sampled_from([
        f"CASE WHEN v <> 0 THEN {p[0]} ELSE {p[1]} END", f"IF(v > 5, {p[0]}, 1L)", f"coalesce({p[0]}, {p[1]})",
        f"({p[0]} + {p[1]})", f"nvl2({p[0]}, 1L, {p[1]})", f"CAST(v = 0 OR {p[0]} > {p[1]} AS bigint)",
    ]))  # fmt: skip


@st.composite
def windows(draw):
    """SELECTs over windows, of which Spark computes parts for some rows only."""
    value = st.recursive(st.sampled_from(VALUES), combined, max_leaves=4)
    one, other = draw(value), draw(value)
    order = draw(st.sampled_from(["v", "-v", "k", "x + v", "pairs.v", "x"]))
    name = draw(st.sampled_from(["v", "k", "y"]))
    return (
        f"SELECT {one} AS {name}, {other} AS x, {OVER} AS z FROM pairs WINDOW w AS (PARTITION BY k ORDER BY v) "
        f"ORDER BY {order}, 1, 2, 3"
    )


def outcome(run):
    try:
        return run()
    except PySparkException:
        return None  # Spark refuses it, or cannot compute it


EXAMPLES = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(query=st.one_of(groupings(), windows()))
def test_any_select_is_as_sparks_own(remote, query):
    ours = query.replace("SUM(", "my_sum(")
    try:
        frame = remote.spark.sql(query)
    except AnalysisException as error:
        assume(error.getCondition() == "MISSING_AGGREGATION")
        with pytest.raises((PlanError, AnalysisException)):
            remote.sql(ours)
        return
    expected = outcome(lambda: rows_of(frame, ordered=True))
    assume(expected is not None)
    assert rows_of(remote.sql(ours), ordered=True) == expected
