"""Queries of cases as SQL: statements before them, views, and the table API."""

import pytest

from tests.conformance.cases import FunctionWords
from tests.conformance.checking import CaseError
from tests.conformance.statements import created_view, statements_of
from tests.conformance.table_api import sql_of

ARGUMENTS = [{"name": "r", "kind": "set-semantic table"}, {"name": "i", "kind": "scalar"}]
PROCESS = FunctionWords("F", "", (), "", "", raw={"arguments": ARGUMENTS})


def read(query, setup=(), *, refused=False):
    return statements_of(query, setup, [PROCESS], refused=refused)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("t.process(f, 1)", "SELECT * FROM f(r => TABLE t, i => 1)"),
        ("t.partitionBy(name).process(f, i = 1)", "SELECT * FROM f(r => TABLE t PARTITION BY (name), i => 1)"),
        (
            "fromCall(f, r = t partitioned by name ordered by ts asc, score desc, on_time = descriptor(ts))",
            "SELECT * FROM f(r => TABLE t PARTITION BY name ORDER BY (ts asc, score desc), on_time => DESCRIPTOR(ts))",
        ),
        (
            'env.from("t").partitionBy($("name")).process("f", lit(1).asArgument("i"))',
            "SELECT * FROM f(r => TABLE t PARTITION BY (name), i => 1)",
        ),
        ("c.fromChangelog()", "SELECT * FROM FROM_CHANGELOG(input => TABLE c)"),
        ("t.toChangelog(op = descriptor(o))", "SELECT * FROM TO_CHANGELOG(input => TABLE t, op => DESCRIPTOR(o))"),
        ('t.select($("a"), call("f", $("b")).as("c"))', "SELECT a, f(b) AS c FROM t"),
        ("t.where(f(a) > 8).select(a)", "SELECT a FROM (SELECT * FROM t WHERE f(a) > 8) AS chain_1"),
        ("t.groupBy(k).select(k, total(v).as(s)).execute()", "SELECT k, total(v) AS s FROM t GROUP BY k"),
        (
            't.where($("a").isGreater(lit(3)).and($("b").isEqual("x")))',
            "SELECT * FROM t WHERE a > 3 AND b = 'x'",
        ),
        ("t.joinLateral(f(a).as(x, y))", "SELECT * FROM t, LATERAL TABLE(f(a)) AS chain_1(x, y)"),
    ],
)
def test_calls_of_the_table_api_are_sql(text, sql):
    assert sql_of(text, {"F": ARGUMENTS}) == [sql]


def test_a_function_behind_another_one_gets_a_view():
    view, query = sql_of("t.where(a > 1).partitionBy(b).process(f, 2)", {"F": ARGUMENTS})
    assert view == "CREATE OR REPLACE TEMPORARY VIEW chain_1 AS SELECT * FROM t WHERE a > 1"
    assert query == "SELECT * FROM f(r => TABLE chain_1 PARTITION BY (b), i => 2)"


def test_a_method_that_is_not_known_is_named():
    with pytest.raises(CaseError, match="methods of a table that are known, not 'fly'"):
        sql_of("t.fly(1)", {})


def test_assigned_views_and_statements_before_the_query_are_set_up():
    told = read("view t2 := t.select(a); SET 'x.y' = '3'; CREATE VIEW v AS SELECT * FROM t2; SELECT * FROM v;")
    create = "CREATE OR REPLACE TEMPORARY VIEW"
    assert told.setup == [f"{create} t2 AS SELECT a FROM t", f"{create} v AS SELECT * FROM t2"]
    assert told.query == "SELECT * FROM v"
    assert told.config == {"x.y": "3"}
    assert [created_view(each) for each in told.setup] == ["t2", "v"]


def test_a_sink_is_left_out_unless_the_case_is_refused():
    assert read("INSERT INTO s (a, b) SELECT 1, 2").query == "SELECT 1, 2"
    assert read("INSERT INTO s SELECT 1", refused=True).query == "INSERT INTO s SELECT 1"


def test_comments_explanations_and_declarations_of_functions_do_not_count():
    told = read(
        "-- it's\nEXPLAIN PLAN FOR SELECT '--' /* so */ FROM t", ["CREATE TEMPORARY SYSTEM FUNCTION f AS 'x.F'"]
    )
    assert " ".join(told.query.split()) == "SELECT '--' FROM t"
    assert told.setup == []


@pytest.mark.parametrize("text", ["operator test; key = x % 2", "(declaration only)", "call f; then read", ""])
def test_prose_stays_as_it_is(text):
    assert read(text).query == text


def test_statements_with_then_between_them_are_several():
    told = read("CREATE VIEW v AS SELECT CASE WHEN a THEN b.c ELSE 1 END AS c FROM t then SELECT c FROM v")
    create = "CREATE OR REPLACE TEMPORARY VIEW"
    assert told.setup == [f"{create} v AS SELECT CASE WHEN a THEN b.c ELSE 1 END AS c FROM t"]
    assert told.query == "SELECT c FROM v"
    chained = read("x := t.select(a), then x.process(f, 1)", ["SELECT ' then SELECT 1'"])
    assert chained.setup == ["SELECT ' then SELECT 1'", f"{create} x AS SELECT a FROM t"]
    assert chained.query == "SELECT * FROM f(r => TABLE x, i => 1)"


def test_a_table_that_is_filled_and_then_read_is_a_view():
    told = read("INSERT INTO kept SELECT a FROM t; INSERT INTO s SELECT * FROM kept")
    assert told.setup == ["CREATE OR REPLACE TEMPORARY VIEW kept AS SELECT a FROM t"]
    assert told.query == "SELECT * FROM kept"


def test_statements_that_give_rows_are_kept_with_their_sinks():
    told = read("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO `b` SELECT 2; END")
    assert (told.setup, told.shown) == ([], [("a", "SELECT 1"), ("b", "SELECT 2")])
    assert read("SELECT 1; SELECT 2").shown == [("", "SELECT 1"), ("", "SELECT 2")]
    same = read("INSERT INTO a SELECT 1; INSERT INTO b SELECT 3; INSERT INTO a SELECT 2")
    assert same.query == "SELECT 1 UNION ALL SELECT 2"
    assert same.shown == [("b", "SELECT 3"), ("a", same.query)]
    assert read("INSERT INTO a SELECT 1; INSERT INTO b SELECT 2", refused=True).setup == ["INSERT INTO a SELECT 1"]


def test_what_the_case_has_in_other_fields_is_not_declared_again():
    told = read(
        "CREATE TABLE s (a INT, w AS f(a), PRIMARY KEY (a) NOT ENFORCED) WITH ('connector' = 'x');"
        "USE CATALOG c; DROP TABLE IF EXISTS t; ALTER TABLE t RENAME TO u; INSERT INTO s SELECT 1"
    )
    assert (told.setup, told.query) == ([], "SELECT 1")
    kept = read("CREATE TABLE kept WITH ('connector' = 'x') AS SELECT a AS b FROM t; SELECT b FROM kept")
    assert kept.setup == ["CREATE OR REPLACE TEMPORARY VIEW kept AS SELECT a AS b FROM t"]
    columns = read("CREATE VIEW v (x, y) AS SELECT a, b FROM t; SELECT x FROM v")
    assert columns.setup == ["CREATE OR REPLACE TEMPORARY VIEW v (x, y) AS SELECT a, b FROM t"]
