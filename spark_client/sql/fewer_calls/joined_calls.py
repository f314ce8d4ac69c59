"""Prevents calls that Spark derives for the other side of a join.

From `a.k = b.k` and `f(a.k) > 0` Spark derives `f(b.k) > 0`, and calls `f` for the rows of both sides, although the
join drops the rows of `b` anyway. It derives only from equalities of plain columns. So the equality is written

    a.k <=> b.k AND a.k IS NOT NULL AND b.k IS NOT NULL

or, if Spark turns that back because the columns cannot be null, as an equality of structs. It remains a key of the
join and selects the same rows. But conditions that Spark derives without calls, such as `b.k < 5` from `a.k < 5`, could
be lost, and the number of calls could grow. So Spark's plans of both texts are compared: the new text is used only if
its plan has fewer calls and all of the other conditions. Otherwise a warning says what to do.
"""

import warnings
from collections import Counter
from collections.abc import Callable

from pyspark.errors import PySparkException
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.functions.registered_names import shown
from spark_client.sql.fewer_calls.explaining import conditions_in, evaluated_in, plan_of
from spark_client.sql.rows.calls import is_qualified
from spark_client.sql.rows.scope import Scope
from spark_client.sql.text.nodes import Node, conditions_of, query_in

__all__ = ["DerivedCalls", "without_derived_calls"]


class DerivedCalls(UserWarning):
    """A condition with a remote call is evaluated on both sides of a join."""


def without_derived_calls(scope: Scope, tree: Node) -> Node:
    """The tree in which conditions call remote functions on only one side of a join; may be the same tree.

    Warns with DerivedCalls if Spark calls on both sides and no rewrite prevents it.
    Streams are not changed: their plan is unknown until they start.
    """
    query = query_in(tree)
    is_view = isinstance(tree, exp.Create) and tree.kind == "VIEW"
    if is_view or query is None or query.find(exp.Join) is None:
        return tree
    calls = (shown(node.name) for node in query.find_all(exp.Anonymous) if not is_qualified(node))
    written = Counter(name.casefold() for name in calls if scope.functions.is_remote_scalar(name))
    if not written:
        return tree
    try:
        planned = _Planned(scope, query, written)
        if planned.calls <= written.total():
            return tree
        for form in (_null_safe, _of_structs):
            other = tree.copy()
            changed = query_in(other)
            assert changed is not None
            if not _rewrite(changed, form):
                break
            replanned = _Planned(scope, changed, written)
            if replanned.calls < planned.calls and planned.conditions <= replanned.conditions:
                return other
    except (PySparkException, PlanError):
        return tree  # Spark reports the error when it runs the text
    again = planned.functions - written
    warnings.warn(
        f"Spark evaluates a condition with {', '.join(sorted(again))} on both sides of a join: {planned.calls} calls "
        f"in the plan for {written.total()} in the text. To avoid it, set spark.sql.constraintPropagation.enabled to "
        "false while the query runs",
        DerivedCalls,
        stacklevel=2,
    )
    return tree


class _Planned:
    """The number of calls of remote functions in Spark's plan of a query, and the plan's conditions without a call."""

    def __init__(self, scope: Scope, query: Node, functions: Counter[str]) -> None:
        plan = plan_of(scope.run(query))
        self.functions = Counter({name: len(evaluated_in(plan, name)) for name in functions})
        self.calls = self.functions.total()
        self.conditions = conditions_in(plan)


def _rewrite(query: Node, form: Callable[[Node, Node], Node]) -> bool:
    """Rewrite conditions that are equalities of two columns; False if there is none."""
    found = False
    for holder in query.find_all(exp.Join, exp.Select):
        for part in conditions_of(holder):
            if isinstance(part, exp.EQ) and all(isinstance(side, exp.Column) for side in (part.left, part.right)):
                part.replace(exp.paren(form(part.left, part.right)))
                found = True
    return found


def _null_safe(left: Node, right: Node) -> Node:
    return exp.and_(exp.NullSafeEQ(this=left.copy(), expression=right.copy()), *_present(left, right))


def _of_structs(left: Node, right: Node) -> Node:
    sides = (
        exp.Anonymous(this="named_struct", expressions=[exp.Literal.string("k"), side.copy()]) for side in (left, right)
    )
    return exp.and_(exp.EQ(this=next(sides), expression=next(sides)), *_present(left, right))


def _present(*columns: Node) -> list[Node]:
    return [exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null())) for column in columns]
