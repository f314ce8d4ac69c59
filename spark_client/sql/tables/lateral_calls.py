"""Functions that return rows in FROM: `FROM t, LATERAL TABLE(f(t.x)) AS r(a, b)`, `FROM f(3)`; and lookup joins.

The calls become ones of Spark's `inline`, so the text remains one query of Spark.
"""

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.functions.registration import EMPTY, carrier_of
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import call_of_relation
from spark_client.sql.tables.joined_rows import JoinedRows, conditions_of, keep_structs_whole, without_common_parts
from spark_client.sql.tables.lookup_joins import is_lookup, put_lookup
from spark_client.sql.text.nodes import Node, alias_of
from spark_client.sql.text.parsing import in_place, place_of

__all__ = ["may_have_lateral_calls", "with_lateral_calls"]

_BEFORE = ("FROM", "JOIN", "LATERAL", "VIEW", "OUTER")
"""Words before a call in FROM, among others."""
_PARTS = ("this", "alias", "view", "outer")
"""Parts of a call in FROM that its replacement has, too."""
_JOINS = ("", "INNER", "CROSS", "LEFT", "LEFT OUTER")
"""Joins in which a row of the left side is enough to compute rows of the result."""


def may_have_lateral_calls(tokens: Sequence[Token], functions: SqlFunctions) -> bool:
    """Whether `with_lateral_calls` may change a text: it calls a function as a table, or as one of a time."""
    for index, token in enumerate(tokens):
        after = [each.text.upper() for each in tokens[index + 1 : index + 3]]
        if token.text.upper() in ("SYSTEM_TIME", "TIMESTAMP") and after == ["AS", "OF"]:
            place = index - 2 if tokens[index - 1].token_type is TokenType.FOR else index - 1
            if place >= 0 and functions.kind(tokens[place].text) is not None:
                return True
        elif after[:1] == ["("] and token.token_type is not TokenType.STRING:
            name = token.text.removeprefix(EMPTY)
            before = [each.text.upper() for each in tokens[max(index - 2, 0) : index]]
            table = before == ["TABLE", "("] or before[-1:] in ([word] for word in _BEFORE)
            # After a comma it may also be an item of SELECT.
            listed = before[-1:] == [","]
            if (table or listed) and functions.is_remote_scalar(name) and (table or functions.spec(name).returns_rows):
                return True
    return False


def with_lateral_calls(scope: Scope, tree: Node) -> Node:
    """The tree without such calls; the same tree if there are none. Raises PlanError with the position in the text."""
    holder = exp.Tuple(expressions=[tree.copy()])
    changed = False
    for node in list(holder.find_all(exp.Table, exp.Lateral)):
        call = node.this if _is_view(node) else call_of_relation(node)
        if is_lookup(node, scope):
            generator = put_lookup(scope, node)
        elif isinstance(call, exp.Anonymous) and scope.functions.is_remote_scalar(call.name.removeprefix(EMPTY)):
            try:
                generator = _put_rows(scope, node, call)
            except PlanError as error:
                raise in_place(place_of(call), error) from None
        else:
            continue
        keep_structs_whole(generator, scope.key)
        changed = True
    scope.is_planned |= changed
    return holder.expressions[0] if changed else tree


def _is_view(node: Node) -> bool:
    """Whether a node is a LATERAL VIEW."""
    return isinstance(node, exp.Lateral) and bool(node.args.get("view"))


def _put_rows(scope: Scope, node: Node, call: exp.Anonymous) -> Node:
    """Replace a call in FROM, and return the replacement."""
    functions = scope.functions
    spec = functions.spec(call.name.removeprefix(EMPTY))
    if not spec.returns_rows:
        raise PlanError(f"{spec.signature} returns a value, not rows: declare it with rows=True, or call it in SELECT")
    if any(isinstance(argument, exp.Kwarg) for argument in call.expressions):
        raise PlanError(f"arguments of {spec.key} in FROM are passed by position")
    if any(value for part, value in node.args.items() if part not in _PARTS):
        raise PlanError(f"nothing but AS can follow the call of {spec.key} in FROM: write a subquery around it")
    name = call.name if call.name.startswith(EMPTY) else functions.lateral(call.name)
    # Spark cannot make rows of its SQL function, which a function registered without arguments is.
    call.set("this", exp.to_identifier(name if call.expressions else carrier_of(name), quoted=True))
    call.set("expressions", call.expressions or [exp.true()])
    join, alias = node.parent, node.args.get("alias")
    if alias is None:
        alias = alias_of(spec.name)
    rows = JoinedRows(scope, call, alias, [field.name for field in spec.result.value_type], {})
    assert rows.columns
    scope.stages.append(f"{spec.key} in FROM: 1 call per row, which gives the rows that are joined with it")
    if isinstance(node, exp.Lateral) and isinstance(join, exp.Join) and _is_planned(join):
        return join.replace(rows.join(conditions_of(join), outer=join.side.upper() == "LEFT"))
    node.set("this", without_common_parts(exp.Anonymous(this="inline", expressions=[call.copy()])))
    node.set("alias", alias.copy())
    return node


def _is_planned(join: exp.Join) -> bool:
    """Whether a join is one whose rows can be computed for each row of the left side."""
    written = " ".join(word.upper() for word in (join.method, join.side, join.kind) if word)
    return written in _JOINS and not join.args.get("using")
