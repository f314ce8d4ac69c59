"""Reads statements about models from their tokens: no SQL parser knows them."""

import re
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.text.parsing import Text, place_of_token

__all__ = ["ModelStatement"]

_SHOWN = re.compile(r"CREATE\s+MODEL\s+(?:`([^`]+)`|(\w+))", re.IGNORECASE)


class ModelStatement:
    """Reads the tokens of a statement. `verb` is its first word, or None if it is not about models."""

    def __init__(self, text: Text) -> None:
        self._sql = text.readable()
        self._tokens = text.tokens
        self._next = 0
        first = self._tokens[0].text.upper() if self._tokens else ""
        self.verb: str | None = first
        self.replaces = False
        self.shown: str | None = None
        """The model of SHOW CREATE MODEL."""
        if first == "SHOW":
            # After SHOW, the tokenizer returns the rest as one text.
            rest = " ".join(token.text for token in self._tokens[1:]).rstrip("; \n\t")
            one = _SHOWN.fullmatch(rest)
            self.shown = (one[1] or one[2]) if one else None
            self.verb = first if one or rest.upper() == "MODELS" else None
            return
        self._next = 1
        self.replaces = first == "CREATE" and self.words("OR", "REPLACE")
        if first in ("CREATE", "DROP"):
            self.words("TEMPORARY")
        is_named = len(self._tokens) > self._next + 1  # DESCRIBE model describes a table
        if first not in ("ALTER", "CREATE", "DROP", "DESCRIBE", "DESC") or not is_named or not self.words("MODEL"):
            self.verb = None

    def words(self, *words: str) -> bool:
        """Skip these words if they come next."""
        found = self._tokens[self._next : self._next + len(words)]
        same = [token.text.upper() for token in found if token.token_type is not TokenType.STRING] == list(words)
        self._next += len(words) if same else 0
        return same

    def name(self) -> str:
        token = self._take("the name of a model", TokenType.VAR, TokenType.IDENTIFIER)
        if self.words("."):
            raise self._error("a model has no catalog or database: its name has one part", token)
        return token.text

    def text(self) -> str:
        return self._take("a text in quotes", TokenType.STRING).text

    def columns(self, word: str) -> StructType | None:
        """The columns in parentheses after a word; None without the word."""
        if not self.words(word):
            return None
        begin = self._take("(", TokenType.L_PAREN)
        depth, end = 1, begin
        while depth:
            end = self._take(f"the end of {word}")
            depth += (end.token_type is TokenType.L_PAREN) - (end.token_type is TokenType.R_PAREN)
        written = self._sql[begin.end + 1 : end.start]
        try:
            columns = StructType.fromDDL(written)
        except (PySparkException, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise self._error(f"{word} ({written}) are not columns with types of Spark: {reason}", begin) from None
        if not isinstance(columns, StructType) or not columns.fields:
            raise self._error(f"{word} has no columns", begin)
        return columns

    def options(self, word: str, expected: str) -> dict[str, str]:
        """The options after a word: WITH ('key' = 'value', ...)."""
        if not self.words(word):
            raise self._error(f"{expected} is expected")
        found: dict[str, str] = {}
        for key in self._names():
            self._take("=", TokenType.EQ)
            if key.text in found:
                raise self._error(f"option '{key.text}' is given twice", key)
            found[key.text] = self.text()
        return found

    def names(self) -> list[str]:
        """The names of options in parentheses."""
        return [key.text for key in self._names()]

    def _names(self) -> Iterator[Token]:
        """The names in parentheses; the caller takes what follows each of them."""
        self._take("(", TokenType.L_PAREN)
        while True:
            yield self._take("the name of an option in quotes", TokenType.STRING)
            if self._take(", or )", TokenType.COMMA, TokenType.R_PAREN).token_type is TokenType.R_PAREN:
                return

    def end(self) -> None:
        if self._next < len(self._tokens):
            raise self._error("the end of the statement is expected")

    def _take(self, expected: str, *types: TokenType) -> Token:
        if self._next >= len(self._tokens):
            raise self._error(f"{expected} is expected at the end")
        token = self._tokens[self._next]
        if types and token.token_type not in types:
            raise self._error(f"{expected} is expected")
        self._next += 1
        return token

    def _error(self, message: str, token: Token | None = None) -> PlanError:
        at = token or self._tokens[min(self._next, len(self._tokens) - 1)]
        return PlanError(f"{place_of_token(at)}{message}")
