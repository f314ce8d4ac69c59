"""The settings of a Spark session that change how Spark parses a text, for the texts that are parsed here as well."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.base.settings import all_settings, read_once
from spark_client.sql.text.nodes import Node

__all__ = ["BY_DEFAULT", "ParserSettings", "parser_settings", "reads_patterns", "require_understood", "value_of"]

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_MEANINGS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

_ANSI = "spark.sql.ansi.enabled"
_ESCAPED = "spark.sql.parser.escapedStringLiterals"
_QUOTED_NAMES = "spark.sql.ansi.doubleQuotedIdentifiers"
_LEFT_TO_RIGHT = "spark.sql.legacy.setopsPrecedence.enabled"
_CONSECUTIVE = "spark.sql.legacy.consecutiveStringLiterals.enabled"
_JOIN_FIRST = "spark.sql.ansi.relationPrecedence"
_REGEX_NAMES = "spark.sql.parser.quotedRegexColumnNames"
_HAVING_AS_WHERE = "spark.sql.legacy.parser.havingWithoutGroupByAsWhere"
_GROUP_BY_ORDINAL = "spark.sql.groupByOrdinal"
_OUTER_CTES = "spark.sql.legacy.ctePrecedencePolicy"


@dataclass(frozen=True)
class ParserSettings:
    """How to read a text. Without arguments, as a session does by default."""

    escaped: bool = False
    """Whether a backslash in a text in quotes is a backslash."""
    quoted_names: bool = False
    """Whether a name, not a text, is in double quotes."""
    left_to_right: bool = False
    """Whether INTERSECT has the precedence of UNION and EXCEPT."""
    consecutive: bool = False
    """Whether 'it''s' is two texts, not one with a quote."""
    others: frozenset[str] = frozenset()
    """Further settings that are not what they are by default."""


BY_DEFAULT = ParserSettings()


def parser_settings(spark: SparkSession) -> ParserSettings:
    """The settings of a session, as they are now."""
    known = read_once(spark, all_settings)

    def is_on(key: str) -> bool:
        return known.get(key, "false").strip().lower() == "true"

    others = {key for key in (_REGEX_NAMES, _HAVING_AS_WHERE) if is_on(key)}
    if known.get(_GROUP_BY_ORDINAL, "true").strip().lower() != "true":
        others.add(_GROUP_BY_ORDINAL)
    if known.get(_OUTER_CTES, "CORRECTED").strip().upper() != "CORRECTED":
        others.add(_OUTER_CTES)
    quoted_names = is_on(_QUOTED_NAMES)
    if quoted_names or is_on(_JOIN_FIRST):
        # These two need a third one, whose default depends on the environment of the JVM.
        ansi = known.get(_ANSI) or spark.conf.get(_ANSI) or "true"
        quoted_names = quoted_names and ansi.lower() == "true"
        others |= {_JOIN_FIRST} if is_on(_JOIN_FIRST) and ansi.lower() == "true" else set()
    return ParserSettings(is_on(_ESCAPED), quoted_names, is_on(_LEFT_TO_RIGHT), is_on(_CONSECUTIVE), frozenset(others))


def reads_patterns(spark: SparkSession) -> bool:
    """Whether a quoted name with other signs than letters and digits is a pattern of names for Spark."""
    return _REGEX_NAMES in parser_settings(spark).others


def require_understood(settings: ParserSettings, tree: Node) -> None:
    """Raise PlanError, which names the setting, if one of the session gives a part of the text another meaning."""
    for key, what in _other_meanings(tree) if settings.others else ():
        if key in settings.others:
            raise PlanError(
                f"with {key} = {_VALUES.get(key, 'true')} {what} has another meaning in Spark, which remote.sql does "
                f"not follow where it plans a remote call: {_REMEDIES[key]}"
            )


def _other_meanings(tree: Node) -> Iterator[tuple[str, str]]:
    for name in (part for column in tree.find_all(exp.Column) for part in column.parts):
        if isinstance(name, exp.Identifier) and name.quoted and not name.name.replace("_", "").isalnum():
            yield _REGEX_NAMES, f"the name `{name.name}`"
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        if select.args.get("having") and not group:
            yield _HAVING_AS_WHERE, "HAVING without GROUP BY"
        if group and any(isinstance(key, exp.Literal) and not key.is_string for key in group.expressions):
            yield _GROUP_BY_ORDINAL, "a number in GROUP BY"
        joins = select.args.get("joins") or ()
        commas = [not any(join.args.get(part) for part in _OF_JOIN) for join in joins]
        after_comma = [join.this.args.get("joins") for join, comma in zip(joins, commas, strict=True) if comma]
        if any(after_comma) or any(not comma for comma in itertools.dropwhile(lambda comma: not comma, commas)):
            yield _JOIN_FIRST, "a comma before JOIN"
    names = [cte.alias.lower() for cte in tree.find_all(exp.CTE)]
    if len(set(names)) < len(names):
        yield _OUTER_CTES, "a name that several WITH give"


_OF_JOIN = ("method", "side", "kind", "on", "using")
_VALUES = {_GROUP_BY_ORDINAL: "false", _OUTER_CTES: "LEGACY or EXCEPTION"}
_REMEDIES = {
    _REGEX_NAMES: "unset it, or give the column a name of letters and digits in a subquery",
    _HAVING_AS_WHERE: "write WHERE, or unset it",
    _GROUP_BY_ORDINAL: "leave the number out, or set it to true",
    _JOIN_FIRST: "write CROSS JOIN in place of the comma",
    _OUTER_CTES: "give each its own name",
}


def value_of(written: str, settings: ParserSettings) -> str:
    """The value of a text of a query with its quotes, such as 'it''s', as Spark reads it with these settings."""
    if settings.escaped:
        return written[1:-1]  # Spark drops the r of r'a', and keeps its first quote
    if written[0] in "rR":
        return written[2:-1].replace(written[1] * 2, "")
    quote = written[0]
    # A quote after a backslash is not one of two.
    parts = re.split(r"(\\.)", written[1:-1], flags=re.DOTALL)
    doubled = "" if settings.consecutive else quote
    inside = "".join(part if part[:1] == "\\" else part.replace(quote * 2, doubled) for part in parts)
    return _ESCAPE.sub(_meaning, inside).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _meaning(found: re.Match[str]) -> str:
    short, long, octal, letter = found.groups()
    if short or long:
        return chr(int(short or long, 16))
    return chr(int(octal, 8)) if octal else _MEANINGS.get(letter, letter)
