"""Process table functions in FROM: `f(r => TABLE t PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 'x')`.

Such a call is no SQL that Spark or sqlglot reads. So it is taken out of the text, a name is put in its
place, and once the tree is there, the name becomes the DataFrame that the call makes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import sqlglot
from pyspark.sql import DataFrame, Row
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.errors import PlanError
from spark_client.sql.dialect import RemoteSpark
from spark_client.sql.names import FunctionNames
from spark_client.sql.parsing import Text
from spark_client.sql.workspace import Workspace

__all__ = ["ProcessFunctions", "without_process_calls"]

PLACE = "__remote_sql_process_{}"
Process = Callable[..., DataFrame]
"""`RemoteSession.process`."""


@dataclass
class _TableArgument:
    query: str
    partition_by: list[str] = field(default_factory=list)
    order_by: list[str] = field(default_factory=list)


@dataclass
class _Call:
    """A call as written: its arguments by name, or by position under their numbers."""

    name: str
    where: str
    arguments: dict[str | int, Any]


class ProcessFunctions:
    """The calls of one text, by the names that stand in their places."""

    def __init__(
        self, calls: Mapping[str, _Call], names: FunctionNames, process: Process,
        spec_of: Callable[[str], FunctionSpec],
    ) -> None:  # fmt: skip
        self._calls = calls
        self._names = names
        self._process = process
        self._spec_of = spec_of

    def names(self) -> list[str]:
        """The functions that are called, in the order of the text."""
        return [call.name for call in self._calls.values()]

    def rewritten(self, workspace: Workspace, tree: Any) -> Any:
        """The tree with a DataFrame in the place of each call. Raises PlanError, with the place in the text."""
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
                if isinstance(child, exp.Table) and child.name in self._calls:
                    table = workspace.table(self._frame(workspace, self._calls[child.name], visible))
                    if child.args.get("alias"):
                        table.set("alias", child.args["alias"].copy())
                    else:
                        table.set(
                            "alias", exp.TableAlias(this=exp.to_identifier(self._calls[child.name].name, quoted=True))
                        )
                    table.set("joins", child.args.get("joins"))
                    table.set("laterals", child.args.get("laterals"))
                    child.replace(table)
                    child = table
                self._inside(workspace, child, visible)

    def _frame(self, workspace: Workspace, call: _Call, ctes: Sequence[Any]) -> DataFrame:
        spec = self._spec_of(call.name)
        tables: dict[str, DataFrame] = {}
        keys: dict[str, list[str]] = {}
        order: dict[str, list[str]] = {}
        scalars: dict[str, Any] = {}
        system: dict[str, Any] = {}
        types = {parameter.name: parameter.type for parameter in spec.parameters}
        try:
            for name, value in _by_name(spec, call.arguments).items():
                if isinstance(value, _TableArgument):
                    tables[name] = self._table(workspace, value, ctes)
                    if value.partition_by:
                        keys[name] = value.partition_by
                    order[name] = value.order_by
                elif name == "on_time":
                    system[name] = value if isinstance(value, list) else _refused("on_time takes a DESCRIPTOR")
                elif name == "uid":
                    system[name] = _evaluated(workspace, value, pa.string())
                else:
                    is_table = spec.table is not None and spec.table.table(name) is not None
                    if is_table:
                        _refused(f"Invalid argument value. Argument {name!r} expects a table to be passed")
                    type_ = types.get(name, pa.null())
                    scalars[name] = value if isinstance(value, list) else _evaluated(workspace, value, type_)
            return self._process(
                spec.key, tables, partition_by=keys, order_by=order, on_time=system.get("on_time", ()),
                uid=system.get("uid"), **scalars,
            )  # fmt: skip
        except PlanError as error:
            raise PlanError(f"{call.where}{error}") from None

    def _table(self, workspace: Workspace, argument: _TableArgument, ctes: Sequence[Any]) -> DataFrame:
        inner = Text(argument.query, None, {})
        text, functions = without_process_calls(inner, self._names, self._process, self._spec_of)
        tree = _parsed(text.sql)
        if functions is not None:
            tree = functions.rewritten(workspace, tree)
        return workspace.run(tree, ctes)


def without_process_calls(
    text: Text, names: FunctionNames, process: Process, spec_of: Callable[[str], FunctionSpec]
) -> tuple[Text, ProcessFunctions | None]:
    """The text with a name in the place of each call, and the calls; None if there are none.

    Raises PlanError for a call that cannot be read.
    """
    sql = text.readable()
    try:
        tokens = list(RemoteSpark().tokenize(sql))
    except SqlglotError:
        return text, None
    calls: dict[str, _Call] = {}
    parts, done, index, numbers = [], 0, 0, itertools.count()
    while index < len(tokens) - 1:
        token = tokens[index]
        if not _begins_call(tokens, index, names):
            index += 1
            continue
        end = _closing(tokens, index + 1)
        where = f"line {token.line}, column {token.col - len(token.text) + 1}: "
        name = PLACE.format(f"{abs(hash(sql)) % 10_000}_{next(numbers)}")
        calls[name] = _Call(token.text, where, _arguments(sql, tokens[index + 2 : end], where))
        parts += [sql[done : token.start], name]
        done, index = tokens[end].end + 1, end + 1
    if not calls:
        return text, None
    parts.append(sql[done:])
    # Fields in braces have been read; their names stand for them from here on.
    return replace(text, sql="".join(parts)), ProcessFunctions(calls, names, process, spec_of)


def _begins_call(tokens: Sequence[Any], index: int, names: FunctionNames) -> bool:
    token = tokens[index]
    if tokens[index + 1].token_type is not TokenType.L_PAREN or token.token_type is TokenType.STRING:
        return False
    if index and tokens[index - 1].token_type is TokenType.DOT:
        return False
    return names.kind(token.text) is FunctionKind.TABLE


def _closing(tokens: Sequence[Any], opening: int) -> int:
    """The parenthesis that ends the one at `opening`."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].token_type is TokenType.L_PAREN) - (tokens[index].token_type is TokenType.R_PAREN)
        if not depth:
            return index
    raise PlanError(f"line {tokens[opening].line}: a parenthesis is not closed")


