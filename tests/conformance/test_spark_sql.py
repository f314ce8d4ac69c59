"""Flink SQL as Spark SQL."""

import pytest

from tests.conformance.spark_sql import Target, named_columns, to_spark


def spark(query, **settings):
    names = {"f": Target("f@2", ("int",))}
    return to_spark(query, lambda name, arguments: names.get(name.lower()), **settings)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT f(F(a)).f0, g(a) FROM t", "SELECT `f@2`(`f@2`(a)).f0, g(a) FROM t"),
        ("SELECT * FROM t, LATERAL TABLE(f(a)) AS T2(x)", "SELECT * FROM t LATERAL VIEW explode(`f@2`(a)) T2 AS x"),
        (
            "SELECT * FROM t LEFT JOIN LATERAL TABLE(f(a)) AS T2(x) ON TRUE",
            "SELECT * FROM t LATERAL VIEW OUTER explode(`f@2`(a)) T2 AS x",
        ),
        (
            "SELECT * FROM t JOIN LATERAL TABLE(f(a)) AS T2(x) ON x > 1",
            "SELECT * FROM t LATERAL VIEW explode(`f@2`(a)) T2 AS x WHERE x > 1",
        ),
        (
            "SELECT * FROM t LEFT JOIN LATERAL TABLE(f(a)) AS T2(x) ON x > 1",
            "SELECT * FROM t LEFT JOIN LATERAL (SELECT * FROM explode(`f@2`(a))) AS T2(x) ON x > 1",
        ),
        ("SELECT * FROM LATERAL TABLE(f(1)) AS T(x)", "SELECT * FROM explode(`f@2`(1)) AS T(x)"),
        ("SELECT * FROM f(1) AS T(x)", "SELECT * FROM explode(`f@2`(1)) AS T(x)"),
        ("SELECT * FROM t, f(a) AS T2(x), g(1)", "SELECT * FROM t, g(1) LATERAL VIEW explode(`f@2`(a)) T2 AS x"),
        ("SELECT ARRAY_REDUCE(a, 0, (x, y) -> x + y) FROM t", "SELECT reduce(a, 0, (x, y) -> x + y) FROM t"),
        ("SELECT ARRAY_TRANSFORM(a, x -> x + 1) FROM t", "SELECT transform(a, x -> x + 1) FROM t"),
        (
            "SELECT TO_TIMESTAMP_LTZ(a, 3), TO_TIMESTAMP_LTZ(b, 0) FROM t",
            "SELECT timestamp_millis(a), timestamp_seconds(b) FROM t",
        ),
        ("SELECT TO_TIMESTAMP(a), f(b) FROM t", "SELECT to_timestamp_ntz(a), `f@2`(b) FROM t"),
        ("SELECT TIMESTAMPDIFF(DAY, a, b) FROM t", "SELECT TIMESTAMPDIFF(DAY, a, b) FROM t"),
        ("SELECT CONCAT_WS('-', a, b), X'4142' FROM t", "SELECT CONCAT_WS('-', a, b), X'4142' FROM t"),
        ("SELECT REGEXP_EXTRACT(a, 'x(.)', 0) FROM t", "SELECT REGEXP_EXTRACT(a, 'x(.)', 0) FROM t"),
        ("SELECT LISTAGG(a), LISTAGG(b, ';') FROM t", "SELECT LISTAGG(a, ','), LISTAGG(b, ';') FROM t"),
        ("SELECT JSON_VALUE(a, '$.x') FROM t", "SELECT get_json_object(a, '$.x') FROM t"),
        ("SELECT a NOT SIMILAR TO 'x%(y|_)' FROM t", "SELECT NOT a RLIKE '^(?:x.*(y|.))$' FROM t"),
        ("SELECT SPLIT_INDEX(a, '|', 0) FROM t", r"SELECT get(split(a, CONCAT('\\Q', '|', '\\E')), 0) FROM t"),
        ("SELECT f(SUM(a)) FROM t", "SELECT `f@2`(CAST(SUM(a) AS INT)) FROM t"),
        ("SELECT f(f(SUM(a))) FROM t", "SELECT `f@2`(`f@2`(CAST(SUM(a) AS INT))) FROM t"),
        ("SELECT CAST(a AS TIMESTAMP(3)) FROM t", "SELECT CAST(a AS TIMESTAMP_NTZ) FROM t"),
        ("SELECT CAST(a AS TIMESTAMP_LTZ(3)) FROM t", "SELECT CAST(a AS TIMESTAMP_LTZ) FROM t"),
        ("SELECT CAST(a AS ROW<x INT, y STRING>) FROM t", "SELECT CAST(a AS STRUCT<x: INT, y: STRING>) FROM t"),
        ("SELECT CAST(a AS ARRAY<INT NOT NULL>) FROM t", "SELECT CAST(a AS ARRAY<INT>) FROM t"),
        ("SELECT a IS NOT NULL, b FROM t", "SELECT NOT a IS NULL, b FROM t"),
        ("SELECT a[1], ROW(1, 2), MAP['k', 1] FROM t", "SELECT try_element_at(a, 1), struct(1, 2), map('k', 1) FROM t"),
        (r"SELECT 'it''s \d' FROM t", r"SELECT 'it\'s \\d' FROM t"),
        ("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1 AS x", "CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1 AS x"),
    ],
)
def test_a_query_in_sparks_words(query, expected):
    assert spark(query) == expected


def test_a_table_function_with_several_columns_returns_structs():
    query = "SELECT x, y FROM t, LATERAL TABLE(f(a)) AS T2(x, y)"
    assert spark(query, inlined=frozenset({"f"})) == "SELECT x, y FROM t LATERAL VIEW inline(`f@2`(a)) T2 AS x, y"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT a.b, sum(c), d AS e FROM t", ["column", "expression", "alias"]),
        ("WITH c AS (SELECT x FROM t) SELECT EXTRACT(DAY FROM d), y FROM c", ["expression", "column"]),
        ("SELECT * FROM t", []),
        ("VALUES (1)", []),
    ],
)
def test_the_query_says_where_the_names_of_columns_come_from(query, named):
    assert named_columns(query) == named
