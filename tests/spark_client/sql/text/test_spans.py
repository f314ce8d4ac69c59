"""Each node knows the text that it was read from: parsed alone, that text gives the node again."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.text.dialect import RemoteSpark
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.spans import span_of
from spark_client.sql.text.writers import canonical
from tests.properties import examples
from tests.spark.sql.test_tpcds import QUERIES
from tests.spark_client.sql.text.test_dialect import AS_WRITTEN

PLACES = {
    exp.From: "SELECT 1 {}", exp.Hint: "SELECT {} 1", exp.CTE: "WITH {} SELECT 1", exp.Ordered: "SELECT 1 ORDER BY {}",
    exp.DataType: "SELECT CAST(a AS {})", exp.Any: "SELECT a LIKE {}", exp.All: "SELECT a LIKE {}",
    exp.Schema: "INSERT INTO {} SELECT 1", exp.Identifier: "SELECT 1 AS {}", exp.Insert: "{}", exp.Create: "{}",
} | dict.fromkeys((
    exp.Join, exp.Where, exp.Group, exp.Having, exp.Qualify, exp.Order, exp.Sort, exp.Cluster, exp.Distribute,
    exp.Limit, exp.Offset, exp.TableSample, exp.Pivot,
), "SELECT 1 FROM t {}")  # fmt: skip
"""Statements in which a node of a class can be alone."""
WORDS = re.compile(r"\w+(\s+\w+)+")
"""A keyword of several words."""
GAPS = st.sampled_from([" ", "  ", "\n", "\t", " /* , ' */ ", "/**/", " -- it's `é`\n", "  /* f(a,\nb) */"])
TEXTS = [line for line in AS_WRITTEN.strip().splitlines() if not line.startswith("EXECUTE")] + list(QUERIES.values())


def places(node):
    """Statements in which the text of a node can be alone."""
    if isinstance(node, exp.Lateral):
        return ["SELECT 1 FROM t {}", "SELECT 1 FROM t, {}"]
    if isinstance(node, exp.Window) and node.arg_key == "windows":
        return ["SELECT 1 FROM t WINDOW {}"]
    if isinstance(node, exp.Query | exp.Table | exp.Values):
        return ["{}", "SELECT 1 FROM {}", "SELECT 1 FROM ({})", "INSERT INTO {} SELECT 1"]
    return [PLACES.get(type(node), "SELECT {}")]


def found_alone(node, text):
    for place in places(node):
        try:
            tree = Text(place.format(text), None, {}).tree
        except PlanError:
            continue
        for each in tree.find_all(type(node)):
            if canonical(each) == canonical(node) and span_of(each) is not None and span_of(each).text == text:
                return True
    return False


@st.composite
def spaced(draw):
    """A text with other white space and comments between its tokens."""
    sql = draw(st.sampled_from(TEXTS))
    tokens = RemoteSpark().tokenize(sql)
    pieces = [sql[tokens[0].start : tokens[0].end + 1]]
    for before, token in itertools.pairwise(tokens):
        gap = sql[before.end + 1 : token.start]
        if gap.isspace() and not sql[token.start :].startswith("/*+"):
            gap = draw(GAPS)
        text = sql[token.start : token.end + 1]
        if WORDS.fullmatch(text):
            text = re.sub(r"\s+", lambda _: draw(GAPS), text)
        pieces += [gap, text]
    return "".join(pieces)


def check(sql):
    tree = Text(sql, None, {}).tree
    alone = [(node, span_of(node).text) for node in tree.walk() if span_of(node) is not None]
    assert [(type(node), text) for node, text in alone if not found_alone(node, text)] == []
    assert span_of(tree).text == sql.strip()


@pytest.mark.parametrize("sql", TEXTS)
def test_the_text_of_each_node_gives_the_node(sql):
    check(sql)


@given(spaced())
@examples(60, deadline=None)
def test_the_text_of_each_node_gives_the_node_whatever_is_between_its_tokens(sql):
    check(sql)


@pytest.mark.parametrize(
    ("sql", "kind", "texts"),
    [
        ("SELECT f(ALL x), f(DISTINCT y)", exp.Column, ["x", "y"]),
        ("SELECT ((a + b)) * c", exp.Paren, ["((a + b))", "(a + b)"]),
        ("SELECT a + /* one */ 1 + b", exp.Add, ["a + /* one */ 1 + b", "a + /* one */ 1"]),
        ("SELECT x = ANY (SELECT 1) AND NOT a = b", exp.EQ, ["x = ANY (SELECT 1)", "a = b"]),
        ("SELECT 'a' /* and */ 'b', 1L, r'\\d'", exp.Literal, ["'a' /* and */ 'b'", "1L"]),
        ("SELECT 1 UNION SELECT 2 ORDER BY 1 -- all\n LIMIT 3", exp.Select, ["SELECT 1", None]),
        ("SELECT 1 LIMIT 2, 3", exp.Limit, [None]),
        ("SELECT sum(x) FILTER (WHERE x > 1)", exp.Where, [None]),
        ("SELECT INTERVAL 1 DAY 2 HOURS", exp.Interval, [None, None]),
        ("WITH x AS ( SELECT 1 ) (SELECT 2)", exp.CTE, ["x AS ( SELECT 1 )"]),
        ("SELECT /*+ REPARTITION(3) */ a", exp.Hint, ["/*+ REPARTITION(3) */"]),
    ],
)
def test_a_node_has_its_own_text_or_none(sql, kind, texts):
    nodes = Text(sql, None, {}).tree.find_all(kind, bfs=False)
    assert [span.text if (span := span_of(node)) is not None else None for node in nodes] == texts


def test_expressions_tables_and_queries_have_a_text_and_operators_of_a_chain_do_not():
    tree = Text(
        "SELECT a, f(b) AS x, c + 1 FROM t AS u JOIN (SELECT 1) AS v ON a = b WHERE NOT c IS NULL", None, {}
    ).tree
    without = {type(node) for node in tree.walk() if span_of(node) is None}
    assert without <= {exp.TableAlias, exp.Identifier, exp.Null}


def test_a_copy_keeps_its_text_and_a_hint_is_read_from_a_text_of_its_own():
    tree = Text("SELECT /*+ BROADCAST(u) */ a  +  b FROM t", None, {}).tree
    assert span_of(tree.copy().expressions[0]).text == "a  +  b"
    assert all(span_of(node) is None for node in tree.args["hint"].walk() if node is not tree.args["hint"])
