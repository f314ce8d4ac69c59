"""Spans: the part of the text that a node was read from, for as long as the node is what was read.

The parser records the first and the last token of what its methods return. When a text is parsed, `anchor` replaces
these records by spans that know the hash of their node, which is that of its class, names, values and children. Passes
change trees in many ways, so whether a node is unchanged is found by comparing hashes when it is written. The hashes of
sqlglot ignore case, and are not computed again after every change.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from spark_client.sql.text.nodes import Node

__all__ = ["FLINK", "SpansParser", "TextSpan", "anchor", "hash_of", "hashes_of", "recording", "span_of"]

_SPAN = "remote_sql_span"
"""The key in the metadata of a node for its span, which copies keep."""
FLINK = "remote_sql_flink"
"""The key in the metadata of a node whose spelling is Flink's, so that Spark cannot read its text."""
_RECORDED = (
    "expression", "equality", "range", "unary", "type", "types", "atom", "column", "primary", "paren",
    "function", "string", "ordered", "id_var", "name", "value", "derived_table_values",
    "table", "table_parts", "select", "wrapped_select", "ddl_select", "cte", "statement", "named_window",
    "from", "join", "lateral", "table_sample", "pivot", "where", "group", "having", "qualify", "order", "sort", "limit",
    "offset", "hint",
)  # fmt: skip
"""The methods of the parser whose nodes get a span, without `_parse_`; a release of sqlglot may lack some.

A method that skips tokens which are no part of its node, such as ALL in `f(ALL x)`, is not one of them, nor is one
that may omit the first word, as in `INTERVAL 1 DAY 2 HOURS`. Methods of operators in _INFIX are not, either: each takes
a frame of Python's stack for each call in another, and the span of such an operator follows from its operands.
"""
_INFIX = (
    exp.Add, exp.And, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.Div, exp.DPipe, exp.EQ, exp.GT, exp.GTE,
    exp.IntDiv, exp.LT, exp.LTE, exp.Mod, exp.Mul, exp.NEQ, exp.NullSafeEQ, exp.Or, exp.Sub,
)  # fmt: skip
"""Operators whose text begins with their first operand and ends with their second one."""

_Parser = TypeVar("_Parser", bound=type)
_Method: TypeAlias = Callable[..., Any]


def recording(parser: _Parser) -> _Parser:
    """Have the methods of a parser record the tokens of each node; a decorator."""
    for name in _RECORDED:
        if (method := getattr(parser, f"_parse_{name}", None)) is not None:
            setattr(parser, f"_parse_{name}", _recorded(method))
    return parser


def _recorded(parse: _Method) -> _Method:
    @functools.wraps(parse)
    def parse_and_record(self: Any, *args: Any, **options: Any) -> Any:
        begin = self._index
        node = parse(self, *args, **options)
        # Most methods return what another one has returned.
        if node is None or self.latest == (id(node), begin, self._index):
            return node
        # A node that is passed was begun before, and so was a clause whose first word is skipped.
        begun = (args and isinstance(args[0], Node)) or (options and any(name.startswith("skip_") for name in options))
        if isinstance(node, Node) and not begun:
            self._record(node, begin)
        return node

    return parse_and_record


class SpansParser(Spark.Parser):  # type: ignore[misc, valid-type]
    """Spark's parser, which can record the tokens of a node."""

    latest = (0, 0, 0)
    """The id of the node that was recorded last, and its tokens."""
    _begin_of_query = 0

    def _parse_select(self, *args: Any, **options: Any) -> Any:
        outer, self._begin_of_query = self._begin_of_query, self._index
        try:
            return super()._parse_select(*args, **options)
        finally:
            self._begin_of_query = outer

    def _parse_set_operations(self, this: Any) -> Any:
        # No method returns the first query of a UNION alone.
        if isinstance(this, exp.Query) and _SPAN not in this.meta:
            self._record(this, self._begin_of_query)
        return super()._parse_set_operations(this)

    def _record(self, node: Node, begin: int) -> None:
        """Record that a node has the tokens from `begin` to the current one, besides those recorded before."""
        if begin < self._index:
            start, stop = self._tokens[begin].start, self._tokens[self._index - 1].end + 1
            known = node.meta.get(_SPAN)
            if known is not None and known[0] is self.sql:
                start, stop = min(start, known[1]), max(stop, known[2])
            node.meta[_SPAN] = (self.sql, start, stop)
            self.latest = (id(node), begin, self._index)


