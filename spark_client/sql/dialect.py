"""Dialect: Spark SQL as sqlglot reads and writes it here.

sqlglot knows many functions and writes them as it thinks best. Here a call stays what it was: only what
has a syntax of its own is parsed as more than a name with arguments.
"""

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import TokenType

__all__ = ["RemoteSpark", "generate"]

_OWN_SYNTAX = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST")
"""Calls that are more than arguments between commas: EXTRACT(year FROM d)."""


class RemoteSpark(Spark):  # type: ignore[misc]
    """Spark SQL whose function calls come out as they went in."""

    def tokenize(self, sql: str, **options: Any) -> Any:
        """WINDOW begins a clause only before a name and AS: `window(ts, '5 minutes')` is a call."""
        tokens = super().tokenize(sql, **options)
        for index, token in enumerate(tokens):
            after = [each.token_type for each in tokens[index + 1 : index + 3]]
            clause = len(after) == 2 and after[0] is not TokenType.L_PAREN and after[1] is TokenType.ALIAS
            if token.token_type is TokenType.WINDOW and not clause:
                token.token_type = TokenType.VAR
        return tokens

    class Tokenizer(Spark.Tokenizer):  # type: ignore[misc]  # noqa: D106
        # 'it''s' is one string since Spark 4.
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - sqlglot's way

    class Parser(Spark.Parser):  # type: ignore[misc]  # noqa: D106
        FUNCTIONS = {"ARRAY": Spark.Parser.FUNCTIONS["ARRAY"]}  # noqa: RUF012 - ARRAY(1)[0] needs it
        FUNCTION_PARSERS = {name: Spark.Parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX}  # noqa: RUF012
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}

        # sqlglot knows sums in these, and no conditions: ROLLUP (a IS NULL).
        def _parse_cube_or_rollup(self, with_prefix: bool = False) -> Any:
            kinds = ((TokenType.CUBE, exp.Cube), (TokenType.ROLLUP, exp.Rollup))
            kind = next((kind for token, kind in kinds if self._match(token)), None)
            if kind is None:
                return None
            inside = [] if with_prefix else self._parse_wrapped_csv(self._parse_disjunction)
            return self.expression(kind(expressions=inside))

        def _parse_grouping_set(self) -> Any:
            return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()

    class Generator(Spark.Generator):  # type: ignore[misc]  # noqa: D106
        # Spark has nested common table expressions, and QUALIFY.
        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[Any]] = set()
        TRANSFORMS = {  # noqa: RUF012
            kind: how for kind, how in Spark.Generator.TRANSFORMS.items() if kind is not exp.Select
        }


def generate(node: Any) -> str:
    """The tree as Spark SQL."""
    return node.sql(dialect=RemoteSpark, normalize_functions=False, comments=False)
