"""RemoteFunction: a scalar function of a server as a callable on columns."""

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Protocol, Unpack

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionSpec
from remote_udf.option_types import ScalarCallOptions
from remote_udf.options import OnError, OutputMode
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.notebooks import function_html
from spark_client.base.options import call_options, session_options
from spark_client.base.types import spark_type
from spark_client.executor.scalar.column import evaluate_scalar, result_type
from spark_client.functions.column_calls import ColumnCall, with_call
from spark_client.functions.column_values import is_value

__all__ = ["FunctionDoc", "RemoteFunction", "SparkFunction", "column_of", "plan_call"]


class SparkFunction(Protocol):
    """The result of `pyspark.sql.functions.arrow_udf`, classic or Connect."""

    def __call__(self, *args: Column | str) -> Column: ...

    def asNondeterministic(self) -> "SparkFunction": ...  # noqa: N802 - Spark's name


class _HasSpec(Protocol):
    @property
    def spec(self) -> FunctionSpec: ...


class FunctionDoc:
    """`__doc__` for a class whose instances are functions: on an instance, it is the function's documentation."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, instance: "_HasSpec | None", owner: type) -> str | None:
        return self._text if instance is None else f"{instance.spec.signature}\n\n{instance.spec.description}"


@dataclasses.dataclass(frozen=True)
class RemoteFunction:
    """Call it with columns or column names, like one of Spark's own functions: `geocode("address")`.

    The call is a column, which can be used in select, where, join conditions and other calls, and whose fields can
    be accessed. Results keep the order of the rows. For unordered output, concurrent calls of one row or dead letters,
    pass the call to `RemoteSession.with_columns` or `select`.
    """

    spec: FunctionSpec
    spark: SparkSession = dataclasses.field(repr=False)
    config: ClientConfig = dataclasses.field(repr=False)
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    _planned: dict[object, SparkFunction] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """The Spark functions made so far. Spark merges equal calls only if they are calls of one object."""

    def with_options(self, **options: Unpack[ScalarCallOptions]) -> "RemoteFunction":
        """Return the function with call options, such as `timeout="2 s"`, which take precedence over all others.

        If an option is unknown or malformed, InvalidOption is raised when the function is called.
        """
        return dataclasses.replace(self, options={**self.options, **options})

    def __call__(self, *arguments: object, **named: object) -> Column:
        """Return the column of the function's values.

        Types are checked when Spark runs the query, before the first row is sent. Integers, floats and decimals are
        widened; all other types must match.

        Args:
            *arguments: A Column, the name of a column, or any other Python value, which is a literal.
            **named: The same, by the names of the function's parameters.

        Raises:
            PlanError: The number or the names of the arguments are wrong.
        """
        positional = self._positional(arguments, named)
        session = session_options(self.spark, self.spec.kind, self.spec.name)
        # A scalar function in Spark must keep the order of rows, even if options allow another order.
        options = {**self.options, "output_mode": OutputMode.ORDERED.value}
        columns = [column_of(argument) for argument in positional]
        function = self.user_defined_function(len(positional), options, session)
        # Spark has no scalar Arrow function without arguments: a constant column provides the number of rows. Spark
        # writes texts without quotes in the names of columns, so this one is named `now()`.
        column = function(*(columns or [F.lit("")]))
        return with_call(column, ColumnCall(self.spec, tuple(positional), self.options))

    def __repr__(self) -> str:
        return f"<remote function {self.spec.signature}, version {self.spec.version}, of {self.config.target}>"

    def _repr_html_(self) -> str:
        return function_html(self.spec, self.config, self.options)

    __doc__ = FunctionDoc(__doc__)

    def user_defined_function(
        self, arguments: int | None, options: Mapping[str, object], session: Mapping[str, str]
    ) -> SparkFunction:
        """A Spark scalar Arrow-iterator UDF for calls with these options. Equal calls get the same object."""
        call = plan_call(self.spec, self.config, arguments, options, session)
        key = (self.spec.key, arguments, tuple(sorted(call.options.items())), call.policy)
        if key not in self._planned:
            self._planned[key] = self._new_user_defined_function(call)
        return self._planned[key]

    def _new_user_defined_function(self, call: ScalarCall) -> SparkFunction:
        if call.policy.on_error is OnError.DEAD_LETTER:
            raise PlanError(
                f"call of {self.spec.key}: a dead letter holds whole rows; use with_columns or select of the "
                "remote session"
            )

        def evaluate(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            return evaluate_scalar(call, batches)

        evaluate.__name__ = evaluate.__qualname__ = self.spec.name
        # Spark uses the annotations of `evaluate`, which its overloads do not have.
        function = F.arrow_udf(evaluate, spark_type(result_type(call)))  # type: ignore[call-overload]
        return function if self.spec.deterministic else function.asNondeterministic()

    def _positional(self, arguments: tuple[object, ...], named: Mapping[str, object]) -> list[object]:
        positional = list(arguments)
        names = [parameter.name for parameter in self.spec.parameters]
        rest = dict(named)
        for name in names[len(positional) :]:
            if name not in rest:
                break
            positional.append(rest.pop(name))
        if rest:
            unknown = ", ".join(rest)
            raise PlanError(
                f"call of {self.spec.key}: {unknown} cannot be passed by name here; it is {self.spec.signature}, "
                "and options go to with_options"
            )
        try:
            self.spec.check_count(len(positional))
        except StreamError as error:
            raise PlanError(error.message) from None
        return positional


def plan_call(
    spec: FunctionSpec,
    config: ClientConfig,
    arguments: int | None,
    options: Mapping[str, object],
    session: Mapping[str, str],
) -> ScalarCall:
    """Return a call with the options of call and session, and with a new `operation_id`."""
    server_options, policy = call_options(options, session, spec.key)
    return ScalarCall(
        spec=spec,
        arguments=arguments,
        options=server_options,
        operation_id=uuid.uuid4().hex,
        config=config,
        policy=policy,
    )


def column_of(argument: object) -> Column:
    """Return the column of an argument: a Column itself, the column that a string names, or a literal.

    Raises PlanError for a value that is no literal of Spark.
    """
    if is_value(argument):
        return argument.as_column()
    if isinstance(argument, Column):
        return argument
    if isinstance(argument, str):
        return F.col(argument)
    try:
        return F.lit(argument)
    except (AttributeError, TypeError, ValueError):  # Spark raises the first one for what it cannot send to the JVM
        what = "a Python function" if callable(argument) else f"{argument!r} of type {type(argument).__name__}"
        raise PlanError(f"expected a column, the name of a column or a literal as an argument, got {what}") from None
