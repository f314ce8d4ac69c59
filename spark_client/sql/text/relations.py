"""Parses what sqlglot does not know of Spark's relations: STREAM t, the query TABLE t, samples of subqueries."""

from typing import Any

from sqlglot.tokens import TokenType

from spark_client.sql.text.arguments import ArgumentsParser

__all__ = ["STREAM", "RelationsParser"]

STREAM = "stream"
"""The key in the metadata of a table that follows the word STREAM."""
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_AFTER_TABLE_QUERY = (
    TokenType.DOT, TokenType.R_PAREN, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.ORDER_BY,
    TokenType.SORT_BY, TokenType.DISTRIBUTE_BY, TokenType.CLUSTER_BY, TokenType.LIMIT, TokenType.OFFSET,
)  # fmt: skip
"""Tokens that may follow the first name in the query TABLE t."""


class RelationsParser(ArgumentsParser):
    """The parser of arguments with these relations."""

    SUPPORTS_TABLE_QUERY = True

    def _parse_table(self, *args: Any, **options: Any) -> Any:
        word, name = self._curr, self._next
        named = bool(word and name) and word.token_type is TokenType.VAR and name.token_type in _NAMES
        is_stream = named and self._match_text_seq("STREAM")
        table = super()._parse_table(*args, **options)
        if is_stream and table is not None:
            table.meta[STREAM] = True
        return table

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
