"""Window functions in FROM: `TABLE(TUMBLE(TABLE bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))` (FLIP-145).

While the query around a call is rewritten, the call is replaced by the windowed DataFrame. `TABLE( )` around the call
may be omitted; arguments are passed by position or by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import YearMonthIntervalType
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.table_calls import (
    GivenTable,
    by_name,
    call_of_relation,
    given_table,
    one_column,
    put_in_place,
)
from spark_client.sql.text.arguments import CalledTable
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import canonical
from spark_client.windows import cumulate, hop, session, tumble, tumble_rows

__all__ = [
    "WINDOW_FUNCTIONS", "has_window_calls", "is_window_call", "put_windows", "read_window_call", "window_call_of",
]  # fmt: skip

_PARAMETERS = {
    "TUMBLE": ("SIZE", "OFFSET"),
    "HOP": ("SLIDE", "SIZE", "OFFSET"),
    "CUMULATE": ("STEP", "SIZE", "OFFSET", "EMITONLYONUPDATE"),
    "SESSION": ("GAP",),
    "TUMBLE_ROW": ("SIZE",),
}
"""The parameters after DATA and TIMECOL, in order."""
WINDOW_FUNCTIONS = tuple(_PARAMETERS)
_OPTIONAL = {"OFFSET", "EMITONLYONUPDATE"}
_PARTITIONED = {"SESSION", "TUMBLE_ROW"}


@dataclass(frozen=True)
class _Call:
    """A call as written: its rows, the time column, and the other arguments by name."""

    function: str
    table: GivenTable
    time_col: str
    arguments: Mapping[str, Node]


def has_window_calls(tokens: Sequence[Token]) -> bool:
    """Whether a text may contain a call of a window function: its name, a parenthesis, then TABLE or `name =>`."""
    places = zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)
    return any(
        name.text.upper() in _PARAMETERS and opening.token_type is TokenType.L_PAREN
        and (first.token_type is TokenType.TABLE or second.token_type is TokenType.FARROW)
        for name, opening, first, second in places
    )  # fmt: skip


def is_window_call(node: Node | None) -> bool:
    """Whether a node is a call of a window function; `session(x)` could be another function."""
    if not isinstance(node, exp.Anonymous) or node.name.upper() not in _PARAMETERS:
        return False
    return isinstance(next(iter(node.expressions), None), (CalledTable, exp.Kwarg))


def window_call_of(node: Node) -> exp.Anonymous | None:
    """The call of a window function in an item of FROM; None for any other item."""
    call = call_of_relation(node)
    return call if is_window_call(call) else None


def put_windows(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by the windowed DataFrame."""
    read = read_window_call(call)
    frame = without_time(scope.run(read.table.query))
    values = _constants(scope, read)
    windowed = _FUNCTIONS[read.function](frame, read, **{name.lower(): value for name, value in values.items()})
    scope.stages.append(f"{read.function} over {read.time_col}: native Spark expressions")
    put_in_place(scope, node, windowed, read.function.lower())


def read_window_call(call: exp.Anonymous) -> _Call:
    """Read the arguments of a call. Raises PlanError for arguments that the function does not take."""
    function = call.name.upper()
    names = ("DATA", "TIMECOL", *_PARAMETERS[function])
    # As in Flink, the first two arguments keep their positions even if they are passed by name.
    for name, ordinal, part in zip(names, ("first", "second"), call.expressions, strict=False):
        if isinstance(part, exp.Kwarg) and part.this.name.upper() != name:
            raise PlanError(f"Illegal {ordinal} argument to Window TVF {function}: Expecting {name}")
    arguments = by_name(call, names, _OPTIONAL)
    table = _table(arguments.pop("DATA"), function)
    return _Call(function, table, one_column(function, "TIMECOL", arguments.pop("TIMECOL")), arguments)


def _table(value: Node, function: str) -> GivenTable:
    table = given_table(CalledTable(this=value) if is_window_call(value) else value)
    if table is None:
        raise PlanError(f"{function} lacks the name of a table after TABLE")
    if table.order_by:
        raise PlanError(f"{function.capitalize()} window TVF doesn't support order by clause.")
    if table.partition_by and function not in _PARTITIONED:
        raise PlanError(f"{function} takes no PARTITION BY: its windows do not depend on other rows")
    return table


def _constants(scope: Scope, call: _Call) -> dict[str, Node]:
    """The constant arguments, evaluated by Spark; intervals become timedelta."""
    columns = list(call.arguments.values())
    try:
        constants = scope.outside().run(exp.select(*columns))
        for field, column in zip(constants.schema.fields, columns, strict=True):
            if isinstance(field.dataType, YearMonthIntervalType):
                months = f"{call.function}: {canonical(column)} is of months, which differ in length"
                raise PlanError(f"{months}; an interval of days is expected")
        (row,) = constants.collect()
    except AnalysisException as error:
        written = ", ".join(map(canonical, columns))
        raise PlanError(f"{call.function}: {written} must be constants: {error}") from error
    return dict(zip(call.arguments, row, strict=True))


_FUNCTIONS: Mapping[str, Callable[..., DataFrame]] = {
    "TUMBLE": lambda frame, call, size, offset=None: tumble(frame, call.time_col, size, offset),
    "HOP": lambda frame, call, slide, size, offset=None: hop(frame, call.time_col, slide, size, offset),
    "CUMULATE": lambda frame, call, step, size, offset=None, emitonlyonupdate=False: cumulate(
        frame, call.time_col, step, size, offset, emit_only_on_update=emitonlyonupdate
    ),
    "SESSION": lambda frame, call, gap: session(frame, call.time_col, gap, call.table.partition_by),
    "TUMBLE_ROW": lambda frame, call, size: tumble_rows(
        frame, size, order_by=call.time_col, partition_by=call.table.partition_by
    ),
}
