"""Spark SQL as sqlglot reads and writes it here.

sqlglot knows many functions and may write a call differently from how it read it. Here calls stay unchanged: only
functions with a syntax of their own are parsed as more than a name with arguments.
"""

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType

from spark_client.sql.text.arguments import CalledTable, RelationsParser
from spark_client.sql.text.nodes import Node, UnsignedShift
from spark_client.sql.text.settings import ParserSettings, value_of
from spark_client.sql.text.spans import FLINK, recording
from spark_client.sql.text.tokens import NOT_SPARKS, TEXTS, UNSIGNED_SHIFT, joined, named_by_words, without_comments

__all__ = ["TOO_DEEP", "RemoteSpark", "dialect_of"]

TOO_DEEP = (
    "the query is nested too deeply to be planned: compute its inner part in a subquery, or let Python nest calls more "
    "deeply with sys.setrecursionlimit(10_000), which takes some 200 expressions in each other; 1,000 take some 20, or "
    "60 calls that are arguments of each other"
)

_OWN_SYNTAX = ("CAST", "EXTRACT", "TRIM", "TRY_CAST")
"""Calls whose arguments are not just separated by commas: EXTRACT(year FROM d)."""
_WRITTEN_OTHERWISE = (exp.Select, exp.From, exp.BitwiseLeftShift, exp.BitwiseRightShift)
"""Nodes that sqlglot writes for older versions of Spark."""
_TIMES = (
    exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPLTZ, exp.DataType.Type.TIMESTAMPNTZ,
    exp.DataType.Type.TIMESTAMPTZ,
)  # fmt: skip
_WORDS = {
    "OVERLAY": ("PLACING", "FROM", "FOR"), "POSITION": ("IN",), "SUBSTR": ("FROM", "FOR"), "SUBSTRING": ("FROM", "FOR"),
}  # fmt: skip
"""Calls whose arguments are separated by commas, or by these words."""
_OF_UNITS = ("DATEADD", "DATEDIFF", "DATE_ADD", "DATE_DIFF", "TIMEDIFF", "TIMESTAMPADD", "TIMESTAMPDIFF")
"""Calls whose first argument of three is a unit, not a column: TIMESTAMPDIFF(DAY, a, b)."""
_ABSENT = "absent"
"""The part of a partition of INSERT that is written only if the table does not have it."""
_COUNTS = (TokenType.STRING, TokenType.NUMBER)
_AS_WRITTEN = "as written"
"""The key in a node's metadata for the text of a literal: DATE '2024-01-01', INTERVAL 1 DAY."""


