"""Statements: where one ends and the next begins in what was typed or in a file."""

from collections.abc import Iterator, Sequence

from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from spark_client.sql.dialect import RemoteSpark

__all__ = ["split_statements"]


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, without it, and what follows the last one.

    Semicolons in strings, quoted names and comments end nothing. A statement of nothing but blanks and
    comments is none. A string that is not closed keeps the statement open.
    """
    tokens = _tokens(text)
    if tokens is None:
        # The text up to the last semicolon that can be read is split; the rest is an open statement.
        for end in _semicolons_from_last(text):
            statements, rest = split_statements(text[: end + 1])
            if not rest:
                return statements, text[end + 1 :]
        return [], text
    statements, begin, first = [], 0, 0
    for index, token in enumerate(tokens):
        if token.token_type is not TokenType.SEMICOLON:
            continue
        if index > first:
            statements.append(text[begin : token.start].strip())
        begin, first = token.end + 1, index + 1
    return statements, text[begin:] if first < len(tokens) else ""


def _tokens(text: str) -> Sequence[Token] | None:
    try:
        return list(RemoteSpark().tokenize(text))
    except SqlglotError:
        return None


def _semicolons_from_last(text: str) -> Iterator[int]:
    end = text.rfind(";")
    while end >= 0:
        if _tokens(text[: end + 1]) is not None:
            yield end
        end = text.rfind(";", 0, end)
