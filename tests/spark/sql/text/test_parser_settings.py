"""Settings of Spark's parser hold for texts that are planned here, too: the rows are those of Spark's own sum."""

import contextlib
import itertools
import random

import pytest
from pyspark.errors import PySparkException

from spark_client import PlanError, connect
from spark_client.sql.text.settings import ParserSettings, value_of
from tests.conftest import serving
from tests.spark.sql.test_as_spark import MySum, rows_of
from udf_server.aggregate.declaration import declare_aggregate


@pytest.fixture(scope="module")
def remote(spark):
    with serving(declare_aggregate(MySum)) as server:
        spark.sql(
            "SELECT * FROM VALUES (1L, 'a', 3), (2L, 'a', NULL), (4L, 'b', 5) AS t(v, k, n)"
        ).createOrReplaceTempView("three")
        yield connect(spark, server.target)
        spark.catalog.dropTempView("three")


@contextlib.contextmanager
def setting(spark, settings):
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


ANSI = {"spark.sql.ansi.enabled": "true"}
ESCAPED = {"spark.sql.parser.escapedStringLiterals": "true"}
NAMES = {"spark.sql.ansi.doubleQuotedIdentifiers": "true", **ANSI}
LEFT = {"spark.sql.legacy.setopsPrecedence.enabled": "true"}
CONSECUTIVE = {"spark.sql.legacy.consecutiveStringLiterals.enabled": "true"}
RESERVED = {"spark.sql.ansi.enforceReservedKeywords": "true", **ANSI}
DECIMALS = {"spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true"}
JOIN_FIRST = {"spark.sql.ansi.relationPrecedence": "true", **ANSI}
FOLLOWED = [
    (ESCAPED, r"SELECT SUM(v) AS s, max(regexp_replace('a1', '\d', '#')) AS m FROM three"),
    (ESCAPED, r"SELECT k, SUM(length('\t')) AS s, '\n' AS m FROM three GROUP BY k HAVING max('\d') = '\d'"),
    (ESCAPED, r"SELECT SUM(v) OVER (PARTITION BY '\d') AS s, 'it''s' AS m FROM three QUALIFY '\x' RLIKE '\\x'"),
    (NAMES, 'SELECT SUM("v") AS "a b", count("n") AS m FROM three AS "t" WHERE "t"."k" = \'a\''),
    (NAMES, 'SELECT "k", SUM(v) OVER "w" AS s FROM three WINDOW "w" AS (PARTITION BY "k")'),
    ({**NAMES, "spark.sql.ansi.enabled": "false"}, 'SELECT SUM(v) AS s, count("n") AS m FROM three'),
    (LEFT, "SELECT SUM(v) AS s FROM three UNION SELECT 7L INTERSECT SELECT 8L"),
    (LEFT, "SELECT * FROM (SELECT SUM(v) AS s FROM three UNION ALL SELECT 7L EXCEPT SELECT 7L INTERSECT SELECT 7L)"),
    ({}, "SELECT SUM(v) AS s FROM three UNION SELECT 7L INTERSECT SELECT 8L"),
    (CONSECUTIVE, "SELECT SUM(v) AS s, max('a' 'b''c') AS m, max('it''s') AS n FROM three"),
    ({}, "SELECT SUM(v) AS s, max('a' 'b''c') AS m, max('it''s') AS n, max(r'\\d' 'x') AS r FROM three"),
    (RESERVED, "SELECT SUM(v) AS s, max(k) AS m FROM three"),
    (DECIMALS, "SELECT SUM(v) AS s, max(1e3) AS m, 1E-2 AS n FROM three"),
    (JOIN_FIRST, "SELECT SUM(a.v) AS s FROM three a JOIN three b ON a.v = b.v, three c"),
    ({"spark.sql.variable.substitute": "true", "low": "1"},
     "SELECT SUM(v) AS s, '${low}' AS m FROM three WHERE v > ${low}"),
    ({"spark.sql.parser.quotedRegexColumnNames": "true"}, "SELECT `k`, SUM(v) AS s FROM three GROUP BY `k`"),
    ({"spark.sql.parser.quotedRegexColumnNames": "true"}, "SELECT * FROM (SELECT SUM(v), SUM(n) FROM three)"),
]  # fmt: skip


@pytest.mark.long
def test_a_setting_of_the_parser_holds(remote):
    for settings, query in FOLLOWED:
        with setting(remote.spark, settings):
            expected = rows_of(remote.spark.sql(query.replace("SUM(", "sum(")), ordered=False)
            assert rows_of(remote.sql(query.replace("SUM(", "my_sum(")), ordered=False) == expected, (settings, query)


REFUSED = [
    ({"spark.sql.parser.quotedRegexColumnNames": "true"}, "SELECT `(k|v)`, my_sum(v) FROM three GROUP BY ALL"),
    ({"spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "true"}, "SELECT my_sum(v) AS s FROM three HAVING s > 1"),
    ({"spark.sql.groupByOrdinal": "false"}, "SELECT k, my_sum(v) FROM three GROUP BY 1"),
    ({"spark.sql.legacy.ctePrecedencePolicy": "LEGACY"},
     "WITH c AS (SELECT 1) SELECT * FROM (WITH c AS (FROM three) SELECT my_sum(v) FROM c)"),
    (JOIN_FIRST, "SELECT my_sum(a.v) FROM three a, three b JOIN three c ON b.v = c.v"),
]  # fmt: skip


def test_a_setting_that_is_not_followed_is_refused_by_its_name(remote):
    for settings, query in REFUSED:
        with setting(remote.spark, settings), pytest.raises(PlanError, match=next(iter(settings))):
            remote.sql(query)
        if "`(k|v)`" not in query:
            assert remote.sql(query).columns
    with setting(remote.spark, RESERVED), pytest.raises(PySparkException, match="from"):
        remote.sql("SELECT my_sum(from) FROM three")


PARTS = (
    r"\\", r"\'", r"\"", "a", r"\n", r"\0", r"\Z", r"\u0041", r"\U0001F600", r"\ud83d\ude00", r"\101", r"\400", r"\%",
    r"\_", r"\x", "%", "é", " ", "{q}{q}", "{o}", "{o}{o}", "\n",
)  # fmt: skip


@pytest.mark.parametrize(("escaped", "consecutive"), list(itertools.product((False, True), repeat=2)))
def test_a_text_has_the_value_that_spark_reads(spark, escaped, consecutive):
    draw = random.Random(8)
    texts = []
    for quote, other in ("'\"", "\"'") * 100:
        inside = "".join(draw.choices(PARTS, k=draw.randrange(5))).format(q=quote, o=other)
        texts.append(f"{quote}{inside}{quote}")
    settings = {key: str(on) for key, on in ((next(iter(ESCAPED)), escaped), (next(iter(CONSECUTIVE)), consecutive))}
    with setting(spark, settings):
        expected = spark.sql("SELECT " + ", ".join(texts)).first()
    reading = ParserSettings(escaped=escaped, consecutive=consecutive)
    assert [value_of(text, reading) for text in texts] == list(expected)