class TextSpan:
    """A part of a text, and the hash of the node that was read from it. Never changed, so copies of a node share it.

    The hash is None if the node has a part in Flink's spelling. `queries` has the spans of the queries directly inside
    the node by their keys, and `around` is the hash of the node without them.
    """

    __slots__ = ("around", "hash", "queries", "sql", "start", "stop")

    def __init__(self, sql: str, start: int, stop: int) -> None:
        self.sql, self.start, self.stop = sql, start, stop
        self.hash: int | None = None
        self.around: int | None = None
        self.queries: dict[str, TextSpan] = {}

    def __deepcopy__(self, _: object) -> "TextSpan":
        return self

    @property
    def text(self) -> str:
        """The part of the text."""
        return self.sql[self.start : self.stop]


def hashes_of(nodes: Sequence[Node]) -> dict[int, int | None]:
    """The hashes by the ids of the nodes of a tree, which are in the order of `dfs`.

    A node in Flink's spelling has none, nor has one around it.
    """
    found: dict[int, int | None] = {}
    for node in reversed(nodes):
        found[id(node)] = hash_of(node, found)
    return found


def hash_of(node: Node, inside: Mapping[int, int | None], without: Collection[str] = ()) -> int | None:
    """The hash of a node without some of its children; `inside` has those of the nodes in it."""
    if node.meta.get(FLINK):
        return None
    parts: list[object] = [node.__class__]
    for name in sorted(node.args):
        value = node.args[name]
        if value is None or value is False or value == [] or name in without:
            continue
        parts.append(name)
        for each in value if value.__class__ is list else (value,):
            if not isinstance(each, Node):
                parts.append((each.__class__, each))
            elif (known := inside[id(each)]) is not None:
                parts.append(known)
            else:
                return None
    return hash(tuple(parts))


def span_of(node: Node) -> TextSpan | None:
    """The span of a node of an anchored tree, whether the node is unchanged or not; None if it has none."""
    found = node.meta.get(_SPAN)
    return found if isinstance(found, TextSpan) else None


def anchor(tree: Node, sql: str, cut: int | None = None) -> Node:
    """Turn the records of the parser into spans. Returns the same tree.

    What has tokens on both sides of `cut`, where the parser did not see all tokens, has no span.
    """
    places: dict[int, tuple[int, int] | None] = {}
    # Not recursive: a chain of operators may be deeper than Python's stack.
    nodes = list(tree.dfs())
    for node in reversed(nodes):
        places[id(node)] = _anchor(node, sql, cut, places)
    found = hashes_of(nodes)
    for node in nodes:
        if (span := span_of(node)) is not None:
            span.hash = found[id(node)]
            queries = {key: query for key, query in node.args.items() if isinstance(query, exp.Query)}
            span.queries = {key: inner for key, query in queries.items() if (inner := span_of(query)) is not None}
            span.around = hash_of(node, found, span.queries) if span.queries else None
    return tree


def _anchor(
    node: Node, sql: str, cut: int | None, places: Mapping[int, tuple[int, int] | None]
) -> tuple[int, int] | None:
    """Replace the record of a node, and return the first and the last position in it; `places` has those inside it."""
    record = node.meta.pop(_SPAN, None)
    inside = [(*place, child) for child in node.iter_expressions() if (place := places[id(child)]) is not None]
    first, last, in_order = len(sql), 0, True
    for start, stop, _ in inside:
        in_order = in_order and last <= start
        first, last = min(first, start), max(last, stop)
    if not in_order:
        _separate(sorted(inside, key=lambda found: found[:2]))
    if record is None and in_order and isinstance(node, _INFIX):
        operands = [span_of(node.this), span_of(node.expression)]
        if all(span is not None and span.sql is sql for span in operands):
            record = (sql, first, last)
    # A hint has a parser of its own, with a text of its own.
    if record is None or record[0] is not sql:
        return (first, last) if inside else None
    if record[1] <= first and last <= record[2] and not (cut is not None and record[1] < cut < record[2]):
        node.meta[_SPAN] = TextSpan(*record)
    return min(first, record[1]), max(last, record[2])


def _separate(inside: list[tuple[int, int, Node]]) -> None:
    """Remove the spans in a tree that a tree beside it is in.

    The parser moves ORDER BY from the last query of a UNION to the UNION, and WITH from before INSERT to its query.
    """
    if all(before[1] <= after[0] for before, after in itertools.pairwise(inside)):
        return
    for (_, end, tree), (start, stop, _) in itertools.combinations(inside, 2):
        if start < end:
            for node in tree.walk():
                if (span := span_of(node)) is not None and span.start < stop and start < span.stop:
                    del node.meta[_SPAN]
