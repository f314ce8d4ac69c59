"""Calls that are passed tables: their arguments in the tree, and the errors with their places."""

import pytest
from sqlglot import exp

from spark_client import PlanError
from spark_client.sql.rows.table_calls import call_of_relation, described, given_table
from spark_client.sql.statement_sets import statements_of
from spark_client.sql.tables.process_functions import arguments_of
from spark_client.sql.tables.window_functions import has_window_calls, is_window_call, read_window_call
from spark_client.sql.text.parsing import Text, error_at, place_of
from spark_client.sql.text.writers import canonical


def call(source):
    return next(node for node in Text(f"SELECT * FROM {source}", None, {}).tree.find_all(exp.Anonymous))


def arguments(source):
    return arguments_of(call(source))


def table(argument):
    given = given_table(arguments(f"f({argument})")[0])
    return canonical(given.query), given.partition_by, given.order_by


@pytest.mark.parametrize(
    ("argument", "rows", "keys", "order"),
    [
        ("TABLE t", "t", [], []),
        ("TABLE db.t PARTITION BY partition", "db.t", ["partition"], []),
        ("TABLE t PARTITION BY (a, `b c`) ORDER BY (ts DESC, timestamp)", "t", ["a", "b c"],
         ["ts DESC NULLS LAST", "timestamp ASC NULLS FIRST"]),
        ("TABLE (SELECT 1) ORDER BY `b c` NULLS LAST", "(SELECT 1)", [], ["b c ASC NULLS LAST"]),
        ("(SELECT 1)", "(SELECT 1)", [], []),
        ("(SELECT 1) ORDER BY a, b", "(SELECT 1)", [], ["a ASC NULLS FIRST"]),
        ("(SELECT 1) UNION (SELECT 2)", "((SELECT 1) UNION (SELECT 2))", [], []),
        ("(WITH c AS (SELECT 1) SELECT * FROM c) PARTITION BY k", "(WITH c AS (SELECT 1) SELECT * FROM c)", ["k"], []),
        ("TABLE(TUMBLE(TABLE t, 1)) PARTITION BY k", "(TUMBLE(TABLE t, 1))", ["k"], []),
        ("TUMBLE(TABLE t, 1) PARTITION BY k", "TUMBLE(TABLE t, 1)", ["k"], []),
        ("HOP(TABLE t)", "HOP(TABLE t)", [], []),
        ("TABLE range(3)", "range(3)", [], []),
    ],
)  # fmt: skip
def test_a_table_argument_is_a_query_with_its_columns(argument, rows, keys, order):
    assert table(argument) == (f"SELECT * FROM {rows}", keys, order)


def test_arguments_have_names_or_positions():
    assert list(arguments("f(TABLE t, DEFAULT, 'DEFAULT', DESCRIPTOR(a, order))")) == [0, 2, 3]
    named = arguments("f(limit => 1 + 1, `a b` => DEFAULT, table => TABLE t, on_time => DESCRIPTOR(a, order))")
    assert list(named) == ["limit", "table", "on_time"]
    assert canonical(named["limit"]) == "1 + 1"
    assert described(named["on_time"]) == ["a", "order"]
    assert described(named["limit"]) is None and given_table(named["limit"]) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("f(1, r => TABLE t)", "f: arguments are passed by position or by name, not by both"),
        ("f(r => 1, r => 2)", "f: argument 'r' is passed twice"),
        ("f(TABLE t PARTITION BY a.b)", "a name of a column is expected, not 'a.b'"),
        ("f(TABLE t PARTITION BY (k, j + 1))", r"a name of a column is expected, not 'j \+ 1'"),
        ("f(TABLE t ORDER BY lower(k) DESC)", r"a name of a column is expected, not 'lower\(k\)'"),
        ("f(DESCRIPTOR(a.b))", "a name of a column is expected, not 'a.b'"),
        ("f(1,, 2)", "line 1, column 19: an argument is missing$"),
        ("f(r =>)", "line 1, column 21: an argument is missing"),
        ("f(1,\n)", "line 2, column 1: an argument is missing"),
        ("f(TABLE t PARTITION BY ORDER BY ts)", "line 1, column 38: the name of a column is expected"),
        ("f(TABLE t PARTITION BY k", "line 1, column 38: the query is not understood at or near 'k'"),
    ],
)
def test_an_argument_that_cannot_be_read_is_refused(source, message):
    with pytest.raises(PlanError, match=message):
        [(given_table(value), described(value)) for value in arguments(source).values()]


