"""Process table functions in FROM: `f(r => TABLE t PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 'x')`.

Each call in the tree is replaced by the DataFrame that it returns.
"""

from collections.abc import Mapping
from typing import NoReturn

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from sqlglot import exp

from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.row_kinds import ChangelogMode
from spark_client.base.errors import PlanError
from spark_client.planning.process.inputs import ByTable, Mode, TableOptions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.table_calls import (
    GivenTable,
    call_of_relation,
    described,
    evaluated,
    given_table,
    put_in_place,
)
from spark_client.sql.tables.window_functions import is_window_call
from spark_client.sql.text.arguments import CalledTable
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at, in_place, place_of
from spark_client.sql.text.writers import canonical

__all__ = ["arguments_of", "with_process_functions"]

_DESCRIPTORS = ("on_time", "upsert_key")
"""Arguments of every call that are lists of columns."""
_CONSTANTS = {
    "uid": pa.string(), "changelog_mode": pa.map_(pa.string(), pa.string()), "key_only_deletes": pa.bool_(),
}  # fmt: skip
"""The other arguments of every call, with their types."""
_BY_NAME_ONLY = ("changelog_mode", "key_only_deletes", "upsert_key")
"""Arguments of every call without a position. If a function has a parameter of such a name, the parameter is meant."""


def with_process_functions(scope: Scope, tree: Node) -> Node:
    """The tree with a DataFrame in place of each call. Raises PlanError with the position in the text."""
    if not any(scope.functions.kind(name) is FunctionKind.PROCESS for name in scope.text.called):
        return tree
    holder = exp.Tuple(expressions=[tree.copy()])
    found = _inside(scope, holder)
    scope.is_planned |= found
    return holder.expressions[0] if found else tree


def _inside(scope: Scope, tree: Node) -> bool:
    """Replace the calls in a tree from the outside in, and return whether there are any.

    A query sees the earlier common table expressions of a WITH.
    """
    found, own = False, tree.args.get("with_")
    for cte in own.expressions if own is not None else ():
        found |= _inside(scope, cte.this)
        scope = scope.inside([cte])

    def is_apart(node: Node) -> bool:
        return node is own or (node is not tree and (_has_scope(node) or _called(scope, node) is not None))

    for node in list(tree.walk(bfs=False, prune=is_apart)):
        if (call := _called(scope, node)) is not None:
            found = True
            scope.stages.append(f"{call.name}: a process table function on the server")
            _inside(scope, put_in_place(scope, node, _frame(scope, call), call.name))
        elif _is_ours(scope, node):
            what = "a process table function can be used only in FROM or a JOIN"
            raise error_at(node, f"{node.name}: {what}")
        elif node is not tree and _has_scope(node):
            found |= _inside(scope, node)
    return found


def _called(scope: Scope, node: Node) -> exp.Anonymous | None:
    call = call_of_relation(node)
    return call if call is not None and _is_ours(scope, call) else None


def _is_ours(scope: Scope, node: Node) -> bool:
    if not isinstance(node, exp.Anonymous) or is_window_call(node):
        return False
    if isinstance(node.parent, exp.Dot) or (isinstance(node.parent, exp.Table) and node.parent.db):
        return False
    return scope.functions.kind(node.name) is FunctionKind.PROCESS


def _frame(scope: Scope, call: exp.Anonymous) -> DataFrame:
    spec = scope.functions.spec(call.name)
    where = place_of(call)
    try:
        arguments = _by_name(spec, arguments_of(call))
        tables, scalars, columns, constants = _given(scope, spec, arguments)
        uid = constants.get("uid")

        def make() -> DataFrame:
            frames = {name: _table(scope, table) for name, table in tables.items()}
            of_tables = TableOptions(
                {name: table.partition_by for name, table in tables.items() if table.partition_by},
                {name: table.order_by for name, table in tables.items()}, _modes(constants),
                columns.get("upsert_key", ()),
            )  # fmt: skip
            session, on_time = scope.functions.session, columns.get("on_time", ())
            options = session.registered.get(call.name.casefold(), {})
            return session.process(spec.key, frames, scalars, of_tables, on_time=on_time, uid=uid, options=options)

        if not isinstance(uid, str):
            return make()
        # Equal for equal calls, whatever their position in the text.
        written = {name: canonical(value) for name, value in arguments.items()}
        return scope.shared.frame(uid, (spec.key, written, [canonical(cte) for cte in scope.ctes]), make)
    except PlanError as error:
        raise in_place(where, error) from None
    except AnalysisException as error:
        if "UNRESOLVED_COLUMN" not in str(error):
            raise
        hint = "its tables are computed separately, so a query in a call cannot refer to outer columns"
        raise PlanError(f"{where}{call.name}: {hint}: {str(error).splitlines()[0]}") from error


