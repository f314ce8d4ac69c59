"""Hidden columns: expressions that the rest of a SELECT needs of its rows, computed below the rest.

If FILTER, CASE or a similar construct may skip an expression, it stays an expression, over hidden columns of the
columns that it refers to.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import Column
from pyspark.sql import functions as F
from sqlglot import exp

from remote_udf.errors import UnsupportedType
from spark_client.base.errors import PlanError
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.window import Ordered
from spark_client.sql.rows.calls import RemoteCall, is_scalar
from spark_client.sql.rows.scope import HIDDEN, Scope
from spark_client.sql.rows.sources import SelectSource
from spark_client.sql.text.nodes import Node, column
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical, written

__all__ = [
    "HiddenColumns",
    "is_column_of_rows",
    "is_computed",
    "keep_field_names",
    "named_as_written",
    "order_of",
    "sort_of",
]

_QUERIES = (exp.Any, exp.All, exp.Exists, exp.In)
"""Conditions on a query: the query is not an expression without them."""


class HiddenColumns:
    """The hidden columns of one SELECT. Equal expressions share a column."""

    def __init__(self, scope: Scope, source: SelectSource) -> None:
        self._scope = scope
        self._source = source
        self._known: dict[str, tuple[str, Node]] = {}

    def items(self) -> dict[str, Node]:
        """The expressions by the names of their columns."""
        return dict(self._known.values())

    def name(self, tree: Node) -> str:
        """The column of an expression, which is computed for every row."""
        return self._known.setdefault(self._source.same(tree), (self._scope.hidden("column"), tree.copy()))[0]

    def over(self, tree: Node, seen: Callable[[Node], Node | None] = lambda _: None) -> Node:
        """The expression over hidden columns of its operands. Spark evaluates it in its original position, or skips it.

        `seen` returns the replacement of a node that must not be hidden, else None. Raises PlanError for a `*` in it.
        """

        def visit(node: Node) -> Node:
            if (known := seen(node)) is not None:
                return known
            if isinstance(node, exp.Star):
                raise error_at(tree, f"{canonical(tree)}: name the columns instead of *")
            keep_field_names(node)
            return column(self.name(node)) if is_column_of_rows(node) else node

        return tree.transform(visit)

    def guarded(self, tree: Node) -> Node:
        """The expression over hidden columns, without parameters and subqueries, which DataFrames do not support."""
        if any(isinstance(node, exp.Star) for node in tree.walk()):
            return column(self.name(tree))

        def seen(node: Node) -> Node | None:
            return column(self.name(node)) if _is_parameter(node) or self.is_call(node) else None

        return self.over(tree, seen)

    def is_call(self, node: Node) -> bool:
        """Whether a node is a call of a remote scalar function, which Spark makes for every row in any position."""
        return is_scalar(node, self._scope.functions)

    def aggregate(self, read: RemoteCall) -> AggregateExpression:
        """Create the call of a remote aggregate. FILTER also prevents the evaluation of its arguments.

        Raises PlanError, with the position, for a wrong number of arguments.
        """
        columns: list[Column | str] = []
        for each in read.arguments:
            over = column(self.name(each)) if read.condition is None else self.guarded(each)
            columns.append(over.name if isinstance(over, exp.Column) else F.expr(written(over)))
        try:
            expression = self._scope.functions.aggregate(read.name, *columns)
        except PlanError as error:
            raise error_at(read.tree, str(error)) from None
        expression = expression.distinct() if read.distinct else expression
        return expression if read.condition is None else expression.filter(self.name(read.condition))


def sort_of(ordered: Node, column: str) -> Ordered:
    """The order of a column with the direction of a sort expression. Without NULLS, nulls are the smallest values."""
    down = bool(ordered.args.get("desc"))
    return Ordered(column, descending=down, nulls_first=bool(ordered.args.get("nulls_first", not down)))


def order_of(ordered: Node, hide: Callable[[Node], str]) -> str | Ordered:
    """The column of one sort expression, with its direction unless that is Spark's default."""
    name = hide(ordered.this if isinstance(ordered, exp.Ordered) else ordered)
    sort = sort_of(ordered, name)
    return sort if sort.descending or not sort.nulls_first else name


@contextmanager
def named_as_written(items: Mapping[str, Node]) -> Iterator[None]:
    """Errors that name a hidden column have the text and the position of its expression instead."""
    try:
        yield
    except (PlanError, UnsupportedType) as error:
        for name, tree in items.items():
            if repr(name) in str(error):
                raise error_at(tree, str(error).replace(repr(name), canonical(tree))) from None
        raise


def keep_field_names(node: Node) -> None:
    """If a node is `struct(x, y + 1)`, write the names `x` and `col2` that Spark gives the fields.

    Otherwise a field whose value comes from a hidden column would have the name of that column.
    """
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "struct":
        return
    for place, value in enumerate(node.expressions, 1):
        if not value.is_star and not isinstance(value, (exp.Alias, exp.Dot)):
            name = value.name if isinstance(value, exp.Column) else f"col{place}"
            value.replace(exp.alias_(value.copy(), name, quoted=True))


def is_column_of_rows(node: Node) -> bool:
    """Whether a node must be computed on the original rows: a column, a window of Spark's own, a subquery."""
    if isinstance(node, exp.Column):
        return not isinstance(node.this, exp.Star)
    if isinstance(node, _QUERIES):
        return any(isinstance(each, exp.Query) for each in node.args.values())
    return isinstance(node, (exp.Query, exp.Window))


def is_computed(tree: Node) -> bool:
    """Whether the tree depends on the row, or cannot be used in an expression of the DataFrame API."""
    computed = (exp.Column, exp.Star, exp.Query)
    return any(isinstance(node, computed) or _is_parameter(node) for node in tree.walk())


def _is_parameter(node: Node) -> bool:
    parameters = (exp.Placeholder, exp.Parameter)
    return isinstance(node, parameters) or (isinstance(node, exp.Var) and node.name.startswith(HIDDEN))
