"""Comments are blanked, and nothing else is: positions stay."""

import pytest

from spark_client.sql.text.parsing import Text
from spark_client.sql.text.tokens import without_comments
from spark_client.sql.text.writers import canonical


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a -- b\nc", "a     \nc"),
        ("a /* b\n*/ c", "a     \n   c"),
        ("a /* b /* c */ d */ e", f"a {' ' * 17} e"),
        ("a --b \\\nc\nd", "a      \n \nd"),
        ("SELECT /*+ BROADCAST(t) */ a --b", "SELECT /*+ BROADCAST(t) */ a    "),
        ("'--' || \"/*\" || `--` -- `", "'--' || \"/*\" || `--`     "),
        (r"'it\'s --' --x", r"'it\'s --'    "),
        ("'it''s --' --x", "'it''s --'    "),
        (r"r'\' --x", r"r'\'    "),
        (r"bar'\'--'", r"bar'\'--'"),
        ("1--1", "1   "),
        ("a / * b", "a / * b"),
        ("a /* b", "a /* b"),
        ("a 'b -- c", "a 'b     "),
    ],
)
def test_comments_become_blanks(sql, expected):
    assert without_comments(sql) == expected
    assert len(expected) == len(sql)


def test_a_keyword_of_several_words_may_have_comments_between_them():
    sql = "SELECT a FROM t GROUP/**/BY a ORDER -- by\n BY a IS /* no */ NOT NULL LIMIT 1"
    assert canonical(Text(sql, None, {}).tree) == "SELECT a FROM t GROUP BY a ORDER BY a IS NOT NULL LIMIT 1"
