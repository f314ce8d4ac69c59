"""Parses what sqlglot does not know of Spark's relations: STREAM t, TABLE t, samples of subqueries, scopes of WITH."""

from typing import Any

from sqlglot import exp
from sqlglot.tokens import TokenType

from spark_client.sql.text.arguments import ArgumentsParser
from spark_client.sql.text.spans import FLINK

__all__ = ["RelationsParser"]

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_AFTER_TABLE_QUERY = (
    TokenType.DOT, TokenType.R_PAREN, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.ORDER_BY,
    TokenType.SORT_BY, TokenType.DISTRIBUTE_BY, TokenType.CLUSTER_BY, TokenType.LIMIT, TokenType.OFFSET,
)  # fmt: skip
"""Tokens that may follow the first name in the query TABLE t."""
_CHANGES = (exp.Delete, exp.Merge, exp.MultitableInserts, exp.Update)


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
