"""Process table functions in FROM: `f(r => TABLE t PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 'x')`.

What `process_calls` has taken out of the text becomes, once the tree is there, the DataFrame that the call makes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlglot
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from sqlglot import exp
from sqlglot.errors import SqlglotError

from remote_udf.functions import FunctionSpec
from remote_udf.table_arguments import ChangelogMode
from spark_client.base.errors import PlanError
from spark_client.sql.dialect import RemoteSpark
from spark_client.sql.functions import SqlFunctions
from spark_client.sql.parsing import Text, in_place
from spark_client.sql.process_calls import ProcessCall, TableArgument, without_calls
from spark_client.sql.shared_calls import SharedCalls
from spark_client.sql.workspace import Workspace

__all__ = ["ProcessFunctions", "without_process_calls"]

Rewrite = Callable[[Any, Sequence[Any]], Any]
"""From a query, and the common table expressions it may name, to what Spark understands of it."""


class ProcessFunctions:
    """The calls of one text, by the names that stand in their places."""

    def __init__(
        self, calls: Mapping[str, ProcessCall], functions: SqlFunctions, shared: SharedCalls | None = None
    ) -> None:
        self._calls = calls
        self._shared = shared
        self._rewrite: Rewrite = lambda tree, _: tree
        self._functions = functions

    def names(self) -> list[str]:
        """The functions that are called, in the order of the text."""
        return [call.name for call in self._calls.values()]

    def rewritten(self, workspace: Workspace, tree: Any, rewrite: Rewrite | None = None) -> Any:
        """The tree with a DataFrame in the place of each call. Raises PlanError, with the place in the text.

        `rewrite` is for the queries of the tables that a call is given.
        """
        self._rewrite = rewrite or self._rewrite
        holder = exp.Tuple(expressions=[tree.copy()])
        self._inside(workspace, holder, [])
        return holder.expressions[0]

    def _inside(self, workspace: Workspace, tree: Any, ctes: Sequence[Any]) -> None:
        """Goes through a tree from the outside in; what a WITH names before is seen by what comes after."""
        visible = list(ctes)
        own = tree.args.get("with_")
        for cte in own.expressions if own is not None else ():
            self._inside(workspace, cte.this, visible)
            visible.append(cte)
        for key, value in list(tree.args.items()):
            if key == "with_":
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, exp.Expression):
                    continue
                called = self._called(child)
                if called is not None:
                    table = workspace.table(self._frame(workspace, called, visible))
                    if child.args.get("alias"):
                        table.set("alias", child.args["alias"].copy())
                    else:
                        table.set("alias", exp.TableAlias(this=exp.to_identifier(called.name, quoted=True)))
                    table.set("joins", child.args.get("joins"))
                    table.set("laterals", child.args.get("laterals"))
                    child.replace(table)
                    child = table
                self._inside(workspace, child, visible)

    def _called(self, node: Any) -> ProcessCall | None:
        """The call that a node of FROM stands for: `f(...)`, `TABLE(f(...))` or `LATERAL f(...)`, which sees no more.

        Raises PlanError for a call that stands elsewhere.
        """
        if isinstance(node, exp.Table):
            inside = node.this.expressions if isinstance(node.this, exp.Anonymous) else []
            wrapped = len(inside) == 1 and node.this.name.upper() == "TABLE" and isinstance(inside[0], exp.Column)
            return self._calls.get(inside[0].name if wrapped else node.name)
        if isinstance(node, exp.Lateral) and not node.args.get("view"):
            return self._calls.get(node.this.name)
        call = self._calls.get(node.name) if isinstance(node, exp.Identifier) else None
        if call is None:
            return None
        raise PlanError(
            f"{call.where}{call.name}: a process table function stands where a table does, in FROM or a JOIN"
        )

    def _frame(self, workspace: Workspace, call: ProcessCall, ctes: Sequence[Any]) -> DataFrame:
        spec = self._functions.spec(call.name)
        tables: dict[str, TableArgument] = {}
        keys: dict[str, list[str]] = {}
        order: dict[str, list[str]] = {}
        scalars: dict[str, Any] = {}
        system: dict[str, Any] = {}
        types = {parameter.name: parameter.type for parameter in spec.parameters}
        try:
            for name, value in _by_name(spec, call.arguments).items():
                if isinstance(value, TableArgument):
                    tables[name] = value
                    if value.partition_by:
                        keys[name] = value.partition_by
                    order[name] = value.order_by
                elif name == "on_time":
                    system[name] = value if isinstance(value, list) else _refused("on_time takes a DESCRIPTOR")
                elif name == "uid":
                    system[name] = _evaluated(workspace, value, pa.string())
                elif name == "upsert_key" and name not in types:
                    system[name] = value if isinstance(value, list) else _refused("upsert_key takes a DESCRIPTOR")
                elif name == "changelog_mode" and name not in types:
                    system[name] = _evaluated(workspace, value, pa.map_(pa.string(), pa.string()))
                elif name == "key_only_deletes" and name not in types:
                    system[name] = _evaluated(workspace, value, pa.bool_())
                else:
                    is_table = spec.process is not None and spec.process.table(name) is not None
                    if is_table:
                        _refused(f"Invalid argument value. Argument {name!r} expects a table to be passed")
                    type_ = types.get(name, pa.null())
                    scalars[name] = value if isinstance(value, list) else _evaluated(workspace, value, type_)

            def make() -> DataFrame:
                frames = {name: self._table(workspace, argument, ctes) for name, argument in tables.items()}
                return self._functions.process(
                    spec.key, frames, partition_by=keys, order_by=order, on_time=system.get("on_time", ()),
                    uid=system.get("uid"), **_changes(system), **scalars,
                )  # fmt: skip

            if self._shared is None or system.get("uid") is None:
                return make()
            return self._shared.frame(system["uid"], _definition(spec, call, ctes), make)
        except PlanError as error:
            raise in_place(call.where, error) from None
        except AnalysisException as error:
            if "UNRESOLVED_COLUMN" not in str(error):
                raise
            hint = "its tables are computed by themselves, so a query in a call sees no column from around it"
            raise PlanError(f"{call.where}{call.name}: {hint}: {str(error).splitlines()[0]}") from error

    def _table(self, workspace: Workspace, argument: TableArgument, ctes: Sequence[Any]) -> DataFrame:
        inner = Text(argument.query, None, {})
        text, functions = without_process_calls(inner, self._functions, self._shared)
        tree = _parsed(text.sql)
        if functions is not None:
            tree = functions.rewritten(workspace, tree, self._rewrite)
        visible: list[Any] = []
        for cte in ctes:
            known = cte.copy()
            known.set("this", self._rewrite(cte.this, visible))
            visible.append(known)
        return workspace.run(self._rewrite(tree, visible), visible)


def without_process_calls(
    text: Text, functions: SqlFunctions, shared: SharedCalls | None = None
) -> tuple[Text, ProcessFunctions | None]:
    """The text with a name in the place of each call, and the calls; None if there are none.

    Raises PlanError for a call that cannot be read.
    """
    text, calls = without_calls(text, functions)
    return text, ProcessFunctions(calls, functions, shared) if calls else None


def _definition(spec: FunctionSpec, call: ProcessCall, ctes: Sequence[Any]) -> Any:
    """What is the same for calls that are the same, wherever they stand in the text."""
    arguments: dict[str, Any] = {}
    for key, value in _by_name(spec, call.arguments).items():
        if isinstance(value, TableArgument):
            arguments[key] = repr((" ".join(value.query.split()), value.partition_by, value.order_by))
        else:
            arguments[key] = value if isinstance(value, list) else " ".join(value.split())
    return spec.key, arguments, [cte.sql() for cte in ctes]


def _by_name(spec: FunctionSpec, arguments: Mapping[str | int, Any]) -> dict[str, Any]:
    """Arguments by name. `on_time` and `uid` come after the function's own."""
    order = [*(parameter.name for parameter in spec.parameters), "on_time", "uid"]
    # By name only: a position is not theirs.
    known = {name.casefold(): name for name in ("changelog_mode", "key_only_deletes", "upsert_key", *order)}
    named = {}
    for key, value in arguments.items():
        if isinstance(key, int):
            if key >= len(order):
                raise PlanError(f"function {spec.key} takes {len(spec.parameters)} arguments: {spec.signature}")
            named[order[key]] = value
        else:
            named[known.get(key.casefold(), key)] = value
    return named


