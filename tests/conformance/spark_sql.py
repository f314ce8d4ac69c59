"""Flink SQL as Spark SQL.

LATERAL VIEW keeps Spark's order of rows and a lateral join does not, so a lateral call of a table
function becomes the former. A table function is a function that returns an array here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import sqlglot
from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

__all__ = ["Flink", "Named", "Target", "calls", "named_columns", "parse", "to_spark"]


_SAME = frozenset({"CONCAT_WS", "REGEXP_EXTRACT", "TIMESTAMPDIFF"})
"""Functions that Spark has as Flink has them, and which sqlglot would read as something else."""


class Flink(Dialect):
    """The differences of Flink SQL from sqlglot's own dialect."""

    class Tokenizer(tokens.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012 - sqlglot's way
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012
        KEYWORDS = {  # noqa: RUF012
            **tokens.Tokenizer.KEYWORDS,
            "BYTES": TokenType.VARBINARY,
            "MULTISET": TokenType.MULTISET if hasattr(TokenType, "MULTISET") else TokenType.ARRAY,
            "ROW": TokenType.STRUCT,
            "STRING": TokenType.TEXT,
            "TIMESTAMP": TokenType.TIMESTAMPNTZ,
            "TIMESTAMP_LTZ": TokenType.TIMESTAMPLTZ,
        }

    class Parser(parser.Parser):
        FUNCTIONS = {name: read for name, read in parser.Parser.FUNCTIONS.items() if name not in _SAME}  # noqa: RUF012


@dataclass(frozen=True)
class Target:
    """The name of a function in Spark, and the Spark types of its parameters, "" for one with several types."""

    name: str
    parameters: tuple[str, ...] = ()


Named = Callable[[str, int], Target | None]
"""From the name of a function and its number of arguments to what it is in Spark; None leaves it."""

_RENAMED = {
    "ARRAY_REDUCE": "reduce",
    "ARRAY_TRANSFORM": "transform",
    "JSON_VALUE": "get_json_object",
    "ROW": "struct",
    "TO_TIMESTAMP": "to_timestamp_ntz",
}
_OF_PRECISION = {"0": "timestamp_seconds", "3": "timestamp_millis"}
"""What TO_TIMESTAMP_LTZ of a number is in Spark, by the precision that follows the number."""
_NOT_NULL = re.compile(r"(?<!\bIS)\s+NOT\s+NULL(?=\s*[>,])", re.IGNORECASE)
"""Inside of a type, where sqlglot does not read it; columns of Spark's types are nullable anyway."""
_TIMES = (exp.DataType.Type.TIMESTAMPNTZ, exp.DataType.Type.TIMESTAMPLTZ, exp.DataType.Type.TIMESTAMPTZ)


def parse(query: str) -> Any:
    """The query's tree, an Expression of sqlglot. Raises sqlglot.errors.ParseError."""
    return sqlglot.parse_one(_NOT_NULL.sub("", query), dialect=Flink)


def to_spark(query: str | exp.Expression, named: Named, *, inlined: frozenset[str] = frozenset()) -> str:
    """The query in Spark SQL, calls renamed by `named`.

    `inlined` holds, in lower case, the table functions whose rows have several columns: they return
    arrays of structs.
    """
    tree = (parse(query) if isinstance(query, str) else query).copy()
    for pattern in list(tree.find_all(exp.SimilarTo)):
        pattern.replace(exp.RegexpLike(this=pattern.this, expression=_regular(pattern.expression)))
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.upper() == "SPLIT_INDEX":
            call.replace(_part(*call.expressions))
            continue
        if call.name.upper() == "LISTAGG" and len(call.expressions) == 1:
            call.append("expressions", exp.Literal.string(","))
        call.set("this", _RENAMED.get(call.name.upper(), call.this))
        if call.name.upper() == "TO_TIMESTAMP_LTZ" and len(call.expressions) <= 2:
            number, *precision = call.expressions
            call.set("this", _OF_PRECISION.get(precision[0].name if precision else "3", call.this))
            call.set("expressions", [number])
    for access in list(tree.find_all(exp.Bracket)):
        access.replace(_access(access))
    _laterals_to_views(tree, named, inlined)
    for call in calls(tree):
        target = named(call.name, len(call.expressions))
        if target is not None:
            arguments = zip_longest(call.expressions, target.parameters[: len(call.expressions)])
            call.set("expressions", [_narrowed(argument, type_) for argument, type_ in arguments])
            call.set("this", exp.to_identifier(target.name, quoted=True))
    for type_ in tree.find_all(exp.DataType):
        if type_.this in _TIMES:
            type_.set("expressions", [])
    return tree.sql(dialect="spark", normalize_functions=False)


def _part(text: exp.Expression, separator: exp.Expression, index: exp.Expression) -> exp.Expression:
    """SPLIT_INDEX counts from 0, takes its separator as it is, and has NULL where there is no such part."""
    quoted = exp.Concat(expressions=[exp.Literal.string(r"\Q"), separator, exp.Literal.string(r"\E")])
    parts = exp.Anonymous(this="split", expressions=[text, quoted])
    return exp.Anonymous(this="get", expressions=[parts, index])


def _regular(pattern: exp.Expression) -> exp.Expression:
    """A pattern of SIMILAR TO, which matches the whole text, as a regular expression."""
    if not isinstance(pattern, exp.Literal):
        return pattern
    words = {"%": ".*", "_": "."}
    return exp.Literal.string(f"^(?:{''.join(words.get(letter, letter) for letter in pattern.name)})$")


def _narrowed(argument: Any, type_: str | None) -> exp.Expression:
    """Narrows Spark's SUM and AVG to their argument's type, which they have in Flink and a function may require."""
    own = argument.walk(prune=lambda node: isinstance(node, exp.Anonymous))
    if type_ and any(isinstance(node, exp.AggFunc) for node in own):
        return exp.cast(argument, exp.DataType.build(type_, dialect="spark"))
    return argument


def named_columns(query: str) -> list[str]:
    """By item of the outermost SELECT: alias, column or expression; empty for a star, or another text."""
    begin = end = None
    depth = 0
    for place, letter in enumerate(query):
        depth += (letter == "(") - (letter == ")")
        word = depth == 0 and re.match(r"\b(SELECT(?:\s+DISTINCT)?|FROM)\b", query[place:], re.IGNORECASE)
        if word and (place == 0 or not re.match(r"[\w`.]", query[place - 1])):
            if begin is None and word[1].upper() != "FROM":
                begin = place + word.end()
            elif begin is not None and word[1].upper() == "FROM":
                end = place
                break
    if begin is None:
        return []
    try:
        items = parse(f"SELECT {query[begin:end]}").expressions
    except SqlglotError:
        return []
    if any(isinstance(item, exp.Star) or item.is_star for item in items):
        return []
    return [
        "alias" if isinstance(item, exp.Alias) else "column" if isinstance(item, exp.Column) else "expression"
        for item in items
    ]


def calls(tree: exp.Expression) -> Iterator[exp.Anonymous]:
    """The calls of functions that sqlglot does not know."""
    return iter(list(tree.find_all(exp.Anonymous)))


def _access(access: exp.Bracket) -> exp.Expression:
    """`MAP['a', 1]` makes a map; `a[1]` is the first element of an array, or a map's value of the key 1."""
    owner = access.this
    if isinstance(owner, exp.Column) and owner.name.upper() == "MAP" and not owner.table:
        return exp.Anonymous(this="map", expressions=access.expressions)
    return exp.Anonymous(this="try_element_at", expressions=[owner, *access.expressions])


def _laterals_to_views(tree: exp.Expression, named: Named, inlined: frozenset[str]) -> None:
    numbers = iter(range(1_000))
    for select in list(tree.find_all(exp.Select)):
        kept, views = [], []
        for join in select.args.get("joins") or ():
            call = _table_call(join.this, named)
            condition = join.args.get("on")
            true = condition is None or (isinstance(condition, exp.Boolean) and condition.this)
            outer = join.side == "LEFT"
            if call is not None and outer and not true:
                join.set("this", _lateral_query(join.this, call, inlined))
            if call is None or (outer and not true):
                kept.append(join)
                continue
            if not true:
                select.where(condition, copy=False)
            alias = join.this.args.get("alias") or exp.TableAlias()
            if alias.this is None:
                alias.set("this", exp.to_identifier(f"__lateral_{next(numbers)}"))
            views.append(exp.Lateral(this=_generator(call, inlined), view=True, outer=outer, alias=alias))
        if views:
            select.set("joins", kept)
            select.set("laterals", [*(select.args.get("laterals") or ()), *views])
        _table_in_from(select, named, inlined)


def _lateral_query(source: exp.Lateral, call: exp.Anonymous, inlined: frozenset[str]) -> exp.Lateral:
    """LATERAL VIEW has no condition, so a call with one is a subquery."""
    alias = source.args.get("alias") or exp.TableAlias()
    query = exp.select("*").from_(exp.Table(this=_generator(call, inlined)))
    return exp.Lateral(this=exp.Subquery(this=query), alias=alias.copy())


def _table_in_from(select: exp.Select, named: Named, inlined: frozenset[str]) -> None:
    source = select.args.get("from_") or select.args.get("from")
    call = _table_call(source.this, named) if source is not None else None
    if source is not None and call is not None:
        alias = source.this.args.get("alias")
        source.set("this", exp.Table(this=_generator(call, inlined), alias=alias))


def _table_call(source: Any, named: Named) -> exp.Anonymous | None:
    """The call inside `LATERAL TABLE(f(x))`, `LATERAL f(x)`, `TABLE(f(x))`, or `f(x)` of a function of the case."""
    if not isinstance(source, (exp.Lateral, exp.Table)) or source.args.get("view"):
        return None
    call = source.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
        return call if isinstance(call, exp.Anonymous) else None
    if not isinstance(call, exp.Anonymous):
        return None
    return call if isinstance(source, exp.Lateral) or named(call.name, len(call.expressions)) is not None else None


def _generator(call: exp.Anonymous, inlined: frozenset[str]) -> exp.Anonymous:
    name = "inline" if call.name.lower() in inlined else "explode"
    return exp.Anonymous(this=name, expressions=[call.copy()])
