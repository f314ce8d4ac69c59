"""Parses what sqlglot does not know: calls with tables, and Spark's relations.

Calls have arguments such as `f(r => TABLE t PARTITION BY k ORDER BY ts, on_time => DESCRIPTOR(ts))`. Relations are
STREAM t, TABLE t, samples of subqueries, and the scopes of WITH.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from spark_client.sql.text.nodes import Node
from spark_client.sql.text.spans import FLINK, SpansParser

__all__ = ["CalledTable", "RefusedText", "RelationsParser"]

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_AFTER_TABLE_QUERY = (
    TokenType.DOT, TokenType.R_PAREN, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.ORDER_BY,
    TokenType.SORT_BY, TokenType.DISTRIBUTE_BY, TokenType.CLUSTER_BY, TokenType.LIMIT, TokenType.OFFSET,
)  # fmt: skip
"""Tokens that may follow the first name in the query TABLE t."""
_CHANGES = (exp.Delete, exp.Merge, exp.MultitableInserts, exp.Update)

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


class RelationsParser(ArgumentsParser):
    """The parser of arguments with these relations."""

    SUPPORTS_TABLE_QUERY = True

    def _parse_table(self, *args: Any, **options: Any) -> Any:
        word, name = self._curr, self._next
        named = bool(word and name) and word.token_type is TokenType.VAR and name.token_type in _NAMES
        is_stream = named and self._match_text_seq("STREAM")
        table = super()._parse_table(*args, **options)
        if is_stream and table is not None:
            table.meta[FLINK] = True
        return table

    def _parse_select_query(self, *args: Any, **options: Any) -> Any:
        """Parse WITH as a part of the query that sees it: before INSERT, and around a query with its own WITH.

        sqlglot gives the first to the statement, and joins the second to the other one, where names may repeat.
        """
        own = self._parse_with()
        if own is None:
            return super()._parse_select_query(*args, **options)
        statement = self._parse_statement()
        query = statement.expression if isinstance(statement, exp.Insert) else statement
        if isinstance(query, exp.Subquery) and query.is_wrapper and not query.this.args.get("with_"):
            query = query.this
        if isinstance(query, _CHANGES):
            query.set("with_", own)  # no query, and not planned
        elif not isinstance(query, exp.Query):
            self.refuse("WITH must be followed by a query, or by INSERT of a query that is no list of VALUES")
        elif query.args.get("with_"):
            outer = exp.Subquery(this=query.copy(), with_=own)
            query = outer if query is statement else query.replace(outer)
        else:
            query.set("with_", own)
        return statement if isinstance(statement, exp.Insert) else query

    def _parse_table_parts(self, *args: Any, **options: Any) -> Any:
        # sqlglot would skip the dot.
        if self._match(TokenType.DOT, advance=False):
            self.refuse("the name of a table is expected")
        return super()._parse_table_parts(*args, **options)

    def _is_table_query(self) -> bool:
        """Whether `TABLE t` is a query: in `table IS NULL`, `table` is a column."""
        end = self._tokens[self._index + 2] if self._index + 2 < len(self._tokens) else None
        return bool(self._curr and self._next and super()._is_table_query()) and (
            end is None or end.token_type in _AFTER_TABLE_QUERY
        )

    def _parse_subquery(self, this: Any, parse_alias: bool = True) -> Any:
        """Parse TABLESAMPLE before the alias; sqlglot expects it after the alias."""
        sample = self._parse_table_sample() if this else None
        subquery = super()._parse_subquery(this, parse_alias)
        if sample is not None:
            subquery.set("sample", sample)
        return subquery
