"""Whole-row execution: plans remote calls into mapInArrow operators.

An operator makes all calls it can make at once; a call that has another call among its arguments goes
into a later one. Between the operators calls live in hidden columns; the last operator puts every
column where it belongs.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from remote_udf.errors import StreamError
from remote_udf.options import OnError, OutputMode
from spark_client.calls import ScalarCall
from spark_client.config import ClientConfig
from spark_client.errors import PlanError
from spark_client.executor.engine import PlannedCall
from spark_client.executor.policy import ERROR_TYPE
from spark_client.executor.rows import OutputColumn, RowPlan, Source, map_rows
from spark_client.marks import CallMark, mark_of
from spark_client.options import session_options
from spark_client.scalar import column_of, plan_call
from spark_client.types import arrow_type, spark_type

__all__ = ["plan_select", "plan_with_columns"]

HIDDEN = "__remote_udf_{}"
ERROR_SUFFIX = "_error"


@dataclasses.dataclass(eq=False)
class _Node:
    """One call to be made. `name` is its column's; None for a call that only feeds another."""

    name: str | None
    mark: CallMark
    call: ScalarCall
    level: int = 0
    arguments: list["str | _Node"] = dataclasses.field(default_factory=list)
    """Per argument, the column of the base frame that holds it, or the call it is the value of."""
    hidden: str = ""

    @property
    def error_name(self) -> str:
        return f"{self.name}{ERROR_SUFFIX}"

    @property
    def has_error(self) -> bool:
        """It has an error column."""
        return self.call.policy.on_error is OnError.COLUMN


_Item = tuple[Source, int] | tuple[Source, _Node]
"""An output column: a column of the base frame by position, or a call's value or error."""


def plan_with_columns(
    spark: SparkSession, config: ClientConfig, frame: DataFrame, calls: Mapping[str, object], options: Mapping[str, Any]
) -> DataFrame:
    """`frame` with a column per call, and after it an error column with on-error `column`.

    A column of the same name is replaced where it stands, as DataFrame.withColumns does. Raises
    PlanError, InvalidOption or UnsupportedType before anything runs.
    """
    planner = _Planner(spark, config, options)
    nodes = {name: planner.node(name, _required_mark(name, call)) for name, call in calls.items()}
    same = str.casefold if spark.conf.get("spark.sql.caseSensitive", "false") == "false" else str
    by_name = {same(name): node for name, node in nodes.items()}
    items: list[_Item] = []
    for position, name in enumerate(frame.columns):
        node = by_name.get(same(name))
        items += [(Source.INPUT, position)] if node is None else _columns_of(nodes.pop(node.name or "", node))
    items += [item for node in nodes.values() for item in _columns_of(node)]
    return planner.plan(frame, ["*"], len(frame.columns), items)


def plan_select(
    spark: SparkSession,
    config: ClientConfig,
    frame: DataFrame,
    columns: Sequence[str | Column],
    options: Mapping[str, Any],
) -> DataFrame:
    """The given columns of `frame`, calls among them; error columns follow their call. Raises as above."""
    planner = _Planner(spark, config, options)
    passed: list[str | Column] = []
    width = 0
    items: list[_Item] = []
    for column in columns:
        mark = mark_of(column)
        if mark is not None:
            items += _columns_of(planner.node(mark.alias or frame.select(column).columns[0], mark))
            continue
        plain = isinstance(column, str) and "*" not in column
        count = 1 if plain else len(frame.select(column).columns)
        items += [(Source.INPUT, width + index) for index in range(count)]
        width += count
        passed.append(column)
    return planner.plan(frame, passed, width, items)


def _required_mark(name: str, call: object) -> CallMark:
    mark = mark_of(call)
    if mark is None:
        raise PlanError(
            f"column {name!r}: not the call of a remote function but {call!r}. Make the call here under a name, "
            "and derive from that column in a select of its own"
        )
    return mark


def _columns_of(node: _Node) -> list[_Item]:
    return [(Source.VALUE, node), *([(Source.ERROR, node)] if node.has_error else [])]


