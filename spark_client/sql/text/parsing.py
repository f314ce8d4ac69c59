"""Parses a text into a tree; errors name the position in the text."""

import functools
import itertools
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError, TokenError
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.text.arguments import RefusedText
from spark_client.sql.text.dialect import TOO_DEEP, RemoteSpark, dialect_of
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.settings import BY_DEFAULT, ParserSettings, require_understood
from spark_client.sql.text.spans import anchor
from spark_client.sql.text.tokens import TEXTS

__all__ = ["Parameters", "Text", "condition_of", "error_at", "in_place", "place_of", "place_of_token"]

Parameters: TypeAlias = dict[str, Any] | list[Any] | None
"""Values of the parameters of a text, by name or by position, as in `spark.sql`."""

_FIELD = "__remote_sql_field_{}"
_NOT_OURS = {
    TokenType.PIPE_GT: "remote aggregates cannot be planned beside the pipe syntax |>: write a SELECT, or create a "
    "temporary view of the part with |>",
    TokenType.SEMICOLON: "only one statement at a time can be planned",
    TokenType.L_BRACE: "a field in braces was not passed",
}
"""Tokens that sqlglot reads with another meaning."""
_NO_VALUE = "${...} has no value in the session, or one with a quote: set it, or pass a parameter, as in :low"
_SCRIPT = (
    "SELECT TRANSFORM, MAP and REDUCE cannot be planned with remote aggregates or table functions: create a temporary "
    "view of the query with the remote call, and select from it with spark.sql"
)
_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
_INSTEAD = (
    ". A query with remote aggregates or table functions is planned here: correct it, or create a temporary view of "
    "the part that only Spark understands"
)
_PLACE = re.compile(r"line \d+, column \d+: ")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(|`([^`]+)`\s*\(")


@dataclass(frozen=True)
class Text:
    """The SQL of the user, with values for its parameters and its fields in braces, as in `spark.sql`."""

    sql: str
    args: Parameters
    fields: Mapping[str, object]
    part: Sequence[Token] = ()
    """The tokens of one statement, if the text has several."""
    cut: int | None = None
    """The position at which tokens are omitted between those of `part`."""
    settings: ParserSettings = BY_DEFAULT
    """The settings of the session with which Spark reads the text."""

    @functools.cached_property
    def tokens(self) -> Sequence[Token]:
        """The tokens of `readable` without trailing semicolons; empty if the text is not SQL."""
        if self.part:
            return self.part
        try:
            tokens = list(self.dialect.tokenize(self.readable()))
        except SqlglotError:
            return ()
        while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
            tokens.pop()
        return tokens

    @property
    def dialect(self) -> RemoteSpark:
        """The dialect that reads the text as the session does."""
        return dialect_of(self.settings)

    @functools.cached_property
    def called(self) -> Sequence[str]:
        """The names before a parenthesis, which include those of functions. Qualified names are skipped."""
        if not self.tokens:
            return [plain or quoted for plain, quoted in _CALL.findall(self.readable())]
        return [
            token.text for index, (token, after) in enumerate(itertools.pairwise(self.tokens))
            if after.token_type is TokenType.L_PAREN and token.token_type is not TokenType.STRING
            and not (index and self.tokens[index - 1].token_type is TokenType.DOT)
        ]  # fmt: skip

    @functools.cached_property
    def tree(self) -> Node:
        """The tree of one statement. Raises PlanError with the position of the syntax error."""
        return _parsed(self)

    def readable(self) -> str:
        """The SQL with an identifier for each field in braces. Raises PlanError if a field is not a name."""
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
        """Whether an identifier of `readable` represents a value, and not a table or a column."""
        name = self.field_names().get(identifier)
        return name is not None and not isinstance(self.fields[name], (Column, DataFrame))

    def field_names(self) -> dict[str, str]:
        """The names of the fields by the identifiers of `readable`."""
        return {_FIELD.format(name): name for name in self.fields}


def _parsed(text: Text) -> Node:
    for before, token in zip([None, *text.tokens], text.tokens, strict=False):
        if before is not None and before.text == "$" and token.token_type is TokenType.L_BRACE:
            raise PlanError(f"{place_of_token(before)}{_NO_VALUE}")
        if token.token_type in _NOT_OURS:
            raise PlanError(f"{place_of_token(token)}{_NOT_OURS[token.token_type]}")
    if (called := _transform(text.tokens)) is not None:
        raise PlanError(place_of_token(called) + _SCRIPT)
    sql, dialect = text.readable(), text.dialect
    try:
        trees = dialect.parser().parse(list(text.tokens or dialect.tokenize(sql)), sql)
    except RecursionError:
        raise PlanError(TOO_DEEP) from None
    except SqlglotError as error:
        if (script := _script(text.tokens)) is not None:
            raise PlanError(place_of_token(script) + _SCRIPT) from None
        raise PlanError(_not_understood(error, "the query", _INSTEAD)) from None
    except Exception:
        # Any exception: for some texts the parser raises undocumented exceptions.
        raise PlanError(_not_understood(None, "the query", _INSTEAD)) from None
    tree = next(iter(trees), None)
    if tree is None:
        raise PlanError("the text does not begin with a statement")
    if isinstance(tree, exp.Command):
        raise PlanError(f"remote aggregates cannot be planned in a statement {tree.name.upper()}")

    for node in tree.find_all(exp.Select, exp.Lateral):
        if isinstance(node, exp.Select) and not node.expressions:
            raise PlanError("a SELECT has no columns")
        if isinstance(node, exp.Lateral) and node.arg_key == "laterals" and not node.args.get("view"):
            raise error_at(node, "LATERAL must follow a comma or a JOIN")
    require_understood(text.settings, tree)

    def constant(node: Node) -> Node:
        return exp.var(node.name) if isinstance(node, exp.Column) and text.is_value(node.name) else node

    return anchor(tree.transform(constant) if text.fields else tree, sql, text.cut)


def _transform(tokens: Sequence[Token]) -> Token | None:
    """The word in SELECT TRANSFORM(f(x)) USING 'script'; None if there is none with a call in it."""
    for index, token in enumerate(tokens[:-1]):
        if token.text.upper() == "TRANSFORM" and tokens[index + 1].token_type is TokenType.L_PAREN:
            depth = itertools.accumulate(_DEPTHS.get(each.token_type, 0) for each in tokens[index + 1 :])
            end = next((index + 1 + place for place, open_ in enumerate(depth) if not open_), len(tokens))
            calls = sum(each.token_type is TokenType.L_PAREN for each in tokens[index:end]) > 1
            if calls and end + 1 < len(tokens) and tokens[end + 1].text.upper() in ("USING", "ROW"):
                return token
    return None


def _script(tokens: Sequence[Token]) -> Token | None:
    """The word USING before a script; None if there is none."""
    pairs = itertools.pairwise(tokens)
    return next((token for token, after in pairs if token.text.upper() == "USING" and after.token_type in TEXTS), None)


def condition_of(sql: str, settings: ParserSettings) -> Node:
    """The tree of a condition. Raises PlanError if the text is none."""
    try:
        return anchor(parse_one(sql, dialect=dialect_of(settings), into=exp.Condition), sql)
    except SqlglotError as error:
        raise PlanError(_not_understood(error, f"the condition {sql!r}")) from None


def _not_understood(error: SqlglotError | None, what: str, instead: str = "") -> str:
    """Why a text is refused, and where, in words that are not the parser's."""
    details = (getattr(error, "errors", None) or [{}])[0]
    word, place = details.get("highlight"), ""
    if word and details.get("line"):  # `col` is the position of the last letter
        place = f"line {details['line']}, column {details['col'] - len(word) + 1}: "
    if isinstance(error, RefusedText):
        return f"{place}{error}"
    at = f" at or near {word!r}" if word else ""
    if isinstance(error, TokenError):
        at = ": a quote or a comment does not end, or a character has no meaning in SQL"
    return f"{place}{what} is not understood{at}{instead}"


def place_of(node: Node) -> str:
    """`line 2, column 8: ` of the first name in the tree; empty if it is not from the text."""
    for each in node.walk():
        meta = each.meta
        if "line" in meta:
            return f"line {meta['line']}, column {meta['col'] - (meta['end'] - meta['start'])}: "
    return ""


def place_of_token(token: Token) -> str:
    """`line 2, column 8: ` of a token."""
    return f"line {token.line}, column {token.col - (token.end - token.start)}: "


def error_at(node: Node, message: str) -> PlanError:
    """The error with the position of the node before its message."""
    return PlanError(place_of(node) + message)


def in_place(where: str, error: object) -> PlanError:
    """The error with a position before its message, unless an inner node has already added one."""
    message = str(error)
    return PlanError(message if _PLACE.match(message) else where + message)
