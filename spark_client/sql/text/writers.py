"""The two writers of trees.

`written` is for Spark: what is unchanged since the text was parsed is the user's own text, with its comments and its
spelling, and the rest is written from its parts. `canonical` is for everything that compares, names or shows
expressions: `f(a,b)` and `f(a, b)` are one call.
"""

from typing import Any

from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.text.dialect import TOO_DEEP, RemoteSpark
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.spans import TextSpan, hash_of, hashes_of, span_of

__all__ = ["canonical", "written"]

_CLAUSES = (
    exp.From, exp.Join, exp.Lateral, exp.TableSample, exp.Pivot, exp.Where, exp.Group, exp.Having, exp.Qualify,
    exp.Order, exp.Sort, exp.Cluster, exp.Distribute, exp.Limit, exp.Offset, exp.Hint,
)  # fmt: skip
"""Nodes before which sqlglot writes a space."""
_OPTIONS: dict[str, Any] = {"dialect": RemoteSpark(), "normalize_functions": False, "comments": False}


class _Writer(RemoteSpark.Generator):
    """Writes a tree, of which it keeps what is unchanged."""

    def __init__(self, tree: Node) -> None:
        super().__init__(**_OPTIONS)
        self._nodes = list(tree.dfs())  # kept, so that no other node gets the id of one of them
        self._found = hashes_of(self._nodes)

    def sql(self, expression: Node | str | None, key: str | None = None, comment: bool = True) -> str:
        if key is None and isinstance(expression, Node) and id(expression) in self._found:
            span = span_of(expression)
            before = " " if isinstance(expression, _CLAUSES) else ""
            if span is not None and span.hash is not None and span.hash == self._found[id(expression)]:
                return before + span.text
            if span is not None and self._is_around(expression, span):
                return before + self._with_new_queries(expression, span)
        return str(super().sql(expression, key, comment))

    def _is_around(self, node: Node, span: TextSpan) -> bool:
        """Whether a node is unchanged but for the queries directly inside it."""
        if span.around is None or not all(isinstance(node.args.get(key), exp.Query) for key in span.queries):
            return False
        return hash_of(node, self._found, span.queries) == span.around

    def _with_new_queries(self, node: Node, span: TextSpan) -> str:
        pieces, at = [], span.start
        for key, query in sorted(span.queries.items(), key=lambda item: item[1].start):
            pieces += [span.sql[at : query.start], self.sql(node.args[key])]
            at = query.stop
        return "".join([*pieces, span.sql[at : span.stop]])


def written(tree: Node) -> str:
    """The tree for Spark: the user's text wherever it is unchanged. Raises PlanError if the tree is too deep."""
    copy = tree.copy()
    return _generated(_Writer(copy), copy)


def canonical(tree: Node) -> str:
    """A text that is equal for equal trees, in the spelling of Spark. Raises PlanError if the tree is too deep."""
    return _generated(RemoteSpark.Generator(**_OPTIONS), tree.copy())


def _generated(writer: RemoteSpark.Generator, tree: Node) -> str:
    try:
        return str(writer.generate(tree, copy=False))
    except RecursionError:
        raise PlanError(TOO_DEEP) from None
