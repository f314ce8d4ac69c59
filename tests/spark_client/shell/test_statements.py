"""The ends of statements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.errors import SqlglotError

from spark_client.shell.loop import split_statements
from spark_client.sql.text.dialect import RemoteSpark


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1;", ["SELECT 1"], ""),
        ("SELECT 1; SELECT\n 2 ;\n", ["SELECT 1", "SELECT\n 2"], ""),
        ("SELECT 1; SELECT 2", ["SELECT 1"], " SELECT 2"),
        ("SELECT ';' AS `a;b`; -- and; so on\n", ["SELECT ';' AS `a;b`"], ""),
        ("SELECT 1 /* ; */ + 1;", ["SELECT 1 /* ; */ + 1"], ""),
        (";;\n;", [], ""),
        ("SELECT 'open; ", [], "SELECT 'open; "),
        ("SELECT 1; SELECT 'open; ", ["SELECT 1"], " SELECT 'open; "),
        ("", [], ""),
    ],
)
def test_semicolons_end_statements_where_they_are_no_text(text, statements, rest):
    assert split_statements(text) == (statements, rest)


def words(text):
    """Returns a text without comments; all of it if a string is open."""
    try:
        return [token.text for token in RemoteSpark().tokenize(text)]
    except SqlglotError:
        return text.split()


@given(st.lists(st.sampled_from(["SELECT", " 1", "';'", "`;`", "\n", " -- ;\n", "/* ; */", ";"]), max_size=12))
def test_line_by_line_gives_what_the_whole_gives(parts):
    text = "".join(parts) + "\n"
    whole, rest = split_statements(text)
    found, still_open = [], ""
    for line in text.splitlines(keepends=True):
        statements, still_open = split_statements(still_open + line)
        found += statements
    assert [words(each) for each in found] == [words(each) for each in whole]
    assert words(still_open) == words(rest)
