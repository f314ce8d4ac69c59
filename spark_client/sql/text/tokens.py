"""Makes tokens what they are for Spark: `1L` and 'a' 'b' are one token, and `values` in `max(values)` is a name.

Before a text is read, its comments are blanked, so that words with a comment between them are one keyword:
GROUP /* by what */ BY.
"""

import re
from collections.abc import Collection, Sequence

from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType

__all__ = ["NOT_SPARKS", "TEXTS", "UNSIGNED_SHIFT", "joined", "named_by_words", "without_comments"]

_PIECE = re.compile(
    r"""
    (?<!\w)[rR]'[^']*' | (?<!\w)[rR]"[^"]*"                       # raw strings
    | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*`
    | /\*\+                                                       # a hint is no comment
    | (?P<line>--(?:\\\n|[^\r\n])*)
    | (?P<begin>/\*)
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = re.compile(r"/\*|\*/")

TEXTS = {TokenType.STRING, TokenType.RAW_STRING}
UNSIGNED_SHIFT = TokenType.DCOLONPERCENT
"""The token of `>>>`, which sqlglot has for another dialect only."""
_LISTS = ("OPTIONS", "TBLPROPERTIES")
"""Words before a list of keys and values."""

NOT_SPARKS = frozenset({
    "EXPLAIN", "GLOB", "ISNULL", "NOTNULL", "OBJECT", "OPERATOR", "OVERLAPS", "PARTITIONED_BY", "RETURNING", "XOR",
})  # fmt: skip
"""Words with a meaning for sqlglot, which are names or functions for Spark, or are read here."""
_VALUES = frozenset({"DEFAULT", "FALSE", "NULL", "TRUE"})
_OPERATORS = {
    TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.GT, TokenType.LTE, TokenType.GTE, TokenType.NULLSAFE_EQ,
    TokenType.SLASH, TokenType.MOD, TokenType.DIV, TokenType.PIPE, TokenType.DPIPE, TokenType.AMP, TokenType.CARET,
    TokenType.AND, TokenType.OR,
}  # fmt: skip
_BY = {
    TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.PARTITION_BY, TokenType.SORT_BY, TokenType.DISTRIBUTE_BY,
    TokenType.CLUSTER_BY,
}  # fmt: skip
_PREDICATES = {TokenType.BETWEEN, TokenType.ILIKE, TokenType.LIKE, TokenType.RLIKE}
_TABLES = {TokenType.FROM, TokenType.JOIN}
_BEFORE = {
    TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.COMMA, TokenType.SELECT, TokenType.WHERE, TokenType.HAVING,
    TokenType.QUALIFY, TokenType.NOT, TokenType.ON, TokenType.WHEN, TokenType.THEN, TokenType.ELSE,
    TokenType.CASE, TokenType.PLUS, TokenType.DASH, TokenType.TILDE, TokenType.ARROW, TokenType.FARROW, TokenType.ALIAS,
    *_OPERATORS, *_PREDICATES, *_BY, *_TABLES,
}  # fmt: skip
"""Tokens before an operand, an alias or a table."""
_AFTER = {
    TokenType.R_PAREN, TokenType.L_BRACKET, TokenType.R_BRACKET, TokenType.COMMA, TokenType.DOT, TokenType.ALIAS,
    TokenType.DCOLON, TokenType.FARROW, TokenType.SEMICOLON, TokenType.FROM, TokenType.WHERE, TokenType.HAVING,
    TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.UNION, TokenType.IS, TokenType.IN,
    TokenType.ASC, TokenType.DESC, TokenType.THEN, TokenType.JOIN, *_OPERATORS,
}  # fmt: skip
_AFTER_NAME = _AFTER | _PREDICATES | {
    TokenType.ELSE, TokenType.END, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.LIMIT, TokenType.RANGE,
    TokenType.ROWS, TokenType.WHEN,
}  # fmt: skip
"""Tokens after one that cannot begin an operand: a word between one of these and one of those is a name.

ALL and DISTINCT are names before fewer of them, for these may be the name of the column that follows."""
_FUNCTIONS = _PREDICATES - {TokenType.BETWEEN}
"""Predicates that Spark has as functions, too: `regexp(a, '[0-9]')`."""
_NEGATED = _PREDICATES | {TokenType.IN}
_QUANTIFIERS = {TokenType.ALL, TokenType.DISTINCT}
_QUANTIFIED = {TokenType.SELECT, TokenType.L_PAREN}
_PREFIXES: dict[TokenType, Collection[TokenType | None]] = {
    TokenType.ALL: _QUANTIFIED, TokenType.DISTINCT: _QUANTIFIED, TokenType.NOT: {None, *_BEFORE},
    TokenType.SELECT: {None, TokenType.L_PAREN, TokenType.ALIAS},
    TokenType.VALUES: {TokenType.L_PAREN, TokenType.ALIAS, *_TABLES}, TokenType.WHEN: {TokenType.CASE},
}  # fmt: skip
"""Words that have an operand, by the tokens before them; elsewhere, and before a sign, words are names: `for - 1`."""
_SIGNS = {TokenType.DASH, TokenType.PLUS, TokenType.STAR}
_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1, TokenType.END: -1}
_AFTER_ALIAS = {
    TokenType.COMMA, TokenType.FROM, TokenType.GROUP_BY, TokenType.HAVING, TokenType.JOIN, TokenType.ORDER_BY,
    TokenType.R_PAREN, TokenType.SEMICOLON, TokenType.WHERE,
}  # fmt: skip
_NO_ALIAS = {
    TokenType.CROSS, TokenType.CUBE, TokenType.EXCEPT, TokenType.INNER, TokenType.INTERSECT, TokenType.OUTER,
    TokenType.ROLLUP, TokenType.UNION, *_AFTER_ALIAS,
}  # fmt: skip
"""Words that may end a clause, begin one, or connect two queries: `SELECT 1 UNION FROM t`."""
_WORDS = (_AFTER_NAME - {TokenType.ASC, TokenType.DESC, TokenType.END}) & {
    kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word.isalpha()
}
"""Words that may follow a name, or be one themselves."""
_ENDS_ITEM = {TokenType.WHEN, *_AFTER_ALIAS}
_OPERANDS = {TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, *TEXTS}
_BEGIN_OPERANDS = {*_OPERANDS, TokenType.L_PAREN, TokenType.CASE, TokenType.DASH, TokenType.PLUS, TokenType.INTERVAL}
_END_OPERANDS = {*_OPERANDS, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END}
"""Tokens beside a star that is a product: `2 * for`, `all * 2`, and not `SELECT DISTINCT *`."""
_PARSED_AS_NAMES = Spark.Parser.ID_VAR_TOKENS - {
    TokenType.ALL, TokenType.CASE, TokenType.CUBE, TokenType.DISTINCT, TokenType.FETCH, TokenType.LIMIT, TokenType.LOCK,
    TokenType.OFFSET, TokenType.ROLLUP,
}  # fmt: skip
"""Tokens that sqlglot reads as names, too: types, for example."""


def named_by_words(tokens: list[Token]) -> list[Token]:
    """Make names of the words that are names, in place. Returns the same tokens."""
    for index, token in enumerate(tokens):
        is_word = token.text.isidentifier() and len(token.text) == token.end - token.start + 1  # and not in quotes
        if is_word and token.text.upper() not in _VALUES and _is_name(token, index, tokens):
            token.token_type = TokenType.VAR
    return tokens


def _is_name(token: Token, index: int, tokens: Sequence[Token]) -> bool:
    kind, before = token.token_type, _before(index, tokens)
    after, next_but_one = (
        tokens[place].token_type if place < len(tokens) else TokenType.SEMICOLON for place in (index + 1, index + 2)
    )
    if after is TokenType.VAR and tokens[index + 1].text.upper() == "NULLS":
        after = TokenType.DESC  # ORDER BY values NULLS LAST
    if after is TokenType.NOT and next_but_one in _NEGATED:
        after = next_but_one
    if kind is TokenType.ALL and before in _BY:
        return after in (TokenType.DOT, *_OPERATORS)  # GROUP BY ALL
    if before in (TokenType.WITH, TokenType.RECURSIVE):
        return after is TokenType.ALIAS  # not GROUP BY a WITH ROLLUP
    if before is TokenType.DOT:
        return True
    if kind is TokenType.CASE and _has_branches(index, tokens):
        return False
    is_prefix = before in _PREFIXES.get(kind, ())
    if is_prefix and after in _WORDS and next_but_one in _AFTER:
        return False  # SELECT DISTINCT from FROM t
    if after is TokenType.STAR and next_but_one in _BEGIN_OPERANDS:
        after = TokenType.SLASH
    if kind is TokenType.NOT and after in _FUNCTIONS and next_but_one is TokenType.L_PAREN:
        return False  # WHERE NOT rlike(a, '[0-9]')
    if kind in _FUNCTIONS and after is TokenType.L_PAREN:
        if before is TokenType.NOT:  # a NOT RLIKE ('[0-9]')
            before = tokens[index - 2].token_type if index > 1 else None
        return before in _BEFORE
    if kind in _PARSED_AS_NAMES and before not in _TABLES:
        return False
    if before in _END_OPERANDS:
        named = after in _WORDS and next_but_one in _AFTER_NAME  # a AS from FROM t
        return after in _AFTER_ALIAS and kind not in _NO_ALIAS and not named
    if after in _SIGNS and not is_prefix:
        return before in _BEFORE
    return before in _BEFORE and after in (_AFTER if kind in _QUANTIFIERS else _AFTER_NAME)


def _before(index: int, tokens: Sequence[Token]) -> TokenType | None:
    """What is before a word: SELECT if that is `SELECT ALL`, an operator if it is the star of a product."""
    before, last_but_one = (tokens[place].token_type if place >= 0 else None for place in (index - 1, index - 2))
    if before in _QUANTIFIERS and last_but_one in _QUANTIFIED:
        return last_but_one
    return TokenType.SLASH if before is TokenType.STAR and last_but_one in _END_OPERANDS else before


def _has_branches(index: int, tokens: Sequence[Token]) -> bool:
    """Whether WHEN follows the word CASE before its item ends, outside of parentheses and of another CASE."""
    depth = 0
    for place in range(index + 1, len(tokens)):
        kind = tokens[place].token_type
        if kind is TokenType.CASE and place > index + 1 and tokens[place + 1 : place + 2]:
            depth += tokens[place + 1].token_type is TokenType.WHEN
        depth += _DEPTHS.get(kind, 0)
        if depth < 0 or (not depth and kind in _ENDS_ITEM):
            return kind is TokenType.WHEN
    return False


def _is_shift(before: Sequence[Token], after: Sequence[Token]) -> bool:
    """Whether what is between tokens is between operands."""
    return bool(before and after) and (
        before[-1].token_type in _END_OPERANDS and after[0].token_type in _BEGIN_OPERANDS
    )


def _is_hexadecimal(before: Sequence[Token]) -> bool:
    """Whether the last token is X, and no field."""
    named = bool(before) and before[-1].token_type is TokenType.VAR and before[-1].text.upper() == "X"
    return named and not (len(before) > 1 and before[-2].token_type is TokenType.DOT)


def joined(sql: str, tokens: list[Token]) -> list[Token]:
    """Join the tokens of `1L`, which sqlglot would read as a cast, of `'a' 'b'`, as concat, `X '1F'`, `>>>` and `!>`.

    In OPTIONS ('a' 'b') and similar lists they are a key and its value.
    """
    found: list[Token] = []
    listed = False
    for index, token in enumerate(tokens):
        before = found[-1] if found else token
        if token.token_type is TokenType.L_PAREN:
            listed = before.text.upper() in _LISTS
        listed = listed and token.token_type is not TokenType.R_PAREN
        if token is not before and not listed and {before.token_type, token.token_type} <= TEXTS:
            before.text += token.text
            before.token_type = TokenType.STRING
            before.end = token.end
        elif token is not before and before.text == "!" and token.start == before.end + 1 and token.text in ("<", ">"):
            before.text, before.end = sql[before.start : token.end + 1], token.end
            before.token_type = TokenType.GTE if token.text == "<" else TokenType.LTE
        elif _is_hexadecimal(found) and token.token_type in TEXTS:  # X '1F' with a space
            before.text, before.end, before.token_type = token.text, token.end, TokenType.HEX_STRING
        elif sql[token.start : token.start + 3] == ">>>" and _is_shift(found, tokens[index + 3 : index + 4]):
            # Not the end of a type: array<array<array<int>>>.
            token.text, token.end, token.token_type = ">>>", token.end + 2, UNSIGNED_SHIFT
            found.append(token)
        elif found and found[-1].token_type is UNSIGNED_SHIFT and token.start <= found[-1].end:
            pass
        elif token is not before and before.token_type is TokenType.NUMBER and token.start == before.start:
            # The suffix of a number has the position of the number: first "::", then the type.
            if token.token_type is not TokenType.DCOLON:
                before.text = sql[before.start : token.end + 1]
                before.end = token.end
        else:
            found.append(token)
    return found


def without_comments(sql: str) -> str:
    """The text with blanks in place of comments; positions and lines stay. A comment that does not end stays."""
    pieces, at = [], 0
    while (found := _PIECE.search(sql, at)) is not None:
        stop = found.end()
        if found["begin"]:
            stop = _end_of_comment(sql, stop)
        text = sql[found.start() : stop]
        is_comment = found["line"] or (found["begin"] and text.endswith("*/"))
        pieces += [sql[at : found.start()], re.sub(r"[^\r\n]", " ", text) if is_comment else text]
        at = stop
    return "".join([*pieces, sql[at:]])


def _end_of_comment(sql: str, at: int) -> int:
    """The end of a comment that may contain others."""
    depth = 1
    while depth and (found := _ENDS.search(sql, at)) is not None:
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return len(sql) if depth else at
