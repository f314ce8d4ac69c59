"""Settings of Spark's parser that are not followed are refused only where they give a text another meaning."""

import pytest

from spark_client import PlanError
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.settings import ParserSettings, parser_settings


class _Conf:
    def __init__(self, settings):
        self.getAll = settings

    def get(self, key):
        return "true"


class _Session:
    def __init__(self, **settings):
        self.conf = _Conf({f"spark.sql.{key.replace('__', '.')}": value for key, value in settings.items()})


CASES = [
    ({"parser__quotedRegexColumnNames": "true"}, "SELECT `a.*` FROM t", "SELECT `a`, `f@1`(b) FROM t"),
    ({"legacy__parser__havingWithoutGroupByAsWhere": "true"}, "SELECT f(a) FROM t HAVING b",
     "SELECT a FROM t GROUP BY a HAVING a"),
    ({"groupByOrdinal": "false"}, "SELECT a FROM t GROUP BY 1", "SELECT a FROM t GROUP BY a, '1'"),
    ({"legacy__ctePrecedencePolicy": "legacy"}, "WITH c AS (SELECT 1) SELECT * FROM (WITH C AS (SELECT 2) TABLE C)",
     "WITH c AS (SELECT 1), d AS (SELECT 2) SELECT * FROM c"),
    ({"ansi__relationPrecedence": "true"}, "SELECT 1 FROM a, b JOIN c ON x = y", "SELECT 1 FROM a JOIN b ON x = y, c"),
    ({"ansi__relationPrecedence": "TRUE"}, "SELECT 1 FROM a, b LEFT JOIN c USING (x), d", "SELECT 1 FROM a, b, c"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "refused", "taken"), CASES)
def test_a_meaning_that_is_not_followed_is_refused_with_the_setting(setting, refused, taken):
    settings = parser_settings(_Session(**setting))
    (key,) = settings.others
    with pytest.raises(PlanError, match=f"with {key} = .* has another meaning in Spark"):
        Text(refused, None, {}, settings=settings).tree  # noqa: B018
    for text in (Text(taken, None, {}, settings=settings), Text(refused, None, {})):
        assert text.tree


def test_settings_are_those_of_the_session():
    assert parser_settings(_Session()) == ParserSettings()
    read = parser_settings(_Session(ansi__doubleQuotedIdentifiers="true", parser__escapedStringLiterals="true"))
    assert read == ParserSettings(escaped=True, quoted_names=True)
    assert not parser_settings(_Session(ansi__doubleQuotedIdentifiers="true", ansi__enabled="false")).quoted_names
    (item,) = Text('SELECT "a b"', None, {}, settings=read).tree.expressions
    assert (item.name, item.this.quoted) == ("a b", True)