def test_a_call_stands_in_table_and_after_lateral_where_it_was_written():
    sql = "SELECT *\nFROM TABLE(f(TABLE t)) x,\n  LATERAL `f@1`(r => 1), db.f(TABLE t) LATERAL VIEW f(k) AS n"
    relations = [node for node in Text(sql, None, {}).tree.walk() if isinstance(node, (exp.Table, exp.Lateral))]
    found = sorted((place_of(each), each.name) for each in map(call_of_relation, relations) if each is not None)
    assert found == [("line 2, column 12: ", "f"), ("line 3, column 11: ", "f@1")]


@pytest.mark.parametrize(
    ("source", "is_window"),
    [
        ("TUMBLE(TABLE t)", True), ("session(data => TABLE t)", True), ("hop((SELECT 1) PARTITION BY k)", True),
        ("session(t)", False), ("session()", False), ("other(TABLE t)", False),
    ],
)  # fmt: skip
def test_a_window_function_is_known_by_its_table(source, is_window):
    assert is_window_call(call(source)) == is_window


def test_tokens_tell_whether_there_may_be_a_window_function():
    texts = ["f(hop(TABLE t", "HOP(DATA => t", "hop(a, b)", "'open"]
    assert [has_window_calls(Text(sql, None, {}).tokens) for sql in texts] == [True, True, False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("TABLE t, ts, 1", "TIMECOL must be DESCRIPTOR"),
        ("TABLE t, DESCRIPTOR(a, b), 1", r"with 1 column, found DESCRIPTOR\(a, b\), which has 2"),
        ("TABLE t ORDER BY ts, DESCRIPTOR(ts), 1", "Tumble window TVF doesn't support order by clause"),
        ("TABLE t PARTITION BY k, DESCRIPTOR(ts), 1", "TUMBLE takes no PARTITION BY"),
        ("TABLE t, DESCRIPTOR(ts)", "TUMBLE lacks the argument SIZE; it takes DATA, TIMECOL, SIZE, OFFSET"),
        ("TABLE t, DESCRIPTOR(ts), 1, 2, 3", "argument 5 is not one of these"),
        ("TABLE t, DESCRIPTOR(ts), SIZE => 1, SIZE => 2", "argument 4 is not one of these, or is given twice"),
        ("SIZE => 1, DATA => TABLE t", "Illegal first argument to Window TVF TUMBLE: Expecting DATA"),
        ("DATA => 1, TIMECOL => DESCRIPTOR(ts), SIZE => 1", "TUMBLE lacks the name of a table after TABLE"),
    ],
)
def test_a_window_function_refuses_other_arguments(arguments, message):
    with pytest.raises(PlanError, match=message):
        read_window_call(call(f"TUMBLE({arguments})"))


SET = "{begin}\n  INSERT INTO a SELECT f(x) FROM t;;\n  INSERT INTO b TABLE c; {end}"


@pytest.mark.parametrize("begin", ["EXECUTE STATEMENT SET\n BEGIN", "begin statement set;"])
def test_the_statements_of_a_set_have_their_places_in_the_text(begin):
    first, second = statements_of(Text(SET.format(begin=begin, end="END;"), None, {}))
    assert canonical(first.tree) == "INSERT INTO a SELECT f(x) FROM t"
    assert canonical(second.tree) == "INSERT INTO b SELECT * FROM c"
    assert (first.called, second.called) == (["f"], [])
    lines = begin.count("\n")
    wrong = first.tree.find(exp.Anonymous)
    assert str(error_at(wrong, "no f")) == f"line {lines + 2}, column 24: no f"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            SET.format(begin="EXECUTE STATEMENT SET BEGIN", end=""),
            "line 1, column 1: a statement set must end with END",
        ),
        ("\n EXECUTE STATEMENT SET BEGIN END", "line 2, column 2: a statement set needs at least one INSERT"),
        (
            SET.format(begin="BEGIN STATEMENT SET; SELECT 1;", end="END"),
            "line 1, column 22: a statement set takes INSERT",
        ),
    ],
)
def test_a_set_without_inserts_or_end_is_refused(sql, message):
    with pytest.raises(PlanError, match=message):
        statements_of(Text(sql, None, {}))


def test_other_texts_are_no_sets():
    for sql in ("SELECT 1", "", "EXECUTE IMMEDIATE 'x'", "'open"):
        assert statements_of(Text(sql, None, {})) is None