def _evaluated(workspace: Workspace, text: str, type_: pa.DataType) -> Any:
    """The value of a constant expression, as Spark has it."""
    tree = _parsed(f"SELECT {text} AS value")
    if tree.args.get("from_") or any(isinstance(node, exp.Column) for node in tree.walk()):
        _refused(f"a scalar argument is a constant, not {text}")
    # As Arrow has it: times by `collect` would be in the zone of this machine, and would not say so.
    return _plain(workspace.run(tree).toArrow().column(0)[0], type_)


def _changes(system: Mapping[str, Any]) -> dict[str, Any]:
    """What a call says of changelogs: modes from texts such as '+I,+U,-D', of all tables or by table, and their key."""
    said = {"upsert_key": system["upsert_key"]} if "upsert_key" in system else {}
    given, key_only = system.get("changelog_mode"), system.get("key_only_deletes", False)
    try:
        if isinstance(given, list):
            said["changelog_mode"] = {
                table: ChangelogMode.parse(text, key_only_deletes=key_only) for table, text in given
            }
        elif given is not None:
            said["changelog_mode"] = ChangelogMode.parse(str(given), key_only_deletes=key_only)
        elif key_only:
            _refused("key_only_deletes belongs to a changelog_mode")
    except ValueError as error:
        _refused(f"changelog_mode: {error}")
    return said


def _plain(value: pa.Scalar, type_: pa.DataType) -> Any:
    """The Python value; a struct as a dictionary with the names of the argument's fields, by position."""
    if not value.is_valid:
        return None
    if pa.types.is_struct(value.type) and pa.types.is_struct(type_) and value.type.num_fields == type_.num_fields:
        return {part.name: _plain(value[index], part.type) for index, part in enumerate(type_)}
    if pa.types.is_list(value.type) and pa.types.is_list(type_):
        return [_plain(each, type_.value_type) for each in value.values]
    if pa.types.is_map(value.type) and pa.types.is_map(type_):
        pairs = value.values
        return [
            (_plain(key, type_.key_type), _plain(item, type_.item_type))
            for key, item in zip(pairs.field(0), pairs.field(1), strict=True)
        ]
    return value.as_py()


def _parsed(sql: str) -> Any:
    try:
        return sqlglot.parse_one(sql, dialect=RemoteSpark)
    except SqlglotError as error:
        raise PlanError(f"{sql!r} in a call of a process table function cannot be read: {error}") from error


def _refused(message: str) -> Any:
    raise PlanError(message)
