"""Which items and calls a query needs for every row, by its text alone."""

import pytest
from sqlglot import exp

from spark_client.sql.fewer_calls.needed_items import needed_calls, needed_items
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import canonical


def tree(sql):
    return Text(sql, None, {}).tree


def needed(sql):
    """Returns the needed items of each SELECT, from the outermost; True for all, False for none."""
    query = tree(sql)
    found = needed_items(query, str.lower, lambda name: name == "remote")
    return [
        (True if found[id(select)] is None else sorted(found[id(select)])) if id(select) in found else False
        for select in query.find_all(exp.Select)
    ]


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ("SELECT a, f(b) FROM t WHERE a > 1", [True]),
        ("SELECT a FROM t UNION ALL (SELECT b FROM u ORDER BY b LIMIT 2)", [True, True]),
        ("SELECT a FROM t EXCEPT SELECT b FROM u", [False, False]),
        ("SELECT a FROM (SELECT a, b FROM t) AS s", [True, ["a"]]),
        ("SELECT double(S.A), remote(b, 1) FROM (SELECT a, b, c FROM t WHERE d > 1) AS s", [True, ["a", "b"]]),
        ("SELECT a FROM (SELECT a, b AS c FROM (SELECT a, b FROM t) AS r) AS s", [True, ["a"], ["a"]]),
        ("SELECT k, sum(a) FROM (SELECT k, a FROM t) AS s GROUP BY k", [True, ["a", "k"]]),
        ("SELECT coalesce(a, b), a + b, CASE WHEN a THEN b END FROM (SELECT a, b FROM t) AS s", [True, []]),
        ("SELECT count(*) FROM (SELECT a FROM t) AS s", [True, []]),
        ("SELECT a FROM (SELECT a FROM t) AS s WHERE b > 1", [True, False]),
        ("SELECT k, sum(a) FROM (SELECT k, a FROM t) AS s GROUP BY k HAVING k > 1", [True, False]),
        ("SELECT a FROM (SELECT a FROM t) AS s JOIN u USING (a)", [True, False]),
        ("SELECT a FROM (SELECT a FROM t) AS s TABLESAMPLE (10 PERCENT)", [True, False]),
        ("WITH c AS (SELECT a FROM t) SELECT a FROM c", [True, False]),
        ("SELECT a FROM t WHERE b IN (SELECT b FROM u)", [True, False]),
    ],
)
def test_items_are_needed_if_the_result_has_them(sql, items):
    assert needed(sql) == items


@pytest.mark.parametrize(
    ("item", "calls"),
    [
        ("f(a) AS x", ["f(a)"]),
        ("CAST(-(f(a)) AS INT) + 1 > g(b)", ["f(a)", "g(b)"]),
        ("f(a).part[0].name", ["f(a)"]),
        ("f(g(a))", ["f(g(a))"]),
        ("f(a) + b", []),
        ("f(a) + NULL", []),
        ("f(a) = '1'", []),
        ("f(a) IS NULL OR g(b)", []),
        ("CASE WHEN f(a) THEN g(b) END", []),
        ("h(f(a))", []),
    ],
)
def test_calls_are_needed_if_no_value_beside_them_can_replace_theirs(item, calls):
    (parsed,) = tree(f"SELECT {item} FROM t").expressions

    def is_call(node):
        return isinstance(node, exp.Anonymous) and node.name in ("f", "g")

    assert [canonical(call) for call in needed_calls(parsed, is_call)] == calls
