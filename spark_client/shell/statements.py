"""Statements: splits typed text, or the text of a file, into statements."""

from collections.abc import Iterator, Sequence

from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from spark_client.sql.text.dialect import RemoteSpark

__all__ = ["split_statements"]


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it, and the text that follows the last one.

    Semicolons in strings, quoted names and comments do not end a statement. Statements that contain only blanks and
    comments are skipped. A statement does not end before its strings are closed.
    """
    tokens = _tokens(text)
    if tokens is None:
        # The text is split up to the last semicolon before which it can be tokenized; the rest is incomplete.
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