def _arguments(sql: str, tokens: Sequence[Any], where: str) -> dict[str | int, Any]:
    arguments: dict[str | int, Any] = {}
    for position, part in enumerate(_split(tokens, TokenType.COMMA)):
        if not part:
            raise PlanError(f"{where}an argument is missing")
        named = len(part) > 2 and part[1].token_type is TokenType.FARROW
        key: str | int = part[0].text if named else position
        if any(isinstance(each, str) != named for each in arguments):
            raise PlanError(f"{where}arguments are passed by position or by name, not by both")
        if key in arguments:
            raise PlanError(f"{where}argument {key!r} is passed twice")
        value = part[2:] if named else part
        if len(value) == 1 and value[0].text.upper() == "DEFAULT":
            continue
        arguments[key] = _argument(sql, value, where)
    return arguments


def _argument(sql: str, tokens: Sequence[Any], where: str) -> Any:
    """A table, the names of a DESCRIPTOR as a list, or the text of an expression."""
    first, second = tokens[0], tokens[1] if len(tokens) > 1 else None
    if first.text.upper() == "DESCRIPTOR" and second is not None and second.token_type is TokenType.L_PAREN:
        return [_name(part, where) for part in _split(tokens[2:-1], TokenType.COMMA)]
    is_query = (
        first.token_type is TokenType.L_PAREN and second is not None and second.text.upper() in ("SELECT", "WITH")
    )
    if first.token_type is not TokenType.TABLE and not is_query:
        return _text(sql, tokens)
    depth, cuts = 0, {}
    for index, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if not depth and token.token_type in (TokenType.PARTITION_BY, TokenType.ORDER_BY, TokenType.PARTITION):
            cuts[token.token_type] = index
    ends = sorted([*cuts.values(), len(tokens)])
    source = _text(sql, tokens[0 if is_query else 1 : ends[0]])
    argument = _TableArgument(source if is_query else f"SELECT * FROM {source}")  # noqa: S608 - the user's own text
    for kind, begin in cuts.items():
        end = next(each for each in ends if each > begin)
        columns = tokens[begin + (2 if kind is TokenType.PARTITION else 1) : end]
        if columns and columns[0].token_type is TokenType.L_PAREN:
            columns = columns[1:-1]
        parts = list(_split(columns, TokenType.COMMA))
        if kind is TokenType.ORDER_BY:
            argument.order_by = [" ".join(token.text for token in part) for part in parts]
        else:
            argument.partition_by = [_name(part, where) for part in parts]
    return argument


def _name(tokens: Sequence[Any], where: str) -> str:
    if len(tokens) != 1:
        raise PlanError(f"{where}a name of a column is expected, not {' '.join(token.text for token in tokens)!r}")
    text: str = tokens[0].text
    return text


def _text(sql: str, tokens: Sequence[Any]) -> str:
    return sql[tokens[0].start : tokens[-1].end + 1]


def _split(tokens: Sequence[Any], separator: Any) -> list[list[Any]]:
    """The tokens between separators that stand in no brackets of any kind."""
    opening = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
    parts: list[list[Any]] = [[]] if tokens else []
    depth = 0
    for token in tokens:
        depth += (token.token_type in opening) - (token.token_type in closing)
        if token.token_type is separator and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _by_name(spec: FunctionSpec, arguments: Mapping[str | int, Any]) -> dict[str, Any]:
    """Arguments by name. `on_time` and `uid` come after the function's own."""
    order = [*(parameter.name for parameter in spec.parameters), "on_time", "uid"]
    known = {name.casefold(): name for name in order}
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
    (row,) = workspace.run(tree).collect()
    return _plain(row[0], type_)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A row as a dictionary with the names of the argument's fields, by position."""
    if isinstance(value, Row) and pa.types.is_struct(type_) and len(value) == type_.num_fields:
        return {part.name: _plain(each, part.type) for part, each in zip(type_, value, strict=True)}
    if isinstance(value, dict) and pa.types.is_map(type_):
        return list(value.items())
    return value


def _parsed(sql: str) -> Any:
    try:
        return sqlglot.parse_one(sql, dialect=RemoteSpark)
    except SqlglotError as error:
        raise PlanError(f"{sql!r} in a call of a process table function cannot be read: {error}") from error


def _refused(message: str) -> Any:
    raise PlanError(message)
