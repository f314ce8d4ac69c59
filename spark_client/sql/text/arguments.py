"""Parses arguments of calls, with tables: `f(r => TABLE t PARTITION BY k ORDER BY ts, on_time => DESCRIPTOR(ts))`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from spark_client.sql.text.nodes import Node
from spark_client.sql.text.spans import SpansParser

__all__ = ["ArgumentsParser", "CalledTable", "RefusedText"]

_AFTER_TABLE = (
    TokenType.COMMA, TokenType.R_PAREN, TokenType.DOT, TokenType.L_PAREN, TokenType.PARTITION_BY, TokenType.ORDER_BY
)  # fmt: skip
"""Tokens that follow the name in TABLE t. `table IS NULL` is excluded: there, `table` is a column."""
_AFTER_NAME = (TokenType.COMMA, TokenType.R_PAREN, TokenType.ASC, TokenType.DESC, TokenType.ORDER_BY)
_QUERIES = (TokenType.SELECT, TokenType.WITH)


class RefusedText(ParseError):
    """The parser's error with a reason of ours."""


class CalledTable(exp.Expression):
    """A table argument: `TABLE t`, or a query, with the columns after PARTITION BY and ORDER BY."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "partition_by": False, "order_by": False}


class ArgumentsParser(SpansParser):
    """Spark's parser with named arguments, table arguments and descriptors."""

    _closed: Sequence[Token] | None = None
    _ends: Mapping[int, int] = MappingProxyType({})
    """The ends of the parentheses of the tokens `_closed`."""
    # SESSION(...) and load(...) are calls, although these words also begin statements.
    FUNC_TOKENS = Spark.Parser.FUNC_TOKENS | {
        TokenType.ANALYZE, TokenType.CACHE, TokenType.COMMENT, TokenType.COPY, TokenType.DELETE,
        TokenType.DESCRIBE, TokenType.KILL, TokenType.LOAD, TokenType.LOCK, TokenType.REFRESH, TokenType.RENAME,
        TokenType.SESSION, TokenType.SHOW, TokenType.TRIGGER, TokenType.UPDATE, TokenType.USE,
    }  # fmt: skip

    def refuse(self, reason: str) -> NoReturn:
        """Raise RefusedText at the current token."""
        token = self._curr or self._prev
        raise RefusedText(reason, [{"line": token.line, "col": token.col, "highlight": self._find_sql(token, token)}])

    def _parse_function_args(self, alias: bool = False) -> list[Node]:
        return self._parse_csv(lambda: self._parse_argument(alias))

    def _parse_argument(self, alias: bool) -> Node | None:
        name = None
        if self._next and self._next.token_type is TokenType.FARROW:
            name = self._parse_id_var()
            self._match(TokenType.FARROW)
        # Parsed as an expression, a query would end before ORDER BY, and ORDER BY would consume the next arguments.
        query = self._match(TokenType.L_PAREN, advance=False) and self._next and self._next.token_type in _QUERIES
        parse = self._parse_select_or_expression if query else self._parse_lambda
        # The way through all operators takes 32 frames of Python's stack for each call in another.
        call = self._parse_function() if self._is_call() else None
        value = call or self._parse_table_argument() or self._parse_model_argument() or parse(alias=alias)
        keyed = self._curr and self._curr.token_type in (TokenType.PARTITION_BY, TokenType.ORDER_BY)
        if keyed and isinstance(value, (exp.Query, exp.Anonymous)):
            value = self._parse_keys(value)
        if value is None and (name is not None or self._prev.token_type is TokenType.COMMA):
            self.refuse("an argument is missing")
        return value if name is None else self.expression(exp.Kwarg(this=name, expression=value))

    def _is_call(self) -> bool:
        """Whether the argument is a call and nothing else."""
        if not (self._curr and self._next) or self._next.token_type is not TokenType.L_PAREN:
            return False
        if self._curr.token_type is not TokenType.VAR:
            return False
        if self._closed is not self._tokens:
            self._closed, self._ends = self._tokens, _ends_of(self._tokens)
        end = self._ends.get(self._index + 1, len(self._tokens)) + 1
        return end < len(self._tokens) and self._tokens[end].token_type in (TokenType.COMMA, TokenType.R_PAREN)

    def _parse_table_argument(self) -> Node | None:
        after = [each.token_type for each in self._tokens[self._index + 1 : self._index + 3]]
        query = after[:1] == [TokenType.L_PAREN]
        named = len(after) == 2 and after[0] in self.ID_VAR_TOKENS and after[1] in _AFTER_TABLE
        # In `table IN (1)`, `table` is a column.
        named = named and (after[1] is not TokenType.L_PAREN or after[0] in self.FUNC_TOKENS)
        if not (query or named) or not self._match(TokenType.TABLE):
            return None
        return self._parse_keys(self._parse_table())

    def _parse_model_argument(self) -> Node | None:
        """The name of a model after the word MODEL, as a call: MODEL m."""
        after = [each.token_type for each in self._tokens[self._index + 1 : self._index + 3]]
        named = len(after) == 2 and after[0] in self.ID_VAR_TOKENS and after[1] in (TokenType.COMMA, TokenType.R_PAREN)
        if not named or not self._match_text_seq("MODEL"):
            return None
        return self.expression(exp.Anonymous(this="MODEL", expressions=[self._parse_name()]))

    def _parse_keys(self, table: Node | None) -> Node:
        """Parse the clauses after a table: each has one column, or several in parentheses."""
        argument = self.expression(CalledTable(this=table))
        if self._match(TokenType.PARTITION_BY):
            argument.set("partition_by", self._parse_columns(self._parse_name))
        if self._match(TokenType.ORDER_BY):
            argument.set("order_by", self._parse_columns(lambda: self._parse_ordered(self._parse_name)))
        return argument

    def _parse_columns(self, one: Callable[[], Node | None]) -> list[Node | None]:
        if self._curr and self._curr.token_type is TokenType.L_PAREN:
            return self._parse_wrapped_csv(one)
        column = one()
        if column is None:
            self.refuse("the name of a column is expected")
        return [column]

    def _parse_name(self) -> Node | None:
        """A column with any name, such as `timestamp`; otherwise an expression, which is rejected later."""
        begin = self._index
        name = self._parse_id_var()
        if name is not None and self._curr and self._curr.token_type in _AFTER_NAME:
            return self.expression(exp.Column(this=name))
        self._retreat(begin)
        return self._parse_disjunction()

    def _parse_descriptor(self) -> Node:
        name = self._tokens[self._index - 2].text
        return self.expression(exp.Anonymous(this=name, expressions=self._parse_csv(self._parse_name)))


def _ends_of(tokens: Sequence[Token]) -> dict[int, int]:
    """The positions of closing parentheses, by those of the opening ones."""
    open_: list[int] = []
    ends: dict[int, int] = {}
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            open_.append(place)
        elif token.token_type is TokenType.R_PAREN and open_:
            ends[open_.pop()] = place
    return ends
