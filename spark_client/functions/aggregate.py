"""RemoteAggregate: an aggregate function of a server as a callable on columns."""

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remote_udf.functions import FunctionSpec
from remote_udf.option_types import AggregateCallOptions
from remote_udf.options import AggregatePlan
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.options import aggregate_plan_of, call_options
from spark_client.base.types import spark_type
from spark_client.executor.aggregate.column import evaluate_group
from spark_client.executor.scalar.column import result_type
from spark_client.functions.arguments import column_of, require_count
from spark_client.functions.column_calls import ColumnValue, is_value, values_in
from spark_client.functions.scalar import FunctionDoc, ShownFunction, SparkFunction, new_spark_aggregate
from spark_client.functions.window import WindowSpec

__all__ = ["AggregateExpression", "OverExpression", "RemoteAggregate"]


@dataclasses.dataclass(frozen=True, repr=False)
class RemoteAggregate(ShownFunction):
    """Call it with columns or column names inside `remote.group_by(...).agg(...)`: `my_avg("price")`."""

    spec: FunctionSpec
    spark: SparkSession
    config: ClientConfig
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    _look_up: Callable[[], FunctionSpec] | None = dataclasses.field(default=None, compare=False)

    def with_options(self, **options: Unpack[AggregateCallOptions]) -> "RemoteAggregate":
        """Return the function with call options, such as `size=10_000`, which take precedence over all others."""
        return dataclasses.replace(self, options={**self.options, **options})

    def __call__(self, *arguments: object) -> "AggregateExpression":
        """Return the aggregate over these arguments: Columns, names of columns, or literals of any other type.

        Raises PlanError if the number of arguments is wrong, or one is computed of another remote aggregate.
        """
        for number, argument in enumerate(arguments, 1):
            if is_value(argument) or values_in(argument, ColumnValue):
                raise PlanError(
                    f"call of {self.spec.key}: argument {number} has a remote aggregate, and an aggregate of an "
                    "aggregate needs two groupings: compute the inner one under a name in remote.group_by(df, ...)"
                    ".agg(...), and group its result"
                )
        now = self.renewed()
        require_count(now.spec, len(arguments))
        return AggregateExpression(now, arguments)

    def column(self, *arguments: object) -> Column:
        """Return the call as one of Spark's own aggregates, for `df.groupBy("k").agg(...)` and `.over(window)`.

        Spark evaluates it with one request per group, and per row if the frame of the window is bounded, and holds the
        rows of a group in memory; `remote.group_by` sends many groups in a request. With on-error `column` the value is
        a struct of `value` and `error`. Types are checked when Spark runs the query.

        Args:
            *arguments: Columns, names of columns, or literals of any other type.

        Raises:
            PlanError: The number of arguments is wrong, or one is computed of another remote aggregate.
        """
        expression = self(*arguments)
        function = expression.function.user_defined_function(len(arguments))
        # Spark has no groups without columns: a constant one provides the number of rows.
        columns = [column_of(argument) for argument in arguments] or [F.lit("")]
        return function(*columns)

    def user_defined_function(self, arguments: int | None) -> SparkFunction:
        """A grouped-aggregate Arrow UDF of Spark for calls with this number of arguments; None if only Spark knows it.

        Raises InvalidOption or PlanError.
        """
        call = self.plan(arguments)
        return new_spark_aggregate(partial(evaluate_group, call), self.spec.name, spark_type(result_type(call)))

    def plan(self, arguments: int | None, applied: tuple[AppliedField, ...] = ()) -> AggregateCall:
        """A call with the options of call and session. Raises InvalidOption or PlanError."""
        options, policy = call_options(self.spec, self.options, self.spark)
        return AggregateCall(self.spec, arguments, options, uuid.uuid4().hex, self.config, policy, applied)

    __doc__ = FunctionDoc(__doc__)


