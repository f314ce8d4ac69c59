"""Window functions in FROM: `TABLE(TUMBLE(TABLE bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))` (FLIP-145).

Such a call is no SQL that Spark or sqlglot reads. So it is taken out of the text, a name is put in its
place, and where the query around it is rewritten, the name becomes the windowed DataFrame. `TABLE( )`
around the call may be left out; arguments go by position or by name.
"""

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlglot
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import YearMonthIntervalType
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.dialect import RemoteSpark
from spark_client.sql.parsing import Text, blanked, in_place, rows_of
from spark_client.sql.stream_times import without_time
from spark_client.sql.tokens import closing, place_of_token, split, text_of
from spark_client.sql.workspace import HIDDEN, Workspace
from spark_client.windows import cumulate, hop, session, tumble, tumble_rows

__all__ = ["NO_WINDOWS", "WindowFunctions", "without_window_calls"]

_PARAMETERS = {
    "TUMBLE": ("SIZE", "OFFSET"),
    "HOP": ("SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("STEP", "SIZE", "OFFSET", "EMITONLYONUPDATE"),
    "SESSION": ("GAP",),
    "TUMBLE_ROW": ("SIZE",),
}
"""After DATA and TIMECOL, in their order."""
_OPTIONAL = {"OFFSET", "EMITONLYONUPDATE"}
_PARTITIONED = {"SESSION", "TUMBLE_ROW"}


@dataclass(frozen=True)
class _Call:
    """A call as written: a query of the rows, columns by name, other arguments as texts."""

    function: str
    where: str
    query: str
    partition_by: tuple[str, ...]
    time_col: str
    arguments: Mapping[str, str]


class WindowFunctions:
    """The calls of one text, by the names that stand in their places."""

    def __init__(self, calls: Mapping[str, _Call]) -> None:
        self._calls = calls

    def __bool__(self) -> bool:
        return bool(self._calls)

    def has(self, node: Any) -> bool:
        """Whether a node of the tree stands for a call."""
        return isinstance(node, exp.Table) and node.name in self._calls

    def replace(self, workspace: Workspace, node: Any, ctes: Sequence[Any], rewrite: "Rewrite") -> None:
        """Puts the windowed DataFrame in the place of its name. Raises PlanError, with the place in the text.

        `rewrite` makes what Spark understands of the query of the rows.
        """
        call = self._calls[node.name]
        table = workspace.table(_windowed(workspace, call, ctes, rewrite))
        workspace.stages.append(f"{call.function} over {call.time_col}: native Spark expressions")
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(call.function.lower()))
        table.set("alias", alias.copy())
        for part in ("joins", "laterals", "pivots", "sample"):
            table.set(part, node.args.get(part))
        node.replace(table)


NO_WINDOWS = WindowFunctions({})
Rewrite = Callable[[Any, WindowFunctions], Any]
"""From a query, and the calls whose names stand in it."""


def without_window_calls(text: Text) -> tuple[Text, WindowFunctions]:
    """The text with a name in the place of each call, and the calls. Raises PlanError for a call it cannot read."""
    sql = text.readable()
    try:
        tokens = list(RemoteSpark().tokenize(sql))
    except SqlglotError:
        return text, NO_WINDOWS
    calls: dict[str, _Call] = {}
    parts, done, index, numbers = [], 0, 0, itertools.count()
    while index < len(tokens) - 2:
        if not _begins_call(tokens, index):
            index += 1
            continue
        end = closing(tokens, index + 1)
        written = " ".join(text_of(sql, tokens[index : end + 1]).split())
        # The name says what is called, so that equal names in two texts stand for equal calls.
        name = f"{HIDDEN}window_{zlib.crc32(written.encode())}_{next(numbers)}"
        calls[name] = _read(sql, tokens[index], tokens[index + 2 : end])
        first, last = index, end
        if _is_wrapped(tokens, index, end):
            first, last = index - 2, end + 1
        begin, done_now = tokens[first].start, tokens[last].end + 1
        # As long as what it stands for, so that errors name the right places.
        parts += [sql[done:begin], blanked(sql[begin:done_now], name)]
        done, index = done_now, last + 1
    if not calls:
        return text, NO_WINDOWS
    parts.append(sql[done:])
    return replace(text, sql="".join(parts)), WindowFunctions(calls)


def _begins_call(tokens: Sequence[Any], index: int) -> bool:
    """A name of ours, a parenthesis, and a table: `session(x)` may be anyone's."""
    if tokens[index].text.upper() not in _PARAMETERS or tokens[index].token_type is TokenType.STRING:
        return False
    if tokens[index + 1].token_type is not TokenType.L_PAREN or index + 3 >= len(tokens):
        return False
    after = tokens[index + 2 : index + 4]
    return after[0].token_type is TokenType.TABLE or after[1].token_type is TokenType.FARROW


def _is_wrapped(tokens: Sequence[Any], index: int, end: int) -> bool:
    return (
        index >= 2
        and tokens[index - 2].token_type is TokenType.TABLE
        and tokens[index - 1].token_type is TokenType.L_PAREN
        and end + 1 < len(tokens)
        and tokens[end + 1].token_type is TokenType.R_PAREN
    )


