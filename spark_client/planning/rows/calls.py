"""CallPlanner plans all remote calls of a `select` or `with_columns` as one mapInArrow operator."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from remote_udf.options import OnError, OutputMode
from spark_client.base.calls import ErrorPolicy, ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.identifiers import are_plain, error_column, hidden, identifiers_of
from spark_client.base.types import spark_type
from spark_client.executor.engine.planned_calls import EarlierAnswers
from spark_client.executor.engine.policy import ERROR_TYPE
from spark_client.executor.engine.row_engine import PlannedCall
from spark_client.executor.scalar.dead_letter import Operator
from spark_client.executor.scalar.rows import ColumnSource, OutputColumn, RowPlan, map_rows, of_partition
from spark_client.functions.arguments import column_of, require_arguments
from spark_client.functions.column_calls import ColumnCall, call_of
from spark_client.functions.scalar import plan_call
from spark_client.planning.dead_letters import letter_schema
from spark_client.planning.operators import apply_operator, with_names
from spark_client.planning.scans import renamed, selected

__all__ = ["CallNode", "CallPlanner", "Item", "columns_of"]

_DRIVER = uuid.uuid4().hex


@dataclasses.dataclass(eq=False)
class CallNode:
    """A planned call. `name` is its column's; None for a call that is only an argument of another."""

    name: str | None
    written: ColumnCall
    call: ScalarCall
    index: int = 0
    """Its position among the calls of the operator, behind those among its arguments."""
    arguments: list["int | str | CallNode"] = dataclasses.field(default_factory=list)
    """Per argument: the column of the base frame, by position or name, or the call whose value it is."""
    earlier: EarlierAnswers | None = None
    """Which rows an earlier call answers."""

    @property
    def result(self) -> pa.DataType:
        """The type of its value."""
        result, name = self.written.spec.result, self.written.value_field
        return result if name is None else result.field(name).type

    @property
    def shown(self) -> str:
        """The call in Spark's plan."""
        name = self.written.spec.name
        return name if self.earlier is None else f"{name} {self.earlier.rule}"

    @property
    def error_name(self) -> str:
        return error_column(self.name or "")


Item = tuple[ColumnSource, int | CallNode]
"""An output column: a column of the base frame by position, or a call's value or error."""


def columns_of(node: CallNode) -> list[Item]:
    """The output columns of a call: its value, and its error if that is a column."""
    has_error = node.call.policy.on_error is OnError.COLUMN
    return [(ColumnSource.VALUE, node), *([(ColumnSource.ERROR, node)] if has_error else [])]


