"""Functions that return rows in FROM: `FROM t, LATERAL TABLE(f(t.x)) AS r(a, b)`, `FROM f(3)`; and lookup joins.

The calls become ones of Spark's `inline`, so the text remains one query of Spark. A lookup join is
`o JOIN f FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id`: the function is called once per row of the
left side, with the other sides of the equalities in ON as its arguments. The joined table has the arguments and what
the function returns for them as its columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.functions.registered_names import carrier_of, shown
from spark_client.sql.rows.flink_options import LookupHints
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope, visible_ctes
from spark_client.sql.rows.table_calls import call_of_relation
from spark_client.sql.tables.joined_rows import JoinedRows, keep_structs_whole, without_common_parts
from spark_client.sql.text.nodes import Node, alias_of, conditions_of
from spark_client.sql.text.parsing import in_place, place_of
from spark_client.sql.text.writers import canonical

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
            name = shown(token.text)
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
    hints = LookupHints(holder, scope.key)
    for node in list(holder.find_all(exp.Table, exp.Lateral)):
        is_view = isinstance(node, exp.Lateral) and node.args.get("view")
        call = node.this if is_view else call_of_relation(node)
        if _is_lookup(node, scope):
            generator = _put_lookup(scope, node, hints)
        elif isinstance(call, exp.Anonymous) and scope.functions.is_remote_scalar(shown(call.name)):
            try:
                generator = _put_rows(scope, node, call)
            except PlanError as error:
                raise in_place(place_of(call), error) from None
        else:
            continue
        keep_structs_whole(generator, scope.key)
        changed = True
    hints.remove()
    scope.is_planned |= changed
    return holder.expressions[0] if changed else tree


def _put_rows(scope: Scope, node: Node, call: exp.Anonymous) -> Node:
    """Replace a call in FROM, and return the replacement."""
    functions = scope.functions
    spec = functions.spec(shown(call.name))
    if not spec.returns_rows:
        raise PlanError(f"{spec.signature} returns a value, not rows: declare it with rows=True, or call it in SELECT")
    if any(isinstance(argument, exp.Kwarg) for argument in call.expressions):
        raise PlanError(f"arguments of {spec.key} in FROM are passed by position")
    if any(value for part, value in node.args.items() if part not in _PARTS):
        raise PlanError(f"nothing but AS can follow the call of {spec.key} in FROM: write a subquery around it")
    name = call.name if shown(call.name) != call.name else functions.lateral(call.name)
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


def _is_lookup(node: Node, scope: Scope) -> TypeGuard[exp.Table]:
    """Whether a node is a table with FOR SYSTEM_TIME AS OF that is a function, and not a table of Spark's.

    A table, a view or a CTE with the name of a function is meant before the function, as everywhere in FROM. Raises
    PlanError, with the position in the text, if it has a time that only a function can answer as of.
    """
    if not isinstance(node, exp.Table) or node.db or node.args.get("version") is None:
        return False
    if node.args["version"].name != "TIMESTAMP" or scope.functions.kind(node.name) is None:
        return False
    is_cte = any(scope.key(cte.alias) == scope.key(node.name) for cte in visible_ctes(node))
    if not is_cte and not scope.spark.catalog.tableExists(quoted(node.name)):
        return True
    time = node.args["version"].expression
    if time is not None and any(map(_is_of_row, time.walk())):
        found = scope.functions.spec(node.name)
        raise in_place(
            place_of(node),
            f"lookup join with {node.name}: {'WITH defines' if is_cte else 'Spark has'} a table or view of this name, "
            f"which is read instead of the function, and only a function answers as of {canonical(time)}; write "
            f"{quoted(found.key)} for the function, or leave FOR SYSTEM_TIME AS OF out for the table",
        )
    return False


def _is_of_row(node: Node) -> bool:
    """Whether a part of a time is different for each row, which Spark's tables of a time do not support."""
    return isinstance(node, exp.Column) or (isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME")


def _put_lookup(scope: Scope, table: exp.Table, hints: LookupHints) -> Node:
    """Replace the join of such a table by one with the rows of a call, which is returned.

    Raises PlanError with the position.
    """
    try:
        join = _supported(table)
        spec = scope.functions.spec(table.name)
        scope.stages.append(f"lookup join: 1 call of {spec.key} per row, which answers as of the call")
        return join.replace(_joined(scope, table, join, spec, hints.of_table(table)))
    except PlanError as error:
        raise in_place(place_of(table), f"lookup join with {table.name}: {error}") from None


def _supported(table: exp.Table) -> exp.Join:
    """The join of a table. Raises PlanError for one that calls cannot make."""
    join = table.parent
    if not isinstance(join, exp.Join):
        raise PlanError("there is no table on its left; write t JOIN f FOR SYSTEM_TIME AS OF t.time AS f ON ...")
    if any(value for part, value in table.args.items() if part not in ("this", "alias", "version")):
        raise PlanError("nothing but AS can follow its time")
    kinds = (join.method, join.side, join.kind)
    written = " ".join(word.upper() for word in kinds if word)
    if written not in ("", "INNER", "LEFT", "LEFT OUTER") or join.args.get("on") is None:
        raise PlanError(
            f"only JOIN and LEFT JOIN with ON are supported, not {written or 'a join'} "
            f"{'with' if join.args.get('on') else 'without'} ON"
        )
    time = table.args["version"].expression
    parts = [] if time is None else [each for each in time.walk() if not isinstance(each, (exp.Cast, exp.TryCast))]
    if not any(isinstance(each, (exp.Column, exp.Func)) for each in parts):
        raise PlanError(
            f"a function has no past versions, so it cannot answer as of {canonical(time)}; "
            "write a time column of the left side, or PROCTIME()"
        )
    return join


def _joined(
    scope: Scope, table: exp.Table, join: exp.Join, spec: FunctionSpec, options: Mapping[str, str]
) -> exp.Join:  # fmt: skip
    alias = table.args.get("alias") or alias_of(spec.name)
    if alias.args.get("columns"):
        raise PlanError(f"{alias.name} cannot have other names for its columns; name them in SELECT")
    fields = {scope.key(field.name): field.name for field in _row_type(spec)}
    # A field hides the parameter of the same name, but its equality still gives the argument.
    columns = {each.name: exp.null() for each in spec.parameters if scope.key(each.name) not in fields}
    rows = JoinedRows(scope, exp.null(), alias, list(fields.values()), columns)
    given: dict[str, Node] = {}
    conditions: list[Node] = []
    for part in conditions_of(join):
        name, value = _equality(rows, part, spec)
        if name not in given:
            given[name] = value
        if name not in columns or given[name] is not value:
            conditions.append(part)
    given.pop("", None)
    registered = scope.functions.lateral(table.name, options)
    call = exp.Anonymous(this="array_compact", expressions=[_call(scope, registered, spec, given)])
    present = [exp.Not(this=exp.Is(this=exp.paren(value), expression=exp.null())) for value in given.values()]
    shown = {each.name: given[each.name] for each in spec.parameters if each.name in columns and each.name in given}
    joined = replace(rows, call=call, arguments=shown)
    return joined.join([*present, *conditions], outer=join.side.upper() == "LEFT")


def _row_type(spec: FunctionSpec) -> pa.StructType:
    """The type of a row that a function returns. Raises PlanError if it returns no rows."""
    result = spec.result.value_type if pa.types.is_list(spec.result) else spec.result
    if spec.kind is not FunctionKind.SCALAR or not pa.types.is_struct(result):
        raise PlanError(f"a scalar function that returns a struct, or rows, is expected, not {spec.signature}")
    return result


def _equality(rows: JoinedRows, condition: Node, spec: FunctionSpec) -> tuple[str, Node]:
    """The parameter that a condition gives a value, and the value; "" if it is no such equality."""
    if not isinstance(condition, exp.EQ):
        return "", condition
    key = rows.scope.key
    known = {key(each.name): each.name for each in spec.parameters}
    for column, value in ((condition.this, condition.expression), (condition.expression, condition.this)):
        name = known.get(key(column.name)) if rows.is_own(column) and len(column.parts) == 2 else None
        if name is not None and not rows.has_own(value):
            return name, value
    return "", condition


def _call(scope: Scope, registered: str, spec: FunctionSpec, given: Mapping[str, Node]) -> Node:
    """The call as an array, with arguments by position. Raises PlanError if an argument is missing."""
    parameters = [parameter.name for parameter in spec.parameters]
    needed = max([1, spec.required_parameters, *(parameters.index(each) + 1 for each in given)])
    missing = [parameter for parameter in parameters[:needed] if parameter not in given]
    if missing or not parameters:
        lacks = f"ON has no equality for parameter {missing[0]!r} of" if missing else "there is no parameter in"
        raise PlanError(f"{lacks} {spec.signature}")
    for parameter, value in given.items():
        if any(isinstance(node, exp.Anonymous) and scope.functions.kind(node.name) for node in value.walk()):
            raise PlanError(f"the value of {parameter!r} has a remote call; make it in a subquery on the left side")
    values = [given[parameter].copy() for parameter in parameters[:needed]]
    call = exp.Anonymous(this=exp.to_identifier(registered, quoted=True), expressions=values)
    return call if pa.types.is_list(spec.result) else exp.Anonymous(this="array", expressions=[call])
