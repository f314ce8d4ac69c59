"""Calls of process table functions, read from the tokens of a text: `f(r => TABLE t PARTITION BY k, uid => 'x')`.

Such a call is no SQL that Spark or sqlglot reads. So it is taken out of the text, and a name is put in its place.
"""

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.sql.dialect import RemoteSpark
from spark_client.sql.names import FunctionNames
from spark_client.sql.parsing import Text, blanked, rows_of
from spark_client.sql.tokens import closing, place_of_token, split, text_of
from spark_client.sql.workspace import HIDDEN

__all__ = ["ProcessCall", "TableArgument", "without_calls"]

PLACE = "__remote_sql_process_{}"


@dataclass
class TableArgument:
    """The query of the rows of one argument, each of its words where it stands in the text."""

    query: str
    partition_by: list[str] = field(default_factory=list)
    order_by: list[str] = field(default_factory=list)


@dataclass
class ProcessCall:
    """A call as written: its arguments by name, or by position under their numbers."""

    name: str
    where: str
    arguments: dict[str | int, Any]


def without_calls(text: Text, names: FunctionNames) -> tuple[Text, Mapping[str, ProcessCall]]:
    """The text with a name in the place of each call, and the calls by these names.

    Raises PlanError for a call that cannot be read.
    """
    sql = text.readable()
    try:
        tokens = list(RemoteSpark().tokenize(sql))
    except SqlglotError:
        return text, {}
    mark = zlib.crc32(sql.encode(errors="surrogatepass"))
    calls: dict[str, ProcessCall] = {}
    parts, done, index, numbers = [], 0, 0, itertools.count()
    while index < len(tokens) - 1:
        token = tokens[index]
        if not _begins_call(tokens, index, names):
            index += 1
            continue
        end = closing(tokens, index + 1)
        where = place_of_token(token)
        name = PLACE.format(f"{mark}_{next(numbers)}")
        calls[name] = ProcessCall(token.text, where, _arguments(sql, tokens[index + 2 : end], where))
        # As long as what it stands for, so that errors name the right places.
        parts += [sql[done : token.start], blanked(sql[token.start : tokens[end].end + 1], name)]
        done, index = tokens[end].end + 1, end + 1
    if not calls:
        return text, calls
    parts.append(sql[done:])
    # Fields in braces have been read; their names stand for them from here on.
    return replace(text, sql="".join(parts)), calls


def _begins_call(tokens: Sequence[Any], index: int, names: FunctionNames) -> bool:
    token = tokens[index]
    if tokens[index + 1].token_type is not TokenType.L_PAREN or token.token_type is TokenType.STRING:
        return False
    if index and tokens[index - 1].token_type is TokenType.DOT:
        return False
    return names.kind(token.text) is FunctionKind.PROCESS


def _arguments(sql: str, tokens: Sequence[Any], where: str) -> dict[str | int, Any]:
    arguments: dict[str | int, Any] = {}
    for position, part in enumerate(split(tokens)):
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
        return [_name(part, where) for part in split(tokens[2:-1])]
    is_query = (
        first.token_type is TokenType.L_PAREN and second is not None and second.text.upper() in ("SELECT", "WITH")
    )
    # A window function has been taken out of the text, with TABLE before it.
    is_window = first.text.startswith(f"{HIDDEN}window_")
    if first.token_type is not TokenType.TABLE and not is_query and not is_window:
        return text_of(sql, tokens)
    depth, cuts = 0, {}
    for index, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if not depth and token.token_type in (TokenType.PARTITION_BY, TokenType.ORDER_BY, TokenType.PARTITION):
            cuts[token.token_type] = index
    ends = sorted([*cuts.values(), len(tokens)])
    source = tokens[0 if is_query or is_window else 1 : ends[0]]
    if not source:
        raise PlanError(f"{where}the name of a table is expected after TABLE")
    begin, end = source[0].start, source[-1].end + 1
    argument = TableArgument(blanked(sql[:begin]) + sql[begin:end] if is_query else rows_of(sql, begin, end))
    for kind, begin in cuts.items():
        end = next(each for each in ends if each > begin)
        columns = tokens[begin + (2 if kind is TokenType.PARTITION else 1) : end]
        if columns and columns[0].token_type is TokenType.L_PAREN:
            columns = columns[1:-1]
        parts = split(columns)
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
