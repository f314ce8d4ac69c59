"""Texts as trees: a parsed text is written unchanged, and errors name their place."""

import sys

import pytest
import sqlglot
from sqlglot import exp

from spark_client import PlanError
from spark_client.sql.text.dialect import RemoteSpark
from spark_client.sql.text.parsing import Text, error_at
from spark_client.sql.text.writers import canonical


def rewritten(sql):
    return canonical(Text(sql, None, {}).tree)


@pytest.mark.parametrize(
    "item",
    [
        "my_avg(DISTINCT x)", "MyAvg(x) FILTER(WHERE y > 1)", "`my_avg@2`(x)", "count(*)", "nvl(a, b)", "CEIL(x)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)", "first(x) IGNORE NULLS", "date_add(d, 1)", "last_value(x)",
        "EXTRACT(YEAR FROM d)", "a DIV b", "filter(xs, x -> x + y)", "INTERVAL '1 2:03' DAY TO MINUTE", "a.b.c",
        "struct(a AS x, b)", "m['a']", "ARRAY(1, 2)[0]", "approx_percentile(x, ARRAY(0.5), 100)",
        "TRIM(BOTH 'x' FROM y)",
        "f(x) OVER (PARTITION BY a ORDER BY b RANGE BETWEEN INTERVAL '20' MINUTE PRECEDING AND CURRENT ROW)",
    ],
)  # fmt: skip
def test_a_call_comes_out_as_it_went_in(item):
    sql = f"SELECT {item} AS z FROM t"
    assert rewritten(sql) == sql


@pytest.mark.parametrize(
    ("literal", "value"),
    [("'it''s'", "it's"), (r"'a\\d'", r"a\d"), ('"a\'b"', "a'b"), (r"'x\ny'", "x\ny"), (r"r'a\d'", r"a\d")],
)
def test_a_string_keeps_its_value(literal, value):
    def read(sql):
        return sqlglot.parse_one(sql, dialect=RemoteSpark).find(exp.Literal, exp.RawString).name

    assert read(f"SELECT {literal}") == read(rewritten(f"SELECT {literal}")) == value


def test_qualify_stays_a_clause():
    sql = "SELECT a FROM t QUALIFY f(x) OVER (ORDER BY a) > 1"
    assert rewritten(sql) == sql


def test_window_is_a_function_or_a_column_unless_it_begins_the_clause():
    sql = "SELECT window.start, f(x) OVER w FROM t GROUP BY window(ts, '5 minutes') WINDOW w AS (ORDER BY a)"
    assert rewritten(sql) == sql
    assert rewritten("SELECT f(x) FROM t GROUP BY window") == "SELECT f(x) FROM t GROUP BY window"


def test_called_names_are_names_before_parentheses():
    text = "SELECT f (x), `g@2`(y), db.h(z), 'i(x)', k FROM t -- j(x)\n WHERE l.m > n(1)"
    assert list(Text(text, None, {}).called) == ["f", "g@2", "n"]


def test_names_are_found_in_a_text_that_is_no_sql():
    assert "f" in Text("SELECT f(x), 'open", None, {}).called


def test_an_error_of_syntax_has_its_place():
    with pytest.raises(PlanError, match=r"^line 2, column 13: the query is not understood at or near 'FROM'"):
        rewritten("SELECT a,\n       f(x  FROM t")


def test_a_statement_that_is_not_understood_is_refused_by_its_name():
    with pytest.raises(PlanError, match="statement SHOW"):
        rewritten("SHOW TABLES IN f")


def test_the_depth_of_a_query_is_bounded_by_pythons():
    calls = f"SELECT {'abs(' * 60}f(x){')' * 60}, g(1, abs(f(2), b), 3) FROM t"
    assert rewritten(calls) == calls
    deep = f"SELECT {'abs(1 + ' * 60}f(x){')' * 60} FROM t"
    with pytest.raises(PlanError, match=r"nested too deeply .* sys\.setrecursionlimit"):
        rewritten(deep)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        assert rewritten(deep) == deep
    finally:
        sys.setrecursionlimit(limit)


def test_an_error_about_a_node_has_the_place_of_its_name():
    tree = Text("SELECT a,\n  g(b) FROM t", None, {}).tree
    assert str(error_at(tree.expressions[1], "no g")) == "line 2, column 3: no g"
    assert str(error_at(exp.column("made"), "no place")) == "no place"


def test_fields_in_braces_are_names_or_values():
    text = Text("SELECT {n}, '{{}}' FROM {orders}", None, {"n": 3, "orders": "a table"})
    readable = text.readable()
    assert "'{}'" in readable and "{n}" not in readable
    (first, second), table = text.tree.expressions, text.tree.find(exp.Table)
    assert isinstance(first, exp.Var) and second.name == "{}"
    assert text.field_names()[table.name] == "orders"
    with pytest.raises(PlanError, match=r"\{other\} in the query"):
        Text("SELECT {other}", None, {"n": 3}).readable()