@dataclasses.dataclass(frozen=True, eq=False)
class AggregateExpression(ColumnValue):
    """A call of a remote aggregate. Pass it to `agg`, alone or in an expression, beside Spark's own aggregates."""

    function: RemoteAggregate
    arguments: tuple[object, ...]
    name: str | None = None
    condition: Column | None = None
    is_distinct: bool = False

    def _session(self) -> SparkSession:
        return self.function.spark

    def instead(self) -> str:
        """Who the call is, and what to do where Spark cannot evaluate it."""
        return (
            f"function {self.function.spec.key} is a remote aggregate, which Spark cannot evaluate, alone or in an "
            "expression: write it in remote.group_by(df, ...).agg(...), or remote.sql in place of spark.sql; "
            "df.groupBy(...).agg(...) takes the function's column(...)"
        )

    def given_name(self) -> str | None:
        """The alias of the call; None if it has none."""
        return self.name

    def alias(self, name: str) -> "AggregateExpression":
        """Return the call with this name for its column."""
        return self._with(name=name)

    def filter(self, condition: Column | str) -> "AggregateExpression":
        """Return the aggregate over the rows for which the condition is true, like FILTER (WHERE ...) in SQL.

        Other aggregates of the query still use all rows. A string is the name of a boolean column. If `filter` is
        called again, both conditions must be true.
        """
        both = column_of(condition)
        if self.condition is not None:
            both = self.condition & both
        return self._with(condition=both)

    def distinct(self) -> "AggregateExpression":
        """Return the aggregate over the distinct combinations of its arguments, which must fit in memory per key."""
        return self._with(is_distinct=True)

    def over(self, window: "WindowSpec") -> "OverExpression":
        """Return the aggregate over a window of each row, for `remote.with_columns` and `remote.select`.

        Make `window` with `spark_client.Window`, whose methods have the names of Spark's own. Raises PlanError for
        a window of another class, for `distinct`, and for a frame that does not fit the order.
        """
        if not isinstance(window, WindowSpec):
            raise PlanError(
                f"call of {self.spec.key}: over takes a window of spark_client.Window, not {type(window).__name__}: "
                "Spark's own does not expose its contents"
            )
        if self.is_distinct:
            raise PlanError(f"call of {self.spec.key}: DISTINCT over a window is not supported, as in Spark")
        if window.frame.has_offsets and len(window.order) != 1:
            raise PlanError(
                f"call of {self.spec.key}: a RANGE frame with offsets needs one column to order by, "
                f"found {len(window.order)}"
            )
        return OverExpression(self, window)

    @property
    def spec(self) -> FunctionSpec:
        """The description of the function."""
        return self.function.spec

    def own_text(self, frame: DataFrame) -> str:
        """The name of the column without an alias."""
        shown = [
            argument if isinstance(argument, str) else frame.select(column_of(argument)).columns[0]
            for argument in self.arguments
        ]
        distinct = "DISTINCT " if self.is_distinct else ""
        return f"{self.spec.name}({distinct}{', '.join(shown)})"

    def columns(self, only: str | None = None) -> list[str | Column]:
        """The arguments as columns, or names of columns.

        `only` is the name of a boolean column. In rows in which it is not true, arguments that are not just the name of
        a column are null and are not computed.
        """
        columns = [argument if isinstance(argument, str) else column_of(argument) for argument in self.arguments]
        if only is None:
            return columns
        return [column if isinstance(column, str) else F.when(F.col(only), column) for column in columns]

    def condition_column(self) -> Column | None:
        """The condition of `filter` with false instead of null; None for all rows."""
        return None if self.condition is None else F.coalesce(self.condition, F.lit(False))

    def _with(self, **changed: Any) -> "AggregateExpression":
        # dataclasses.replace would make an object of `__class__`.
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return AggregateExpression(**{**own, **changed})

    def plan(self, applied: tuple[AppliedField, ...]) -> AggregateCall:
        """The call with the options of call and session. Raises InvalidOption or PlanError."""
        return self.function.plan(len(self.arguments), applied)

    @property
    def asked_plan(self) -> AggregatePlan:
        """The option `aggregate-plan` of call and session. Raises InvalidOption."""
        return aggregate_plan_of(self.spec, self.function.options, self.function.spark)


@dataclasses.dataclass(frozen=True, eq=False)
class OverExpression(ColumnValue):
    """An aggregate over a window of each row, for `remote.with_columns` and `remote.select`, also in an expression."""

    expression: AggregateExpression
    window: WindowSpec

    def _session(self) -> SparkSession:
        return self.expression.function.spark

    def instead(self) -> str:
        """Who the call is, and what to do where Spark cannot evaluate it."""
        return (
            f"function {self.expression.spec.key} is a remote aggregate, which Spark cannot evaluate over a window, "
            "alone or in an expression: use remote.with_columns(df, {name: ...}) in place of df.withColumn, or "
            "remote.select in place of df.select"
        )

    def own_text(self, frame: DataFrame) -> str:
        """The name of the column without an alias."""
        return self.expression.own_text(frame)

    def given_name(self) -> str | None:
        """The alias of the call; None if it has none."""
        return self.expression.name

    def alias(self, name: str) -> "OverExpression":
        """Return the expression with this name for its column."""
        return OverExpression(self.expression.alias(name), self.window)