def _given(
    scope: Scope, spec: FunctionSpec, arguments: Mapping[str, Node]
) -> tuple[dict[str, GivenTable], dict[str, object], dict[str, list[str]], dict[str, object]]:
    """The tables, the function's own scalar arguments, and the columns and constants that every function takes."""
    tables: dict[str, GivenTable] = {}
    scalars: dict[str, object] = {}
    columns_given: dict[str, list[str]] = {}
    constants: dict[str, object] = {}
    types = {parameter.name: parameter.type for parameter in spec.parameters}
    assert spec.process is not None
    for name, value in arguments.items():
        columns = described(value)
        if (table := given_table(value)) is not None:
            tables[name] = table
        elif name in _DESCRIPTORS and name not in types:
            columns_given[name] = columns if columns is not None else _refused(f"{name} takes a DESCRIPTOR")
        elif name in _CONSTANTS and name not in types:
            constants[name] = evaluated(scope, value, _CONSTANTS[name])
        elif spec.process.table(name) is not None:
            _refused(f"Invalid argument value. Argument {name!r} expects a table to be passed")
        elif columns is not None:
            scalars[name] = columns
        else:
            scalars[name] = evaluated(scope, value, types.get(name, pa.null()))
    return tables, scalars, columns_given, constants


def _table(scope: Scope, table: GivenTable) -> DataFrame:
    tree = with_process_functions(scope, table.query)
    inside = scope.outside()
    for cte in scope.ctes:
        known = cte.copy()
        known.parent = cte.parent  # which says whether it may be recursive
        known.set("this", inside.rewritten(cte.this))
        inside = inside.inside([known])
    return without_time(inside.run(inside.rewritten(tree)))


def _has_scope(node: Node) -> bool:
    """Whether a node may contain its own common table expressions."""
    return isinstance(node, exp.Query) or node.args.get("with_") is not None


def arguments_of(call: exp.Anonymous) -> dict[str | int, Node]:
    """The arguments of a call by name, or by position. An argument with the value DEFAULT is omitted.

    Raises PlanError if both forms are used, or if an argument is passed twice.
    """
    arguments: dict[str | int, Node] = {}
    for position, part in enumerate(call.expressions):
        named = isinstance(part, exp.Kwarg)
        key: str | int = part.this.name if named else position
        if any(isinstance(each, str) != named for each in arguments):
            _refused(f"{call.name}: arguments are passed by position or by name, not by both")
        if key in arguments:
            _refused(f"{call.name}: argument {key!r} is passed twice")
        value = part.expression if named else part
        if not (isinstance(value, exp.Column) and canonical(value).upper() == "DEFAULT"):
            arguments[key] = CalledTable(this=value.copy()) if is_window_call(value) else value
    return arguments


def _by_name(spec: FunctionSpec, arguments: Mapping[str | int, Node]) -> dict[str, Node]:
    """Arguments by name. In order of position, `on_time` and `uid` follow the function's own."""
    order = [*(parameter.name for parameter in spec.parameters), "on_time", "uid"]
    known = {name.casefold(): name for name in (*_BY_NAME_ONLY, *order)}
    named = {}
    for key, value in arguments.items():
        if isinstance(key, int):
            if key >= len(order):
                raise PlanError(f"function {spec.key} takes {len(spec.parameters)} arguments: {spec.signature}")
            named[order[key]] = value
        else:
            named[known.get(key.casefold(), key)] = value
    return named


def _modes(constants: Mapping[str, object]) -> Mode | ByTable[Mode]:
    """The changelog mode, from texts such as '+I,+U,-D', of all tables or by table."""
    given, key_only = constants.get("changelog_mode"), bool(constants.get("key_only_deletes"))
    try:
        if isinstance(given, list):
            return {table: ChangelogMode.parse(text, key_only_deletes=key_only) for table, text in given}
        if given is not None:
            return ChangelogMode.parse(str(given), key_only_deletes=key_only)
    except ValueError as error:
        _refused(f"changelog_mode: {error}")
    return _refused("key_only_deletes belongs to a changelog_mode") if key_only else None


def _refused(message: str) -> NoReturn:
    raise PlanError(message)
