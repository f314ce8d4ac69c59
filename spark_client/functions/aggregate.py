"""RemoteAggregate: an aggregate function of a server as a callable on columns."""

import dataclasses
import functools
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn, Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.option_types import AggregateCallOptions
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.notebooks import function_html
from spark_client.base.options import call_options, session_options
from spark_client.functions.scalar import FunctionDoc, column_of
from spark_client.functions.window import WindowSpec

__all__ = ["AggregateExpression", "OverExpression", "RemoteAggregate"]


@dataclasses.dataclass(frozen=True)
class RemoteAggregate:
    """Call it with columns or column names inside `remote.group_by(...).agg(...)`: `my_avg("price")`."""

    spec: FunctionSpec
    spark: SparkSession = dataclasses.field(repr=False)
    config: ClientConfig = dataclasses.field(repr=False)
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def with_options(self, **options: Unpack[AggregateCallOptions]) -> "RemoteAggregate":
        """Return the function with call options, such as `size=10_000`, which take precedence over all others."""
        return dataclasses.replace(self, options={**self.options, **options})

    def __call__(self, *arguments: object) -> "AggregateExpression":
        """Return the aggregate over these arguments: Columns, names of columns, or literals of any other type.

        Raises PlanError if the number of arguments is wrong.
        """
        try:
            self.spec.check_count(len(arguments))
        except StreamError as error:
            raise PlanError(error.message) from None
        return AggregateExpression(self, arguments)

    def __repr__(self) -> str:
        return f"<remote function {self.spec.signature}, version {self.spec.version}, of {self.config.target}>"

    def _repr_html_(self) -> str:
        return function_html(self.spec, self.config, self.options)

    __doc__ = FunctionDoc(__doc__)


class PassedToSpark(PlanError, AttributeError):
    """A call of a remote aggregate was passed to a method of Spark."""


class _OnlyRemote:
    """A call that only methods of the remote session can evaluate.

    For Spark it is a Column: so Spark accepts it, asks it for what only a Column has, and gets an error that says what
    to use. So does an expression around the call.
    """

    @property  # type: ignore[misc] # Python does not require a setter
    def __class__(self) -> type:
        return _column_class(is_classic=isinstance(self._session(), SparkSession))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python asks of any object, such as a copy that has no fields yet
            raise AttributeError(name)
        raise PassedToSpark(self._instead())

    def _in_expression(self, _other: object = None) -> NoReturn:
        raise PassedToSpark(self._instead())

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _in_expression
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __invert__ = __getitem__ = _in_expression
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __rand__ = __or__ = __ror__ = _in_expression

    def _session(self) -> SparkSession:
        raise NotImplementedError

    def _instead(self) -> str:
        raise NotImplementedError


@functools.cache
def _column_class(*, is_classic: bool) -> type:
    """The class of columns in sessions of Spark classic or of Connect."""
    return type(F.lit(True))


@dataclasses.dataclass(frozen=True, eq=False)
class AggregateExpression(_OnlyRemote):
    """A call of a remote aggregate. Pass it to `agg`, together with Spark's own aggregates."""

    function: RemoteAggregate
    arguments: tuple[object, ...]
    name: str | None = None
    condition: Column | None = None
    is_distinct: bool = False

    def _session(self) -> SparkSession:
        return self.function.spark

    def _instead(self) -> str:
        return (
            f"function {self.function.spec.key} is a remote aggregate, which Spark cannot evaluate, alone or in an "
            "expression: call it in remote.group_by(df, ...).agg(...) under a name, alias(name), and compute with that "
            "column in a select after it; or write remote.sql in place of spark.sql"
        )

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
        return _over(self, window)

    @property
    def spec(self) -> FunctionSpec:
        """The description of the function."""
        return self.function.spec

    def column_name(self, frame: DataFrame) -> str:
        """The name of the column: its alias, or a name as Spark makes it, `my_avg(price)`."""
        if self.name is not None:
            return self.name
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
        return AggregateExpression(**{**vars(self), **changed})

    def plan(self, applied: tuple[AppliedField, ...]) -> AggregateCall:
        """The call with the options of call and session. Raises InvalidOption or PlanError."""
        function = self.function
        kind = FunctionKind.AGGREGATE
        session = session_options(function.spark, kind, self.spec.name)
        options, policy = call_options(function.options, session, self.spec.key, kind)
        return AggregateCall(
            spec=self.spec,
            arguments=len(self.arguments),
            options=options,
            operation_id=uuid.uuid4().hex,
            config=function.config,
            policy=policy,
            applied=applied,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class OverExpression(_OnlyRemote):
    """An aggregate over a window of each row. Pass it to `remote.with_columns` or `remote.select`."""

    expression: AggregateExpression
    window: WindowSpec

    def _session(self) -> SparkSession:
        return self.expression.function.spark

    def _instead(self) -> str:
        return (
            f"function {self.expression.spec.key} is a remote aggregate, which Spark cannot evaluate over a window, "
            "alone or in an expression: use remote.with_columns(df, {name: ...}) in place of df.withColumn, or "
            "remote.select in place of df.select, and compute with that column in a select after it"
        )

    def alias(self, name: str) -> "OverExpression":
        """Return the expression with this name for its column."""
        return OverExpression(self.expression.alias(name), self.window)


def _over(expression: AggregateExpression, window: WindowSpec) -> OverExpression:
    if not isinstance(window, WindowSpec):
        raise PlanError(
            f"call of {expression.spec.key}: over takes a window of spark_client.Window, not {type(window).__name__}: "
            "Spark's own does not expose its contents"
        )
    if expression.is_distinct:
        raise PlanError(f"call of {expression.spec.key}: DISTINCT over a window is not supported, as in Spark")
    frame = window.frame
    if frame.has_offsets and len(window.order) != 1:
        raise PlanError(
            f"call of {expression.spec.key}: a RANGE frame with offsets needs one column to order by, "
            f"found {len(window.order)}"
        )
    return OverExpression(expression, window)
