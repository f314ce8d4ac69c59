"""RemoteFunction: a scalar function of a server as a callable on columns."""

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, Self, Unpack

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from remote_udf.functions import FunctionSpec
from remote_udf.option_types import CallOptions, ScalarCallOptions
from remote_udf.options import OnError, OutputMode
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.notebooks import function_html
from spark_client.base.options import call_options
from spark_client.base.types import spark_type
from spark_client.executor.scalar.column import evaluate_scalar, result_type
from spark_client.functions.arguments import column_of, require_count
from spark_client.functions.column_calls import ColumnCall, with_call

__all__ = [
    "AnyFunction", "FunctionDoc", "RemoteFunction", "ShownFunction", "SparkFunction", "new_spark_aggregate",
    "new_spark_function", "plan_call", "require_no_dead_letter", "spark_function",
]  # fmt: skip


class SparkFunction(Protocol):
    """The result of `pyspark.sql.functions.arrow_udf`, classic or Connect."""

    def __call__(self, *args: Column | str) -> Column: ...

    def asNondeterministic(self) -> "SparkFunction": ...  # noqa: N802 - Spark's name


class AnyFunction(Protocol):
    """A RemoteFunction, whose calls are Columns, or a RemoteAggregate, whose calls are AggregateExpressions."""

    @property
    def spec(self) -> FunctionSpec:
        """The name, the version, the kind and the types of the function."""
        ...

    def with_options(self, **options: Unpack[CallOptions]) -> "AnyFunction":
        """Return the function with call options."""
        ...

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Return a call with columns, names of columns or literals as arguments."""
        ...


class FunctionDoc:
    """`__doc__` for a class whose instances are functions: on an instance, it is the function's documentation."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, instance: AnyFunction | None, owner: type) -> str | None:
        return self._text if instance is None else f"{instance.spec.signature}\n\n{instance.spec.description}"


class ShownFunction:
    """How a function is shown in Python and in notebooks."""

    spec: FunctionSpec
    config: ClientConfig
    options: Mapping[str, object]
    _look_up: Callable[[], FunctionSpec] | None

    def __getstate__(self) -> dict[str, object]:
        """What is sent to other processes: the session, which looks functions up again, stays here."""
        return {**vars(self), "_look_up": None}

    def renewed(self) -> Self:
        """The function as it is now, if its plugin was edited. Raises PlanError if it is of another kind now."""
        spec = self.spec if self._look_up is None else self._look_up()
        if spec is self.spec:
            return self
        if spec.kind is not self.spec.kind:
            raise PlanError(f"function {spec.key} was edited and is of kind {spec.kind} now: look it up again")
        renewed: Self = dataclasses.replace(self, spec=spec)  # type: ignore[type-var]  # the classes are dataclasses
        return renewed

    def __repr__(self) -> str:
        return f"<remote function {self.spec.signature}, version {self.spec.version}, of {self.config.target}>"

    def _repr_html_(self) -> str:
        return function_html(self.spec, self.config, self.options)


@dataclasses.dataclass(frozen=True, repr=False)
class RemoteFunction(ShownFunction):
    """Call it with columns or column names, like one of Spark's own functions: `geocode("address")`.

    The call is a column, which can be used in select, where, join conditions and other calls, and whose fields can
    be accessed. Results keep the order of the rows. For unordered output, concurrent calls of one row or dead letters,
    pass the call to `RemoteSession.with_columns` or `select`.
    """

    spec: FunctionSpec
    spark: SparkSession
    config: ClientConfig
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    _planned: dict[object, SparkFunction] = dataclasses.field(default_factory=dict, compare=False)
    """The Spark functions made so far. Spark merges equal calls only if they are calls of one object."""
    _look_up: Callable[[], FunctionSpec] | None = dataclasses.field(default=None, compare=False)

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
        if (now := self.renewed()) is not self:
            return now(*arguments, **named)
        positional = self._positional(arguments, named)
        # Spark makes a column of a name in fewer requests to the JVM than `F.col`.
        columns = [each if isinstance(each, str) else column_of(each) for each in positional]
        function = self.user_defined_function(len(positional))
        # Spark has no scalar Arrow function without arguments: a constant column provides the number of rows. Spark
        # writes texts without quotes in the names of columns, so this one is named `now()`.
        column = function(*(columns or [F.lit("")]))
        return with_call(column, ColumnCall(self.spec, tuple(positional), self.options))

    __doc__ = FunctionDoc(__doc__)

    def plan(self, arguments: int | None) -> ScalarCall:
        """A call by a function of Spark. It must keep the order of rows, even if options allow another order."""
        options = {**self.options, "output_mode": OutputMode.ORDERED.value}
        return plan_call(self.spec, self.config, arguments, options, self.spark)

    def user_defined_function(self, arguments: int | None) -> SparkFunction:
        """A Spark scalar Arrow-iterator UDF for such calls. Equal calls get the same object."""
        call = self.plan(arguments)
        key = (self.spec.key, self.spec.fingerprint, arguments, tuple(sorted(call.options.items())), call.policy)
        if key not in self._planned:
            self._planned[key] = spark_function(call)
        return self._planned[key]

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
        require_count(self.spec, len(positional))
        return positional


def plan_call(
    spec: FunctionSpec, config: ClientConfig, arguments: int | None, options: Mapping[str, object],
    spark: SparkSession | None,
) -> ScalarCall:  # fmt: skip
    """Return a call with these options and those of the session, if one is given, and with a new `operation_id`."""
    server_options, policy = call_options(spec, options, spark)
    return ScalarCall(spec, arguments, server_options, uuid.uuid4().hex, config, policy)


def spark_function(call: ScalarCall) -> SparkFunction:
    """The function of Spark that makes a call. Raises PlanError for an error policy that needs whole rows."""
    require_no_dead_letter(call)
    result = spark_type(result_type(call))
    return new_spark_function(
        partial(evaluate_scalar, call), call.spec.name, result, deterministic=call.spec.deterministic
    )


def require_no_dead_letter(call: ScalarCall) -> None:
    """Raises PlanError if the errors of the call are to be written, because a column has no whole rows."""
    if call.policy.on_error is OnError.DEAD_LETTER:
        raise PlanError(
            f"call of {call.spec.key}: a dead letter holds whole rows; use with_columns or select of the remote session"
        )


def new_spark_function(
    run: Callable[[Iterator[pa.Array | tuple[pa.Array, ...]]], Iterator[pa.Array]], name: str, result: DataType, *,
    deterministic: bool,
) -> SparkFunction:  # fmt: skip
    """A function of Spark that `run` evaluates, under this name in Spark's plan."""

    def evaluate(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return run(batches)

    function = _arrow_udf(evaluate, name, result)
    return function if deterministic else function.asNondeterministic()


def new_spark_aggregate(run: Callable[..., object], name: str, result: DataType) -> SparkFunction:
    """An aggregate of Spark, under this name in its plan. `run` gets arrays with the rows of a group."""

    def evaluate(*arrays: pa.Array) -> object:
        return run(*arrays)

    return _arrow_udf(evaluate, name, result)


def _arrow_udf(evaluate: Callable[..., object], name: str, result: DataType) -> SparkFunction:
    evaluate.__name__ = evaluate.__qualname__ = name
    # Spark uses the annotations of `evaluate`, which its overloads do not have.
    function: SparkFunction = F.arrow_udf(evaluate, result)  # type: ignore[call-overload]
    return function
