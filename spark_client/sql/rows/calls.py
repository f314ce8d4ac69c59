"""Finds aggregates in a tree: a call together with FILTER, DISTINCT and WITHIN GROUP around it."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = [
    "CLAUSES",
    "SORTING",
    "RemoteCall",
    "aggregate_of",
    "has_aggregate",
    "has_remote",
    "is_aggregate",
    "is_qualified",
    "is_remote",
    "is_remote_window",
    "is_scalar",
    "read_remote",
    "remote_in",
    "walk_query",
]  # fmt: skip

SORTING = ("order", "sort", "cluster", "distribute")
CLAUSES = ("having", "qualify", *SORTING)
"""Clauses of a SELECT, besides its items, that may contain aggregates."""

_AROUND = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


@dataclass(frozen=True)
class RemoteCall:
    """A call of a remote aggregate. `order` is that of WITHIN GROUP."""

    name: str
    tree: Node
    arguments: tuple[Node, ...]
    distinct: bool
    condition: Node | None = None
    order: tuple[Node, ...] = ()


def walk_query(tree: Node) -> Iterator[Node]:
    """The nodes of a tree without those of queries inside it."""
    return tree.walk(prune=lambda node: isinstance(node, exp.Query) and node is not tree)


def aggregate_of(tree: Node) -> Node:
    """The call inside of FILTER, WITHIN GROUP and similar nodes."""
    while isinstance(tree, _AROUND):
        tree = tree.this
    return tree


def is_aggregate(tree: Node, names: SqlFunctions) -> bool:
    """Whether the tree itself is a call of an aggregate, remote or Spark's; `db.f(x)` is none."""
    return is_remote(tree, names) or (
        isinstance(tree, exp.Anonymous) and not is_qualified(tree) and names.is_built_in_aggregate(tree.name)
    )


def has_aggregate(tree: Node, names: SqlFunctions, *, remote: bool = False) -> bool:
    """Whether a tree contains an aggregate outside of windows; with `remote`, a remote one.

    In a SELECT, the items and CLAUSES are searched.
    """
    if isinstance(tree, exp.Select):
        clauses = (tree.args.get(part) for part in CLAUSES)
        parts = [*tree.expressions, *(clause for clause in clauses if clause is not None)]
        return any(has_aggregate(part, names, remote=remote) for part in parts)
    test = is_remote if remote else is_aggregate
    windows = {id(aggregate_of(node.this)) for node in walk_query(tree) if isinstance(node, exp.Window)}
    return any(id(node) not in windows and test(node, names) for node in walk_query(tree))


def is_scalar(tree: Node, names: SqlFunctions) -> bool:
    """Whether the tree itself is a call of a remote scalar function; `db.f(x)` is none."""
    return isinstance(tree, exp.Anonymous) and not is_qualified(tree) and names.is_remote_scalar(tree.name)


def is_qualified(call: Node) -> bool:
    """Whether the name of a call has a part before it, as in `db.f(x)`, so that it is a function of Spark's."""
    return isinstance(call.parent, exp.Dot) and call.arg_key == "expression"


def is_remote(tree: Node, names: SqlFunctions) -> bool:
    """Whether the tree itself is a call of a remote aggregate; `db.f(x)` is none."""
    return isinstance(tree, exp.Anonymous) and not is_qualified(tree) and names.is_remote_aggregate(tree.name)


def remote_in(tree: Node, names: SqlFunctions) -> Iterator[Node]:
    """The calls of remote aggregates in a tree, without queries inside it."""
    return (node for node in walk_query(tree) if is_remote(node, names))


def has_remote(tree: Node, names: SqlFunctions) -> bool:
    """Whether a tree contains a call of a remote aggregate, without queries inside it."""
    return any(True for _ in remote_in(tree, names))


def is_remote_window(tree: Node, names: SqlFunctions) -> bool:
    """Whether the tree is a remote aggregate with OVER."""
    return isinstance(tree, exp.Window) and is_remote(aggregate_of(tree.this), names)


def read_remote(tree: Node, names: SqlFunctions) -> RemoteCall:
    """Read the call in a tree in which `aggregate_of` finds it. Raises PlanError for unsupported clauses around it."""
    condition, order = None, ()
    call = aggregate_of(tree)
    around = tree
    while around is not call:
        if isinstance(around, exp.Filter):
            condition = around.expression.this
        elif isinstance(around, exp.WithinGroup):
            order = tuple(around.expression.expressions)
        else:
            raise error_at(call, f"{call.name}: a remote aggregate has no IGNORE NULLS or RESPECT NULLS")
        around = around.this
    arguments, distinct = list(call.expressions), False
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        arguments, distinct = list(arguments[0].expressions), True
    for argument in arguments:
        if isinstance(argument, (exp.Star, exp.Order, exp.Kwarg)) or argument.is_star:
            raise error_at(call, f"{call.name}: {canonical(argument)} is not an argument of a remote aggregate")
        if has_remote(argument, names):
            raise error_at(call, f"{call.name}: an aggregate of an aggregate needs a subquery")
    name = names.remote(call.name)
    assert name is not None
    return RemoteCall(name, call, tuple(arguments), distinct, condition, order)
