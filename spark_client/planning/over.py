"""Plans remote aggregates with OVER.

Spark gathers and sorts the rows of each partition; mapInArrow adds the values. Windows with the same partitioning
and order share an operator. The rows of a changelog are its net rows.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from remote_udf.segments import AppliedField
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import error_column, hidden, identifiers_of, quoted, unique_names
from spark_client.base.types import arrow_type
from spark_client.executor.aggregate.over import OverInput, OverPlan, map_over
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.functions.aggregate import OverExpression
from spark_client.functions.arguments import column_of, require_arguments
from spark_client.functions.column_calls import computed, error_of, is_value, shown, values_in
from spark_client.functions.window import Ordered, WindowSpec
from spark_client.planning.key_columns import is_direction, normalized, require_sorting
from spark_client.planning.operators import OutputField, apply_operator, output_schema, value_fields, with_hidden_names
from spark_client.windows.intervals import interval_column
from spark_client.windows.netting import net_rows

__all__ = ["add_over", "computed_over", "plan_over", "select_over", "with_hidden_over"]

DAY = 86_400
"""Seconds per day. Offsets of a day or more are added in the calendar, in which days differ in length."""


def add_over(frame: DataFrame, calls: Mapping[str, OverExpression | Column]) -> DataFrame:
    """Return `frame` with a column per call, or expression around calls; it replaces one of the same name in place."""
    names = {name: hidden(f"over_{index}") for index, name in enumerate(calls)}
    wide = _with_computed(frame, {names[name]: call for name, call in calls.items()})
    # Names of the frame may be repeated.
    passed = [hidden(f"passed_{position}") for position in range(len(frame.columns))]
    wide = wide.toDF(*passed, *wide.columns[len(passed) :])
    same = identifiers_of(frame).key
    left = {same(name): name for name in calls}
    columns: list[Column] = []
    for name, own in zip(frame.columns, passed, strict=True):
        call = left.pop(same(name), None)
        columns += [F.col(own).alias(name)] if call is None else _shown(wide, call, names[call])
    columns += [column for call in left.values() for column in _shown(wide, call, names[call])]
    return wide.select(*columns)


def computed_over(calls: Iterable[object]) -> dict[str, OverExpression]:
    """The calls inside expressions, by the names of their columns."""
    return {name: call for each in calls for name, call in values_in(each, OverExpression).items()}


def _with_computed(frame: DataFrame, calls: Mapping[str, OverExpression | Column]) -> DataFrame:
    """The frame, then columns among which are those of the calls and expressions, with their error columns."""
    expressions = {name: call for name, call in calls.items() if not is_value(call)}
    inside = computed_over(expressions.values())
    wide = plan_over(frame, {name: call for name, call in calls.items() if is_value(call, OverExpression)} | inside)
    if not inside:
        return wide
    columns = []
    for name, expression in expressions.items():
        columns.append(column_of(expression).alias(name))
        if (error := error_of(wide, values_in(expression, OverExpression))) is not None:
            columns.append(error.alias(error_column(name)))
    return computed(wide, [F.col("*"), *columns], frame, inside)


def with_hidden_over(
    frame: DataFrame, calls: Mapping[str, OverExpression]
) -> tuple[DataFrame, dict[str, dict[int, str]]]:
    """Return `frame` with hidden columns at its end; for each call, their positions and their later names."""
    if not calls:
        # A stream has none: `plan_over` rejects it.
        return frame, {}
    kept = {name: hidden(f"over_{index}") for index, name in enumerate(calls)}
    wide = plan_over(frame, {kept[name]: call for name, call in calls.items()})
    places = {name: position for position, name in enumerate(wide.columns)}
    titles = {name: {places[kept[name]]: name} for name in calls}
    for name in calls:
        if (error := places.get(error_column(kept[name]))) is not None:
            titles[name][error] = error_column(name)
    return wide, titles


def select_over(
    frame: DataFrame, columns: Sequence[str | Column | OverExpression]
) -> tuple[DataFrame, list[str | Column]]:
    """Return a frame that has the values of the calls in hidden columns, and the columns to select from it."""
    calls = {hidden(f"over_{i}"): each for i, each in enumerate(columns) if isinstance(each, OverExpression)}
    inside = computed_over(columns)
    if not calls and not inside:
        return frame, [each for each in columns if not isinstance(each, OverExpression)]
    wide = plan_over(frame, calls | inside)
    chosen: list[str | Column] = []
    for index, each in enumerate(columns):
        own = values_in(each, OverExpression)
        if isinstance(each, OverExpression):
            name = each.column_name(frame)
            chosen += _shown(wide, name, hidden(f"over_{index}"))
        elif own:
            (name,) = computed(wide, [column_of(each)], frame, own).columns
            title = shown(frame, name, own)
            chosen.append(each if title == name else column_of(each).alias(title))
            if (error := error_of(wide, own)) is not None:
                chosen.append(error.alias(error_column(title)))
        elif isinstance(each, str) and each == "*":
            chosen += [quoted(name) for name in frame.columns]
        else:
            chosen.append(each)
    return wide, chosen


def _shown(wide: DataFrame, name: str, kept: str) -> list[Column]:
    """The column of a call and its error column, if it has one, under their final names."""
    shown = [F.col(kept).alias(name)]
    if error_column(kept) in wide.columns:
        shown.append(F.col(error_column(kept)).alias(error_column(name)))
    return shown


def plan_over(frame: DataFrame, calls: Mapping[str, OverExpression]) -> DataFrame:
    """Return `frame` followed by a column per call, each with an error column if on-error is `column`.

    A changelog is replaced by its net rows. Raises PlanError, InvalidOption or UnsupportedType.
    """
    if frame.isStreaming:
        raise PlanError("OVER is not supported on a stream; aggregate by windows of time")
    frame = net_rows(frame, "OVER")
    groups: dict[Hashable, tuple[WindowSpec, dict[str, OverExpression]]] = {}
    for name, call in calls.items():
        partition, order = (tuple(map(_identity, each)) for each in (call.window.partition, call.window.order))
        _, members = groups.setdefault((partition, order), (call.window, {}))
        members[name] = call
    for window, members in groups.values():
        frame = _OverOperator(frame, window, members).plan()
    return frame


class _OverOperator:
    """The calls whose windows differ only in their frames."""

    def __init__(self, frame: DataFrame, window: WindowSpec, calls: Mapping[str, OverExpression]) -> None:
        self._frame = frame
        self._window = window
        self._calls = calls
        self._hidden: dict[str, Column] = {}

    def plan(self) -> DataFrame:
        frame, window = self._frame, self._window
        width = len(frame.columns)
        partition = [self._compared("partition", column) for column in window.partition]
        order, directions = self._order()
        conditions = {
            name: self._hide("condition", condition)
            for name, call in self._calls.items()
            if (condition := call.expression.condition_column()) is not None
        }
        base = frame.select("*", *(column.alias(name) for name, column in self._hidden.items()))
        first = len(self._hidden)
        arguments = {
            name: [self._hide("argument", column) for column in call.expression.columns(conditions.get(name))]
            for name, call in self._calls.items()
        }
        base = base.select("*", *(self._hidden[name].alias(name) for name in list(self._hidden)[first:]))
        placed = base.repartition(*partition) if partition else base.repartition(1)
        if partition or directions:
            placed = placed.sortWithinPartitions(*partition, *directions)
        names = frame.columns
        shifts = self._shifts(placed.schema, order)
        # Computed after the shuffle, to keep them out of it.
        shifted = [F.col(order[0]) + interval for interval in shifts.values()]
        placed = placed.select("*", *(each.alias(hidden(f"limit_{i}")) for i, each in enumerate(shifted)))
        limits = {shift: width + len(self._hidden) + i for i, shift in enumerate(shifts)}
        fields = placed.schema.fields
        place = {name: width + index for index, name in enumerate(self._hidden)}
        output = [OutputField(name, fields[i].dataType, fields[i].metadata) for i, name in enumerate(names)]
        inputs, values = self._inputs(fields, arguments, conditions, place, limits)
        output += values
        schema = output_schema(output)
        plan = OverPlan(
            inputs=tuple(inputs),
            partition=tuple(place[name] for name in partition),
            partition_names=tuple(self._partition_names()),
            order=tuple(place[name] for name in order),
            passed=tuple(range(width)),
            names=tuple(schema.names),
        )
        passed = with_hidden_names(placed, width)
        calls = [f"{call.expression.spec.name} OVER" for call in self._calls.values()]
        return apply_operator(passed, map_over, plan, schema, [each.name for each in output], calls=calls)

    def _inputs(
        self, fields: Sequence[StructField], arguments: Mapping[str, Sequence[str]], conditions: Mapping[str, str],
        place: Mapping[str, int], limits: Mapping[tuple[bool, float], int],
    ) -> tuple[list[OverInput], list[OutputField]]:  # fmt: skip
        """The calls over these columns, and the columns of their values. `place` has positions of hidden columns."""
        output: list[OutputField] = []
        inputs = []
        for name, call in self._calls.items():
            columns = tuple(place[column] for column in arguments[name])
            require_arguments(call.expression.spec, [fields[column] for column in columns])
            planned = call.expression.plan((AppliedField.FINAL_VALUE,))
            only = place[conditions[name]] if name in conditions else None
            calendar, start, end = (getattr(call.window.frame, part) for part in ("of_months", "start", "end"))
            inputs.append(
                OverInput(
                    AggregateInput(planned, columns, only),
                    call.window.frame,
                    (limits.get((calendar, start)), limits.get((calendar, end))),
                )
            )
            output += value_fields(name, planned)
        return inputs, output

    def _hide(self, what: str, column: Column | str) -> str:
        name = hidden(f"{what}_{len(self._hidden)}")
        self._hidden[name] = column_of(column)
        return name

    def _compared(self, what: str, column: Column | str) -> str:
        """A hidden column that distinguishes rows."""
        field = self._frame.select(column).schema.fields[0]
        arrow_type(field.dataType, f"window, column {field.name!r}")
        require_sorting(field.dataType, f"window, column {field.name!r}")
        return self._hide(what, normalized(column_of(column), field.dataType))

    def _order(self) -> tuple[list[str], list[Column]]:
        """The hidden columns of the order, and the columns to sort by."""
        compares = any(not call.window.frame.rows for call in self._calls.values())
        names, directions = [], []
        for item in self._window.order:
            column = item.column if isinstance(item, Ordered) else item
            if not isinstance(column, str) and (compares or isinstance(item, Ordered)):
                self._require_value(column)
            value = column_of(column)
            if compares:
                names.append(self._compared("order", column))
                value = F.col(names[-1])
            directions.append(item.applied(value) if isinstance(item, Ordered) else value)
        return names, directions

    def _shifts(self, schema: StructType, order: Sequence[str]) -> dict[tuple[bool, float], Column]:
        """Offsets of months or days, with their intervals. Spark adds them, because it knows calendars and time zones.

        Raises PlanError for an offset that does not fit the type of the order.
        """
        shifts = {}
        for call in self._calls.values():
            frame = call.window.frame
            if not frame.has_offsets:
                continue
            type_ = schema[order[0]].dataType
            _check_offsets(call, type_)
            days = frame.of_time and isinstance(type_, T.TimestampType)
            for offset in (frame.start, frame.end):
                if offset and (frame.of_months or (days and abs(offset) >= DAY)):
                    item = self._window.order[0]
                    signed = -offset if isinstance(item, Ordered) and item.descending else offset
                    if frame.of_months:
                        shifts[True, offset] = F.expr(f"interval '{int(signed)}' month")
                    else:
                        shifts[False, offset] = interval_column(round(signed * 1_000_000))
        return shifts

    def _require_value(self, column: Column) -> None:
        """Raises PlanError for a sort direction, because it gives no value to compare."""
        if is_direction(self._frame, column):
            raise PlanError(
                f"a RANGE frame compares the values of its order, and {column} is a direction: order by the column, or "
                "by spark_client.desc(column)"
            )

    def _partition_names(self) -> Sequence[str]:
        return unique_names(self._frame.select(*self._window.partition).columns) if self._window.partition else []


def _check_offsets(call: OverExpression, type_: T.DataType) -> None:
    """Raises PlanError for offsets that cannot be added to the column by which the window is ordered."""
    of_time = call.window.frame.of_time or call.window.frame.of_months
    fits = (T.TimestampType, T.TimestampNTZType, T.DateType) if of_time else (T.NumericType, T.DateType)
    if call.window.frame.of_time:
        fits = (*fits, T.DayTimeIntervalType)
    if not isinstance(type_, fits):
        offsets = "durations" if of_time else "numbers"
        raise PlanError(
            f"call of {call.expression.spec.key}: a RANGE frame has offsets that are {offsets}, and its order is "
            f"by {type_.simpleString()}"
        )


def _identity(column: Column | str | Ordered) -> Hashable:
    """What is equal for columns that are the same object, or the same name, in the same direction."""
    if isinstance(column, Ordered):
        return _identity(column.column), column.descending, column.nulls_first
    return column if isinstance(column, str) else id(column)
