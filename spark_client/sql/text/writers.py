"""The two writers of trees.

`written` is for Spark: what is unchanged since the text was parsed is the user's own text, with its comments and its
spelling, and the rest is written from its parts. `canonical` is for everything that compares, names or shows
expressions: `f(a,b)` and `f(a, b)` are one call.
"""

from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.text.dialect import TOO_DEEP, RemoteSpark
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.spans import Found, Shapes, TextSpan, span_of

__all__ = ["canonical", "written"]

_CLAUSES = (
    exp.From, exp.Join, exp.Lateral, exp.TableSample, exp.Pivot, exp.Where, exp.Group, exp.Having, exp.Qualify,
    exp.Order, exp.Sort, exp.Cluster, exp.Distribute, exp.Limit, exp.Offset, exp.Hint,
)  # fmt: skip
"""Nodes before which sqlglot writes a space."""


class _Writer(RemoteSpark.Generator):
    """Writes one tree, of which it keeps what is unchanged."""

    def __init__(self, shapes: Shapes, found: Found) -> None:
        super().__init__(dialect=RemoteSpark(), normalize_functions=False, comments=False)
        self._shapes = shapes
        self._found = found

    def sql(self, expression: Node | str | None, key: str | None = None, comment: bool = True) -> str:
        if key is None and id(expression) in self._found:
            node, shape = self._found[id(expression)]
            span = span_of(node)
            if span is not None and span.shapes is self._shapes:
                before = " " if isinstance(node, _CLAUSES) else ""
                if shape is not None and shape == span.shape:
                    return before + span.text
                if span.queries and self._is_around(node, span):
                    return before + self._with_new_queries(node, span)
        return str(super().sql(expression, key, comment))

    def _is_around(self, node: Node, span: TextSpan) -> bool:
        """Whether a node is unchanged but for the queries directly inside it."""
        if span.around is None or not all(isinstance(node.args.get(key), exp.Query) for key in span.queries):
            return False
        return self._shapes.around(node, self._found, span.queries) == span.around

    def _with_new_queries(self, node: Node, span: TextSpan) -> str:
        pieces, at = [], span.start
        for key, query in sorted(span.queries.items(), key=lambda item: item[1].start):
            pieces += [span.sql[at : query.start], self.sql(node.args[key])]
            at = query.stop
        return "".join([*pieces, span.sql[at : span.stop]])


def written(tree: Node) -> str:
    """The tree for Spark: the user's text wherever it is unchanged. Raises PlanError if the tree is too deep."""
    shapes = next((span.shapes for node in tree.walk() if (span := span_of(node)) is not None), None)
    if shapes is None:
        return canonical(tree)
    try:
        copy = tree.copy()
        found = shapes.of(list(copy.dfs()))
        return str(_Writer(shapes, found).generate(copy, copy=False))
    except RecursionError:
        raise PlanError(TOO_DEEP) from None


def canonical(tree: Node) -> str:
    """A text that is equal for equal trees, in the spelling of Spark. Raises PlanError if the tree is too deep."""
    try:
        return str(tree.sql(dialect=RemoteSpark, normalize_functions=False, comments=False))
    except RecursionError:
        raise PlanError(TOO_DEEP) from None
