"""GROUP BY as keys and grouping sets."""

import pytest
from sqlglot import exp

from spark_client import PlanError
from spark_client.base.identifiers import Identifiers
from spark_client.sql.groups.grouping import read_grouping
from spark_client.sql.rows.sources import SelectSource
from spark_client.sql.text.parsing import Text


class Rows(SelectSource):
    """The rows of a table t(a, b, c, d), without Spark to ask."""

    columns = ("a", "b", "c", "d")


def grouping(clause, items="a", *, case_sensitive=False):
    select = Text(f"SELECT {items} FROM t GROUP BY {clause}", None, {}).tree
    rows = Rows(select, Identifiers(case_sensitive=case_sensitive).key, run=None)
    read = read_grouping(rows, select, lambda tree: tree.find(exp.Anonymous) is not None)
    keys = [key.sql("spark") for key in read.keys]
    return keys, None if read.sets is None else [[keys[place] for place in chosen] for chosen in read.sets]


@pytest.mark.parametrize(
    ("clause", "keys"),
    [
        ("a, b", ["a", "b"]),
        ("a, t.a, A", ["a"]),
        ("(a, b)", ["a", "b"]),
        ("a + 1, b", ["a + 1", "b"]),
        ("2, 1", ["b % 2", "a"]),
        ("p", ["b % 2"]),
        ("b", ["b"]),
        ("ALL", ["a", "b % 2"]),
    ],
)
def test_keys_are_expressions_ordinals_and_aliases(clause, keys):
    assert grouping(clause, "a, b % 2 AS p, f(c) AS n") == (keys, None)


@pytest.mark.parametrize(
    ("clause", "items", "keys"),
    [("a, t.a, A", "a", ["a", "A"]), ("B", "c AS b, d AS B, f(a)", ["d"]), ("ALL", "f(c) AS N, n", ["n"])],
)
def test_a_case_sensitive_session_has_keys_that_differ_in_case(clause, items, keys):
    assert grouping(clause, items, case_sensitive=True) == (keys, None)


def test_a_column_goes_before_an_alias():
    assert grouping("b", "a AS b, f(c)") == (["b"], None)


@pytest.mark.parametrize(
    ("clause", "sets"),
    [
        ("ROLLUP (a, b)", [["a", "b"], ["a"], []]),
        ("a, b WITH ROLLUP", [["a", "b"], ["a"], []]),
        ("CUBE (a, b)", [["a", "b"], ["a"], ["b"], []]),
        ("a, b WITH CUBE", [["a", "b"], ["a"], ["b"], []]),
        ("ROLLUP (a, (b, c))", [["a", "b", "c"], ["a"], []]),
        ("GROUPING SETS ((a, b), a, ())", [["a", "b"], ["a"], []]),
        ("a, b GROUPING SETS ((b), ())", [["b"], []]),
        ("a, ROLLUP (b)", [["a", "b"], ["a"]]),
        ("ROLLUP (a), CUBE (b)", [["a", "b"], ["a"], ["b"], []]),
        ("GROUPING SETS (ROLLUP (a), (b))", [["a"], [], ["b"]]),
        ("GROUPING SETS ((a), (a))", [["a"], ["a"]]),
    ],
)
def test_grouping_sets_are_what_they_are_short_for(clause, sets):
    assert grouping(clause)[1] == sets


@pytest.mark.parametrize(
    ("clause", "items", "message"),
    [
        ("3", "a, f(b)", "GROUP BY 3: there are 2 columns"),
        ("2", "a, f(b)", "line 1, column 11: GROUP BY 2: that is an aggregate"),
        ("1", "*, f(b)", r"GROUP BY 1: that is a \*"),
    ],
)
def test_an_ordinal_that_is_no_key_is_refused(clause, items, message):
    with pytest.raises(PlanError, match=message):
        grouping(clause, items)