def _read(sql: str, token: Any, tokens: Sequence[Any]) -> _Call:
    function = token.text.upper()
    where = place_of_token(token)
    names = ("DATA", "TIMECOL", *_PARAMETERS[function])
    arguments: dict[str, list[Any]] = {}
    for position, part in enumerate(split(tokens)):
        named = len(part) > 2 and part[1].token_type is TokenType.FARROW
        name = part[0].text.upper() if named else names[position] if position < len(names) else ""
        # As Flink has it: the first two by name as well.
        if position < 2 and name != names[position]:
            ordinal = ("first", "second")[position]
            raise PlanError(f"{where}Illegal {ordinal} argument to Window TVF {function}: Expecting {names[position]}")
        if not part or name not in names or name in arguments:
            shown = ", ".join(names)
            raise PlanError(
                f"{where}{function} takes {shown}; argument {position + 1} is none of these, or comes twice"
            )
        arguments[name] = list(part[2:] if named else part)
    missing = [name for name in names if name not in arguments and name not in _OPTIONAL]
    if missing:
        raise PlanError(f"{where}{function} lacks the argument {missing[0]}; it takes {', '.join(names)}")
    query, partition_by = _table(sql, function, arguments.pop("DATA"), where)
    time_col = _descriptor(arguments.pop("TIMECOL"), function, where)
    texts = {name: text_of(sql, part) for name, part in arguments.items()}
    return _Call(function, where, query, partition_by, time_col, texts)


def _table(sql: str, function: str, tokens: list[Any], where: str) -> tuple[str, tuple[str, ...]]:
    """The query of a table argument, and the columns it is partitioned by."""
    if tokens[0].token_type is TokenType.TABLE:
        tokens = tokens[1:]
    depth, cut = 0, len(tokens)
    for index, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth:
            continue
        if token.token_type is TokenType.ORDER_BY:
            title = function.capitalize()
            raise PlanError(f"{where}{title} window TVF doesn't support order by clause.")
        if token.token_type in (TokenType.PARTITION_BY, TokenType.PARTITION):
            cut = min(cut, index)
    if not cut:
        raise PlanError(f"{where}{function} lacks the name of a table after TABLE")
    keys: tuple[str, ...] = ()
    if cut < len(tokens):
        if function not in _PARTITIONED:
            raise PlanError(f"{where}{function} takes no PARTITION BY: every row has its windows by itself")
        columns = [each for each in tokens[cut:] if each.token_type not in (TokenType.L_PAREN, TokenType.R_PAREN)]
        columns = columns[1 if columns[0].token_type is TokenType.PARTITION_BY else 2 :]
        keys = tuple(_name(part, where) for part in split(columns) or [[]])
    return rows_of(sql, tokens[0].start, tokens[cut - 1].end + 1), keys


def _descriptor(tokens: list[Any], function: str, where: str) -> str:
    if len(tokens) != 4 or tokens[0].text.upper() != "DESCRIPTOR":
        raise PlanError(f"{where}{function}: TIMECOL is DESCRIPTOR(column) with one column")
    return str(tokens[2].text)


def _name(tokens: Sequence[Any], where: str) -> str:
    if len(tokens) != 1:
        text = " ".join(token.text for token in tokens)
        raise PlanError(f"{where}PARTITION BY takes names of columns, not {text!r}")
    return str(tokens[0].text)


def _windowed(workspace: Workspace, call: _Call, ctes: Sequence[Any], rewrite: Rewrite) -> DataFrame:
    try:
        text, inner = without_window_calls(Text(call.query, None, {}))
        tree = sqlglot.parse_one(text.sql, dialect=RemoteSpark)
        frame = without_time(workspace.run(rewrite(tree, inner), ctes))
        values = _constants(workspace, call)
        return _FUNCTIONS[call.function](frame, call, **{name.lower(): value for name, value in values.items()})
    except SqlglotError as error:
        raise PlanError(f"{call.where}{call.function}: its table cannot be read: {error}") from error
    except PlanError as error:
        raise in_place(call.where, error) from None


def _constants(workspace: Workspace, call: _Call) -> dict[str, Any]:
    """Intervals as timedelta, as Spark computes them."""
    columns = ", ".join(call.arguments.values())
    try:
        constants = workspace.run(sqlglot.parse_one(f"SELECT {columns}", dialect=RemoteSpark))
        for field, text in zip(constants.schema.fields, call.arguments.values(), strict=True):
            if isinstance(field.dataType, YearMonthIntervalType):
                raise PlanError(f"{call.function}: {text} is of months, which differ; an interval of days is expected")
        (row,) = constants.collect()
    except AnalysisException as error:
        raise PlanError(f"{call.function}: {columns} must be constants: {error}") from error
    return dict(zip(call.arguments, row, strict=True))


_FUNCTIONS: Mapping[str, Callable[..., DataFrame]] = {
    "TUMBLE": lambda frame, call, size, offset=None: tumble(frame, call.time_col, size, offset),
    "HOP": lambda frame, call, slide, size, offset=None: hop(frame, call.time_col, slide, size, offset),
    "CUMULATE": lambda frame, call, step, size, offset=None, emitonlyonupdate=False: cumulate(
        frame, call.time_col, step, size, offset, emit_only_on_update=emitonlyonupdate
    ),
    "SESSION": lambda frame, call, gap: session(frame, call.time_col, gap, call.partition_by),
    "TUMBLE_ROW": lambda frame, call, size: tumble_rows(
        frame, size, order_by=call.time_col, partition_by=call.partition_by
    ),
}