class _Planner:
    def __init__(self, spark: SparkSession, config: ClientConfig, options: Mapping[str, Any]) -> None:
        self._spark = spark
        self._config = config
        self._options = {name.replace("-", "_"): value for name, value in options.items()}
        self._nodes: dict[CallMark, _Node] = {}
        self._expressions: dict[str, Column] = {}
        """Hidden columns of the base frame: arguments that are not plain columns of it."""

    def node(self, name: str | None, mark: CallMark) -> _Node:
        """The call, planned, after the calls among its arguments."""
        known = self._nodes.get(mark)
        if known is not None and (name is None or known.name is None):
            known.name = known.name or name
            return known
        own = {option.replace("-", "_"): value for option, value in mark.options.items()}
        session = session_options(self._spark, mark.spec.kind, mark.spec.name)
        call = plan_call(mark.spec, self._config, len(mark.arguments), {**self._options, **own}, session)
        node = _Node(name, mark, call)
        for argument in mark.arguments:
            inner = mark_of(argument)
            if inner is not None:
                nested = self.node(None, inner)
                node.level = max(node.level, nested.level + 1)
                node.arguments.append(nested)
            else:
                node.arguments.append(self._argument(argument))
        node.hidden = HIDDEN.format(len(self._nodes) + len(self._expressions))
        self._nodes[mark] = node
        return node

    def plan(self, frame: DataFrame, passed: Sequence[str | Column], width: int, items: Sequence[_Item]) -> DataFrame:
        """The operators over `frame`. `passed` makes the first `width` columns of the base frame."""
        nodes = list(self._nodes.values())
        names = [node.name for node in nodes if node.name is not None]
        if not nodes:
            return frame.select(*passed)
        base = frame.select(*passed, *(column.alias(name) for name, column in self._expressions.items()))
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise PlanError(f"two columns to add are named {', '.join(sorted(repeated))}")
        last = max(node.level for node in nodes)
        for level in range(last + 1):
            base = self._operator(base, width, [n for n in nodes if n.level == level], items if level == last else None)
        return base

    def _argument(self, argument: Any) -> str:
        for name, column in self._expressions.items():
            if column is argument:
                return name
        name = HIDDEN.format(len(self._nodes) + len(self._expressions))
        self._expressions[name] = column_of(argument)
        return name

    def _operator(
        self, frame: DataFrame, width: int, nodes: Sequence[_Node], final: Sequence[_Item] | None
    ) -> DataFrame:
        """One mapInArrow that makes these calls; the last one, which has `final` columns, drops the hidden ones."""
        fields = frame.schema.fields
        place = {field.name: width + index for index, field in enumerate(fields[width:])}
        ordered = not all(_output_mode(node.call) is OutputMode.UNORDERED for node in nodes)
        planned = [self._planned(node, place, fields, ordered) for node in nodes]
        index_of = {node: index for index, node in enumerate(nodes)}
        output: list[tuple[OutputColumn, StructField]] = []

        def add(name: str, source: Source, index: int, field: StructField) -> None:
            output.append((OutputColumn(name, source, index), StructField(name, field.dataType, True, field.metadata)))

        def add_call(source: Source, node: _Node, name: str) -> None:
            """A call's column: of this operator, or of an earlier one by way of its hidden column."""
            type_ = node.mark.spec.result if source is Source.VALUE else ERROR_TYPE
            field = StructField(name, spark_type(type_))
            hidden = node.hidden + (ERROR_SUFFIX if source is Source.ERROR else "")
            if node in index_of:
                add(name, source, index_of[node], field)
            else:
                add(name, Source.INPUT, place[hidden], field)

        if final is None:
            for index, field in enumerate(fields):
                add(field.name, Source.INPUT, index, field)
            for node in nodes:
                for source, _ in _columns_of(node):
                    add_call(source, node, node.hidden + (ERROR_SUFFIX if source is Source.ERROR else ""))
        else:
            for source, of in final:
                if isinstance(of, _Node):
                    add_call(source, of, of.error_name if source is Source.ERROR else of.name or "")
                else:
                    add(fields[of].name, Source.INPUT, of, fields[of])
        plan = RowPlan(tuple(planned), tuple(column for column, _ in output), tuple(range(width)), ordered)

        def operate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map_rows(plan, batches)

        return frame.mapInArrow(operate, StructType([field for _, field in output]))

    def _planned(
        self, node: _Node, place: Mapping[str, int], fields: Sequence[StructField], ordered: bool
    ) -> PlannedCall:
        """The call with the positions of its arguments, their types checked."""
        columns = [place[argument.hidden if isinstance(argument, _Node) else argument] for argument in node.arguments]
        blocking = [inner for inner in node.arguments if isinstance(inner, _Node) and inner.has_error]
        spec = node.mark.spec
        types = [
            arrow_type(fields[column].dataType, f"call of {spec.key}, argument {spec.parameter(position).name!r}")
            for position, column in enumerate(columns)
        ]
        try:
            spec.check_arguments(types)
        except StreamError as error:
            raise PlanError(error.message) from None
        mode = OutputMode.ORDERED if ordered else OutputMode.UNORDERED
        call = dataclasses.replace(node.call, options={**node.call.options, "output-mode": mode.value})
        errors = tuple(place[inner.hidden + ERROR_SUFFIX] for inner in blocking)
        return PlannedCall(call, tuple(columns), errors)


def _output_mode(call: ScalarCall) -> OutputMode:
    """The mode this end asks for: the call's, the session's or the declaration's."""
    return OutputMode(call.options.get("output-mode") or call.spec.options.get("output-mode") or OutputMode.ORDERED)
