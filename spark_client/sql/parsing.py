"""Parsing: a text as a tree, and errors that say where."""

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlglot
from pyspark.sql import Column, DataFrame
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.dialect import TOO_DEEP, RemoteSpark

__all__ = ["Text", "blanked", "called_names", "error_at", "in_place", "parse", "place_of", "rows_of"]

_FIELD = "__remote_sql_field_{}"
_NOT_OURS = {
    TokenType.PIPE_GT: "remote aggregates cannot be planned in the pipe syntax |>: write a SELECT",
    TokenType.SEMICOLON: "one statement at a time is planned",
    TokenType.L_BRACE: "a field in braces is none that was passed",
}
"""What sqlglot reads as something else."""
_PLACE = re.compile(r"line \d+, column \d+: ")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(|`([^`]+)`\s*\(")


@dataclass(frozen=True)
class Text:
    """What the user gave: SQL, and values for its parameters and its fields in braces, as `spark.sql` takes them."""

    sql: str
    args: Any
    fields: Mapping[str, Any]

    def readable(self) -> str:
        """The SQL with an identifier for each field in braces. Raises PlanError for a field that is not a name."""
        if not self.fields:
            return self.sql
        parts = []
        try:
            pieces = list(string.Formatter().parse(self.sql))
        except ValueError as error:
            raise PlanError(f"the fields in braces cannot be read: {error}; a brace itself is written twice") from None
        for literal, name, spec, conversion in pieces:
            parts.append(literal)
            if name is None:
                continue
            if name not in self.fields or spec or conversion:
                raise PlanError(f"{{{name}}} in the query is not one of {', '.join(self.fields)}")
            parts.append(_FIELD.format(name))
        return "".join(parts)

    def is_value(self, identifier: str) -> bool:
        """Whether an identifier of `readable` stands for a value, not for a table or a column."""
        name = self.field_names().get(identifier)
        return name is not None and not isinstance(self.fields[name], (Column, DataFrame))

    def field_names(self) -> dict[str, str]:
        """From the identifiers of `readable` to the names of the fields."""
        return {_FIELD.format(name): name for name in self.fields}


def called_names(sql: str) -> Iterator[str]:
    """The names that stand before a parenthesis: of functions, among others. Qualified ones are left out."""
    try:
        tokens = list(RemoteSpark().tokenize(sql))
    except SqlglotError:
        yield from (plain or quoted for plain, quoted in _CALL.findall(sql))
        return
    for index, token in enumerate(tokens[:-1]):
        qualified = index > 0 and tokens[index - 1].token_type is TokenType.DOT
        calls = tokens[index + 1].token_type is TokenType.L_PAREN and token.token_type is not TokenType.STRING
        if calls and not qualified:
            yield token.text


def parse(text: Text) -> Any:
    """The tree of one statement. Raises PlanError with the place where sqlglot stops understanding."""
    try:
        tree = sqlglot.parse_one(text.readable(), dialect=RemoteSpark)
    except RecursionError:
        raise PlanError(TOO_DEEP) from None
    except SqlglotError as error:
        details = (getattr(error, "errors", None) or [{}])[0]
        what = details.get("description") or str(error).splitlines()[0]
        place = ""
        if details.get("line"):  # the column is that of the last letter
            begin = details["col"] - max(len(details.get("highlight") or "") - 1, 0)
            place = f"line {details['line']}, column {begin}: "
        raise PlanError(f"{place}{what}; a query with remote aggregates must be understood to be planned") from error
    tokens = list(RemoteSpark().tokenize(text.readable()))
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    for token in tokens:
        if token.token_type in _NOT_OURS:
            place = f"line {token.line}, column {token.col - len(token.text) + 1}: "
            raise PlanError(f"{place}{_NOT_OURS[token.token_type]}")
    if isinstance(tree, exp.Command):
        raise PlanError(f"remote aggregates cannot be planned in a statement {tree.name.upper()}")

    for lateral in tree.find_all(exp.Lateral):
        if lateral.arg_key == "laterals" and not lateral.args.get("view"):
            raise error_at(lateral, "LATERAL stands after a comma or a JOIN")

    def constant(node: Any) -> Any:
        return exp.var(node.name) if isinstance(node, exp.Column) and text.is_value(node.name) else node

    return tree.transform(constant) if text.fields else tree


def place_of(node: Any) -> str:
    """`line 2, column 8: ` of the first name in the tree, or nothing if it was not in the text."""
    for each in node.walk():
        meta = each.meta
        if "line" in meta:
            return f"line {meta['line']}, column {meta['col'] - (meta['end'] - meta['start'])}: "
    return ""


def error_at(node: Any, message: str) -> PlanError:
    """The error with the place of the node before its message."""
    return PlanError(place_of(node) + message)


def in_place(where: str, error: object) -> PlanError:
    """The error with a place before its message, unless it has one from further inside."""
    message = str(error)
    return PlanError(message if _PLACE.match(message) else where + message)


def blanked(replaced: str, name: str = "") -> str:
    """A name, and blanks, as long as a text line by line."""
    lines = replaced.split("\n")
    return "\n".join([name.ljust(len(lines[0])), *(" " * len(line) for line in lines[1:])])


def rows_of(sql: str, begin: int, end: int) -> str:
    """`SELECT * FROM` a table that stands in a text, at the place where it does."""
    before, select = blanked(sql[:begin]), "SELECT * FROM "
    first, newline, rest = before.partition("\n")
    room = newline or len(first) >= len(select)
    return f"{select.ljust(len(first)) if room else select}{newline}{rest}{sql[begin:end]}"
