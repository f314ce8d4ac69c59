"""Tokens: a text cut at commas and parentheses, for calls that are no SQL which sqlglot reads."""

from collections.abc import Sequence
from typing import Any

from sqlglot.tokens import TokenType

from spark_client.base.errors import PlanError

__all__ = ["closing", "place_of_token", "split", "text_of"]

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


def place_of_token(token: Any) -> str:
    """Where it begins, as `parsing.place_of` says it of a node."""
    return f"line {token.line}, column {token.col - len(token.text) + 1}: "


def closing(tokens: Sequence[Any], opening: int) -> int:
    """The position of the parenthesis that ends the one at `opening`. Raises PlanError if there is none."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].token_type is TokenType.L_PAREN) - (tokens[index].token_type is TokenType.R_PAREN)
        if not depth:
            return index
    raise PlanError(f"{place_of_token(tokens[opening])}a parenthesis is not closed")


def text_of(sql: str, tokens: Sequence[Any]) -> str:
    """What the tokens, at least one, are in the text."""
    return sql[tokens[0].start : tokens[-1].end + 1]


def split(tokens: Sequence[Any]) -> list[list[Any]]:
    """The tokens between commas that stand in no brackets of any kind; of no tokens, no parts."""
    parts: list[list[Any]] = [[]] if tokens else []
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type is TokenType.COMMA and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