class RemoteSpark(Spark):
    """Spark SQL that writes function calls as they were read."""

    # NOT x IS NULL differs from x IS NOT NULL: in the name of its column, and for Spark's optimizer.
    NORMALIZE_NOT_NULL = False

    reading = ParserSettings()
    """The settings of the session; see `dialect_of`."""

    def tokenize(self, sql: str, **options: Any) -> list[Token]:  # type: ignore[override]
        """Tokenize; a number and its suffix are one token, and so are adjacent strings. Texts have Spark's values.

        WINDOW begins a clause only before a name and AS: `window(ts, '5 minutes')` is a call.
        """
        tokens = super().tokenize(without_comments(sql), **options)
        for index, token in enumerate(tokens):
            # All that follows the first word of a command is one token, without quotes: SHOW MODELS.
            of_command = index and tokens[index - 1].token_type in self.tokenizer_class.COMMANDS
            if token.token_type in TEXTS and not of_command:
                token.text = value_of(sql[token.start : token.end + 1], self.reading)
        tokens = named_by_words(joined(sql, tokens))
        for index, token in enumerate(tokens):
            if token.token_type is TokenType.WINDOW:
                after = [each.token_type for each in tokens[index + 1 : index + 3]]
                clause = len(after) == 2 and after[0] is not TokenType.L_PAREN and after[1] is TokenType.ALIAS
                token.token_type = TokenType.WINDOW if clause else TokenType.VAR
        return tokens

    class Tokenizer(Spark.Tokenizer):  # noqa: D106
        # 'it''s' is one string since Spark 4.
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 - sqlglot's convention
        # In a statement set, SQL follows EXECUTE.
        COMMANDS = Spark.Tokenizer.COMMANDS - {TokenType.EXECUTE}
        KEYWORDS = {  # noqa: RUF012
            word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word not in NOT_SPARKS
        }  # fmt: skip

    @recording
    class Parser(RelationsParser):  # noqa: D106
        STATEMENT_PARSERS = {  # noqa: RUF012
            **Spark.Parser.STATEMENT_PARSERS, TokenType.EXECUTE: lambda self: self._parse_as_command(self._prev)
        }  # fmt: skip
        FUNCTIONS = {"ARRAY": Spark.Parser.FUNCTIONS["ARRAY"]}  # noqa: RUF012 - ARRAY(1)[0] needs it
        FUNCTION_PARSERS = (
            {name: Spark.Parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX}
            | {name: lambda self, name=name: self._parse_words(name) for name in _WORDS}
            | dict.fromkeys(_OF_UNITS, lambda self: self._parse_with_unit())
            | {"DESCRIPTOR": lambda self: self._parse_descriptor()}
        )
        PROPERTY_PARSERS = {  # noqa: RUF012
            **Spark.Parser.PROPERTY_PARSERS,
            "TBLPROPERTIES": lambda self: self._parse_pairs(),
            "USING": lambda self: self._parse_provider(),
        }
        # ANY can be an aggregate, any(x), and the word before the values of LIKE. CASE and IF can be columns.
        NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
            **{name: how for name, how in Spark.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name != "ANY"},
            "CASE": lambda self: self._parse_case() if self._prev.token_type is TokenType.CASE else self._go_back(),
            "IF": lambda self: self._parse_if() if self._match(TokenType.L_PAREN, advance=False) else self._go_back(),
        }
        BITWISE = {**Spark.Parser.BITWISE, UNSIGNED_SHIFT: UnsignedShift}  # noqa: RUF012
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, type[Node]]] = {}
        # Both hold for Spark, but would turn FROM a, b into a CROSS JOIN, and JOIN b into one with ON true.
        JOINS_HAVE_EQUAL_PRECEDENCE = False
        ADD_JOIN_ON_TRUE = False
        COLON_IS_VARIANT_EXTRACT = True

        def _parse_type(self, *args: Any, **options: object) -> Any:
            """Keep the text of literals: DATE '2024-01-01' is not a CAST, and its column has a different name."""
            begin = self._index
            node = super()._parse_type(*args, **options)
            read = self._tokens[begin : self._index]
            typed = len(read) == 2 and read[1].token_type is TokenType.STRING
            interval = bool(read) and read[0].token_type is TokenType.INTERVAL
            flinks = node is not None and any(each.meta.get(FLINK) for each in node.find_all(exp.Interval))
            if node is not None and (typed or interval) and not flinks and not node.find(exp.Column, exp.Query):
                node.meta[_AS_WRITTEN] = self.sql[read[0].start : read[-1].end + 1]
            return node

        def _parse_types(self, *args: Any, **options: object) -> Any:
            """Omit the precision: times have microseconds in Spark; TIMESTAMP(3) and TIMESTAMP_LTZ(3) are Flink's."""
            node = super()._parse_types(*args, **options)
            if isinstance(node, exp.DataType) and node.this in _TIMES and node.expressions:
                node.set("expressions", None)
                node.meta[FLINK] = True
            return node

        def _parse_colon_as_variant_extract(self, this: Any) -> Any:
            """Keep the text of the path in a variant: v:a.b[0], also before a cast, v:a::int."""
            while this is not None and self._match(TokenType.COLON):
                begin = self._curr
                if begin.token_type is not TokenType.L_BRACKET:
                    self._advance()
                while self._match_set((TokenType.DOT, TokenType.L_BRACKET)):
                    in_brackets = self._prev.token_type is TokenType.L_BRACKET
                    self._advance()
                    if in_brackets and not self._match(TokenType.R_BRACKET):
                        self.refuse("] is expected")
                path = exp.var(self.sql[begin.start : self._prev.end + 1])
                this = self.expression(exp.JSONBExtract(this=this, expression=path))
                while self._match(TokenType.DCOLON):
                    this = self.expression(exp.Cast(this=this, to=self._parse_types()))
            return this

        def _parse_words(self, name: str) -> Node:
            """Parse the arguments of SUBSTRING(a FROM 2 FOR 3) and similar calls."""
            arguments, between = [self._parse_bitwise()], []
            while self._match(TokenType.COMMA) or self._match_texts(_WORDS[name]):
                comma = self._prev.token_type is TokenType.COMMA
                between.append(", " if comma else f" {self._prev.text.upper()} ")
                arguments.append(self._parse_disjunction() if comma else self._parse_bitwise())
            arguments = [argument for argument in arguments if argument is not None]
            call = self.expression(exp.Anonymous(this=name, expressions=arguments))
            if any(each != ", " for each in between) and len(arguments) == len(between) + 1:
                call.meta[_AS_WRITTEN] = between
            return call

        def _parse_with_unit(self) -> Node:
            name = self._tokens[self._index - 2].text
            arguments = self._parse_function_args()
            if len(arguments) == 3 and isinstance(arguments[0], exp.Column) and not arguments[0].table:
                arguments[0] = exp.var(arguments[0].name)
            return self.expression(exp.Anonymous(this=name, expressions=arguments))

        def _parse_bracket(self, this: Any = None) -> Any:
            """Parse MAP['a', 1, 'b', 2], which is a map in Flink; `map['a']` is the value of a key."""
            node = super()._parse_bracket(this)
            parts = node.expressions if isinstance(node, exp.Bracket) else ()
            if len(parts) > 1 and isinstance(this, exp.Column) and not this.table and this.name.upper() == "MAP":
                node = self.expression(exp.Anonymous(this=this.name, expressions=parts))
                node.meta[FLINK] = True
            return node

        def _go_back(self) -> None:
            """Leave the last word to those who read names."""
            self._retreat(self._index - 1)

        def _parse_row_format(self, match_row: bool = False) -> Node | None:
            """Parse the part between the directory of an INSERT and its query: USING csv OPTIONS (header 'true')."""
            if not match_row or not self._match(TokenType.USING):
                return super()._parse_row_format(match_row=match_row)
            begin = self._prev.start
            self._parse_table_parts()
            if self._match_text_seq("OPTIONS") and self._match(TokenType.L_PAREN):
                while self._curr and not self._match(TokenType.R_PAREN):
                    self._advance()
            return exp.var(self.sql[begin : self._prev.end + 1])

        def _parse_pairs(self) -> list[Node]:
            """The keys and values of properties; the sign between them is optional, as in OPTIONS."""
            return self._parse_wrapped_csv(lambda: self._parse_key_value_property(optional=True))

        def _parse_var_or_string(self, *args: Any, **options: Any) -> Any:
            """Parse INSERT OVERWRITE DIRECTORY USING csv OPTIONS ('path' ...), where the directory is an option."""
            if self._curr and self._curr.token_type is TokenType.USING and self._prev.text.upper() == "DIRECTORY":
                return exp.Var(this="")
            return super()._parse_var_or_string(*args, **options)

        def _parse_insert_table(self) -> Any:
            """Parse PARTITION (...) IF NOT EXISTS, too."""
            target = super()._parse_insert_table()
            partition = target.find(exp.Partition) if target is not None else None
            if partition is not None and self._match_text_seq("IF", "NOT", "EXISTS"):
                partition.set(_ABSENT, True)
            return target

        def _parse_provider(self) -> Node:
            """The name of a table's provider, which may have dots: USING org.apache.spark.sql.parquet."""
            begin = self._curr.start
            self._parse_table_parts()
            return self.expression(exp.FileFormatProperty(this=exp.var(self.sql[begin : self._prev.end + 1])))

        def _parse_sequence_properties(self) -> Any:
            """Spark has no sequences, and sqlglot would read a stray ORDER before VIEW as a property of one."""
            return None

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            """Accept an interval only if it has a unit or is written as one string."""
            begin = self._index
            node = super()._parse_interval(*args, **options)
            first = node.this if isinstance(node, exp.Add) else node
            if first is None or first.args.get("unit") is not None or first.this.is_string:
                # SECOND(3) is a unit of Flink's; intervals have microseconds in Spark.
                unit = None if first is None else first.args.get("unit")
                for each in [] if unit is None else list(unit.find_all(exp.Anonymous)):
                    each.replace(exp.var(each.name))
                    first.meta[FLINK] = True
                return self._with_signed_parts(node)
            self._retreat(begin)
            return None

        def _with_signed_parts(self, interval: Any) -> Any:
            """Parse the rest of INTERVAL 1 DAY -2 HOURS: for Spark it is one interval, and no difference."""
            while interval is not None and self._match_set((TokenType.DASH, TokenType.PLUS)):
                begin, sign = self._index - 1, self._prev.token_type
                part = self._parse_interval(False) if self._match_set(_COUNTS, advance=False) else None
                first = part.this if isinstance(part, (exp.Add, exp.Sub)) else part
                if first is None or first.args.get("unit") is None:  # ts - INTERVAL 1 DAY - 3
                    self._retreat(begin)
                    break
                kind = exp.Sub if sign is TokenType.DASH else exp.Add
                interval = self.expression(kind(this=interval, expression=part))
            return interval

        def _warn_unsupported(self) -> None:
            """Do not warn: unsupported syntax is rejected, or left to Spark."""

        # sqlglot expects sums in these, but Spark allows conditions: ROLLUP (a IS NULL).
        def _parse_cube_or_rollup(self, with_prefix: bool = False) -> Node | None:
            kinds = ((TokenType.CUBE, exp.Cube), (TokenType.ROLLUP, exp.Rollup))
            kind = next((kind for token, kind in kinds if self._match(token)), None)
            if kind is None:
                return None
            inside = [] if with_prefix else self._parse_wrapped_csv(self._parse_disjunction)
            return self.expression(kind(expressions=inside))

        def _parse_grouping_set(self) -> Node | None:
            return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()

    class Generator(Spark.Generator):  # type: ignore[misc, valid-type]  # noqa: D106
        # Spark supports nested common table expressions and QUALIFY.
        TABLESAMPLE_SEED_KEYWORD = "REPEATABLE"
        EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[Node]]] = set()
        TRANSFORMS = {
            kind: how for kind, how in Spark.Generator.TRANSFORMS.items() if kind not in _WRITTEN_OTHERWISE
        } | {
            UnsignedShift: lambda self, shift: self.binary(shift, ">>>"),
            CalledTable: lambda self, argument: self._table_argument(argument),
            exp.JSONBExtract: lambda self, part: f"{self.sql(part, 'this')}:{self.sql(part, 'expression')}",
        }

        TYPE_MAPPING: ClassVar[dict[exp.DType, str]] = {**Spark.Generator.TYPE_MAPPING, exp.DataType.Type.TIME: "TIME"}

        def _table_argument(self, expression: Node) -> str:
            text = f"TABLE {self.sql(expression, 'this')}"
            for words, part in (("PARTITION BY", "partition_by"), ("ORDER BY", "order_by")):
                if expression.args.get(part):
                    text += f" {words} ({self.expressions(expression, key=part, flat=True)})"
            return text

        def table_sql(self, expression: Node, sep: str = " AS ") -> str:
            text = super().table_sql(expression, sep)
            return f"STREAM {text}" if expression.meta.get(FLINK) else text

        def datatype_sql(self, expression: Node) -> str:
            if expression.this == exp.DataType.Type.TIME and expression.expressions:
                # Without its precision the type would be TIME(6).
                return f"TIME({expression.expressions[0].name})"
            return super().datatype_sql(expression)

        def fileformatproperty_sql(self, expression: Node) -> str:
            if isinstance(expression.this, exp.Var) and not expression.args.get("hive_format"):
                return f"USING {expression.name}"
            return str(super().fileformatproperty_sql(expression))

        def cast_sql(self, expression: Node, safe_prefix: str | None = None) -> str:
            return expression.meta.get(_AS_WRITTEN) or super().cast_sql(expression, safe_prefix)

        def interval_sql(self, expression: Node) -> str:
            return expression.meta.get(_AS_WRITTEN) or super().interval_sql(expression)

        def partition_sql(self, expression: Node) -> str:
            absent = " IF NOT EXISTS" if expression.args.get(_ABSENT) else ""
            return super().partition_sql(expression) + absent

        def add_sql(self, expression: Node) -> str:
            return expression.meta.get(_AS_WRITTEN) or super().add_sql(expression)

        def anonymous_sql(self, expression: Node) -> str:
            between = expression.meta.get(_AS_WRITTEN)
            if between is None:
                return super().anonymous_sql(expression)
            arguments = [self.sql(each) for each in expression.expressions]
            return f"{expression.name}({''.join(map(''.join, zip(arguments, [*between, ''], strict=True)))})"


class _QuotedNames(RemoteSpark):
    """The dialect with `spark.sql.ansi.doubleQuotedIdentifiers`."""

    class Tokenizer(RemoteSpark.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012 - sqlglot's convention
        IDENTIFIERS = ["`", '"']  # noqa: RUF012


def dialect_of(settings: ParserSettings) -> RemoteSpark:
    """The dialect that reads a text as a session with these settings does."""
    dialect = _QuotedNames() if settings.quoted_names else RemoteSpark()
    dialect.reading = settings
    dialect.INTERSECT_BINDS_TIGHTER_THAN_UNION_AND_EXCEPT = not settings.left_to_right
    return dialect