class CallPlanner:
    """The calls of one operator. The engine passes the values of a call on to those that have it as an argument."""

    def __init__(self, spark: SparkSession, config: ClientConfig, options: Mapping[str, object]) -> None:
        self._spark = spark
        self._config = config
        self._options = {name.replace("-", "_"): value for name, value in options.items()}
        self._identifiers = identifiers_of(spark)
        self._passed: dict[str, int | None] = {}
        """The position in the base frame by the text of a passed column; None if a text names several columns."""
        self._nodes: list[CallNode] = []
        self._by_column: dict[ColumnCall, CallNode] = {}
        self._operation = uuid.uuid4().hex
        self._hidden: dict[str, object] = {}
        """Arguments that are not passed columns, by the names of the hidden columns of the base frame for them."""

    def same(self, name: str) -> str:
        """The form in which Spark compares names: two names are equal if their forms are."""
        return self._identifiers.key(name)

    def passes(self, texts: Sequence[str], position: int) -> None:
        """Register the texts that name the column of the base frame at that position."""
        for key in map(self._key, texts):
            self._passed[key] = None if key in self._passed else position

    def node(self, name: str | None, written: ColumnCall) -> CallNode:
        """Plan the call after the calls among its arguments."""
        known = self._by_column.get(written)
        if known is not None and (name is None or known.name is None):
            known.name = known.name or name
            return known
        own = {option.replace("-", "_"): value for option, value in written.options.items()}
        call = plan_call(written.spec, self._config, len(written.arguments), {**self._options, **own}, self._spark)
        node = CallNode(name, written, call)
        for argument in written.arguments:
            inner = call_of(argument)
            node.arguments.append(self._argument(argument) if inner is None else self.node(None, inner))
        if written.earlier is not None:
            earlier = self.node(None, written.earlier.call)
            # What fails there is left to this call.
            earlier.call = dataclasses.replace(earlier.call, policy=ErrorPolicy(OnError.NULL))
            node.earlier = EarlierAnswers(earlier.index, written.earlier.rule)
        node.index = len(self._nodes)
        self._nodes.append(node)
        self._by_column[written] = node
        return node

    def plan(
        self, frame: DataFrame, passed: Sequence[str | Column], width: int, items: Sequence[Item],
        titles: Mapping[int, str] | None = None,
    ) -> DataFrame:  # fmt: skip
        """Apply the operators to `frame`. `passed` become the first `width` columns of the base frame.

        `titles` are other names of some of them, by position.
        """
        if not self._nodes:
            return frame.select(*passed)
        # Names need few requests to the JVM, so they get their hidden names all at once.
        added = [of if _is_name(of) else column_of(of).alias(name) for name, of in self._hidden.items()]
        base = selected(frame, *passed, *added)
        shown = [(titles or {}).get(position, name) for position, name in enumerate(base.columns[:width])]
        names = [*shown, *self._hidden]
        output = [_name_of(source, of, names) for source, of in items]
        if titles or any(map(_is_name, self._hidden.values())) or not self._name_columns(names):
            base = renamed(base, *(_passed(i) if i < width else name for i, name in enumerate(names)))
        # Files of dead letters are also read by name, so their names must be unique.
        twice = self._identifiers.repeated(names[:width])
        letter = tuple(_passed(i) if self.same(names[i]) in twice else names[i] for i in range(width))
        rename = not self._name_columns(output)
        final = [
            (_passed(i) if rename else name, *item) for i, (name, item) in enumerate(zip(output, items, strict=True))
        ]
        base = self._operator(base, letter, final)
        return with_names(base, output) if rename else base

    def _name_columns(self, names: Sequence[str]) -> bool:
        """Whether each name is also the text of exactly one column."""
        return are_plain(names) and not self._identifiers.repeated(names)

    def _argument(self, argument: object) -> str | int:
        """The position of the passed column that the argument names, or the name of a hidden column created for it."""
        key = self._key(argument) if isinstance(argument, str) else None
        if key is not None and (position := self._passed.get(key)) is not None:
            return position
        for name, known in self._hidden.items():
            if known is argument or (isinstance(known, str) and self._key(known) == key):
                return name
        name = hidden(len(self._nodes) + len(self._hidden))
        self._hidden[name] = argument
        return name

    def _key(self, text: str) -> str:
        """What is equal for texts that name the same column. The key of a map, as in `m.key`, has its case."""
        return text if "." in text else self.same(text)

    def _operator(
        self, frame: DataFrame, letter: tuple[str, ...], final: "Sequence[tuple[str, ColumnSource, int | CallNode]]"
    ) -> DataFrame:
        """The mapInArrow that makes all calls and returns the `final` columns, by name.

        `letter` names the columns that a dead letter contains.
        """
        fields = frame.schema.fields
        ordered = not all(_output_mode(node.call) is OutputMode.UNORDERED for node in self._nodes)
        planned = [self._planned(node, fields, ordered) for node in self._nodes]
        columns: list[OutputColumn] = []
        schema: list[StructField] = []
        for name, source, of in final:
            if not isinstance(of, CallNode):
                columns.append(OutputColumn(name, ColumnSource.INPUT, of))
                schema.append(StructField(name, fields[of].dataType, True, fields[of].metadata))
                continue
            columns.append(OutputColumn(name, source, of.index))
            type_ = of.result if source is ColumnSource.VALUE else ERROR_TYPE
            schema.append(StructField(name, spark_type(type_)))
        letters = ""
        if any(node.call.policy.on_error is OnError.DEAD_LETTER for node in self._nodes):
            letters = letter_schema(letter, fields, self._identifiers, self._config.micro_batch)
        operator = Operator(self._operation, _DRIVER, micro_batch=self._config.micro_batch)
        plan = RowPlan(tuple(planned), tuple(columns), letter, ordered, operator, letters)
        return apply_operator(
            frame, map_rows, plan, StructType(schema), calls=[node.shown for node in self._nodes],
            of_partition=of_partition if letters else None,
        )  # fmt: skip

    def _planned(self, node: CallNode, fields: Sequence[StructField], ordered: bool) -> PlannedCall:
        """The call with the positions of its arguments. Checks the types of the arguments."""
        place = {field.name: index for index, field in enumerate(fields)}
        columns: list[int] = []
        given: list[StructField] = []
        for argument in node.arguments:
            if isinstance(argument, CallNode):
                columns.append(len(fields) + argument.index)
                given.append(StructField(argument.written.spec.name, spark_type(argument.result)))
            else:
                columns.append(argument if isinstance(argument, int) else place[argument])
                given.append(fields[columns[-1]])
        require_arguments(node.written.spec, given)
        mode = OutputMode.ORDERED if ordered else OutputMode.UNORDERED
        call = dataclasses.replace(node.call, options={**node.call.options, "output-mode": mode.value})
        return PlannedCall(call, tuple(columns), earlier=node.earlier, field=node.written.value_field)


def _is_name(argument: object) -> TypeGuard[str]:
    """Whether an argument is the name of one column."""
    return isinstance(argument, str) and not argument.endswith("*")


def _passed(position: int) -> str:
    return hidden(f"column_{position}")


def _name_of(source: ColumnSource, of: "int | CallNode", names: Sequence[str]) -> str:
    """The name of an output column."""
    if isinstance(of, CallNode):
        return of.error_name if source is ColumnSource.ERROR else of.name or ""
    return names[of]


def _output_mode(call: ScalarCall) -> OutputMode:
    """The output mode that the client requests: that of the call, the session or the declaration."""
    return OutputMode(call.options.get("output-mode") or call.spec.options.get("output-mode") or OutputMode.ORDERED)
