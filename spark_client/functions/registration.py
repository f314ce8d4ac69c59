"""Registration of remote functions in Spark SQL, also of several calls of a row as one function of Spark."""

import dataclasses
import itertools
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.result_columns import depends_on_call, numbered
from remote_udf.table_arguments import ArgumentTrait
from spark_client.base.calls import ErrorPolicy, ProcessTableCall, ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, identifiers_of, quoted
from spark_client.base.options import call_options
from spark_client.base.types import spark_type
from spark_client.executor.engine.planned_calls import PlannedCall
from spark_client.executor.process.processing import ArrowTableFunction, handler_of
from spark_client.executor.scalar.column import FusedPlan, evaluate_fused
from spark_client.functions.aggregate import RemoteAggregate
from spark_client.functions.registered_names import Form, carrier_of, registered_name
from spark_client.functions.scalar import RemoteFunction, SparkFunction, new_spark_function

__all__ = [
    "CallOfColumns", "FusedFunctions", "register_empty", "register_function", "register_lateral", "register_once",
    "register_table_function", "why_unregistered",
]  # fmt: skip

_NUMBERS = itertools.count()
_NAMES_LENGTH = 60


def register_function(function: RemoteFunction | RemoteAggregate, name: str) -> str:
    """Register a temporary function with this name, and return the name.

    Spark passes SQL's arguments by position only. Spark has no scalar Arrow functions without arguments, so a
    function without parameters becomes a SQL function that calls another function with a constant.
    Raises PlanError for a function that Spark SQL cannot call, and for an error policy that needs whole rows.
    """
    spec, spark = function.spec, function.spark
    _require_registrable(spec)
    udf = function.user_defined_function(None if spec.parameters else 0)
    if spec.parameters:
        spark.udf.register(name, udf)
        return name
    return _register_without_arguments(spark, name, udf)


def register_table_function(
    spark: SparkSession, config: ClientConfig, spec: FunctionSpec, options: Mapping[str, object], name: str
) -> str:
    """Register a process table function as an Arrow UDTF with this name, and return the name.

    Raises PlanError for a function that Spark SQL cannot call, and InvalidOption.
    """
    _require_registrable(spec)
    chosen, policy = call_options(spec, options, spark)
    call = ProcessTableCall(spec, len(spec.parameters), chosen, uuid.uuid4().hex, config, policy)
    fields = numbered(spec.result, identifiers_of(spark).key)
    schema = pa.schema([field.with_nullable(True) for field in fields])
    result = StructType([StructField(field.name, spark_type(field.type)) for field in schema])
    function = F.arrow_udtf(handler_of(ArrowTableFunction(call, schema)), returnType=result)
    # Without a class, which is optional, the result would be a decorator.
    spark.udtf.register(name, function)  # type: ignore[arg-type]
    return name


def _require_registrable(spec: FunctionSpec) -> None:
    if (why := why_unregistered(spec)) is not None:
        raise PlanError(f"function {spec.key} cannot be registered: {why}")


def why_unregistered(spec: FunctionSpec) -> str | None:
    """Why Spark SQL cannot call a function, and what to use; None if it can."""
    if spec.kind is FunctionKind.AGGREGATE and not spec.parameters:
        return "Spark passes no rows to an aggregate without arguments; use remote.sql"
    if spec.kind is FunctionKind.PROCESS and (why := _why_no_table_function(spec)) is not None:
        return f"{why}; use remote.process or remote.sql"
    return None


def _why_no_table_function(spec: FunctionSpec) -> str | None:
    """Why Spark's table functions cannot be this process table function; None if they can."""
    assert spec.process is not None
    tables = spec.process.tables
    if len(tables) != 1:
        return f"it takes {len(tables) or 'no'} tables, and a table function of Spark takes one"
    traits = {*tables[0].traits, *(each.trait for each in tables[0].conditional)}
    for trait in (ArgumentTrait.PASS_COLUMNS_THROUGH, ArgumentTrait.REQUIRE_ON_TIME):
        if trait in traits:
            return f"its table {tables[0].name!r} has the trait {trait}, and Spark tells no column of the table"
    if tables[0].conditional or tables[0].is_broadcast:
        return f"its table {tables[0].name!r} is not always one with row or set semantics"
    if depends_on_call(spec.result) or not spec.process.changelog_mode.is_insert_only or not spec.result.num_fields:
        return "its result is a changelog, or its columns depend on the call, or are those of the key only"
    return None


def register_empty(function: RemoteFunction, name: str) -> str | None:
    """Register the call without arguments of a function with parameters, and return its name.

    Returns None for a function that requires arguments or has no parameters.
    """
    spec = function.spec
    if not spec.parameters or spec.required_parameters:
        return None
    known = registered_name(name, Form.EMPTY)
    return _register_without_arguments(function.spark, known, function.user_defined_function(0))


def _register_without_arguments(spark: SparkSession, name: str, udf: SparkFunction) -> str:
    carrier = carrier_of(name)
    registered = spark.udf.register(carrier, udf)
    result = registered.returnType.simpleString()
    made = f"CREATE OR REPLACE TEMPORARY FUNCTION {quoted(name)}() RETURNS {result} RETURN {quoted(carrier)}(true)"
    spark.sql(made).collect()
    return name


def register_once(function: RemoteFunction, name: str) -> str | None:
    """Register a deterministic function as nondeterministic, and return its name; None for any other function.

    Spark neither duplicates such a call nor moves a later condition before it.
    """
    spec = function.spec
    if not spec.deterministic or not spec.parameters:
        return None
    # asNondeterministic changes the object, so it must not be the object of the function's other calls.
    own = dataclasses.replace(function, _planned={})
    known = registered_name(name, Form.ONCE)
    function.spark.udf.register(known, own.user_defined_function(None).asNondeterministic())
    return known


def register_lateral(function: RemoteFunction, name: str) -> str:
    """Register a nondeterministic function as deterministic, and return its name.

    Spark refuses nondeterministic functions in lateral joins. There a call is alone in an operator over the rows on the
    left, so Spark neither merges it with another call nor repeats it.
    """
    same = dataclasses.replace(function, spec=dataclasses.replace(function.spec, deterministic=True), _planned={})
    return register_function(same, registered_name(name, Form.LATERAL))


@dataclasses.dataclass(frozen=True)
class CallOfColumns:
    """A call among fused ones. `columns` are its arguments as in PlannedCall."""

    function: RemoteFunction
    columns: tuple[int, ...]


class FusedFunctions:
    """The functions of one session that were registered with Spark for fused calls. Equal calls share a function.

    To Spark, each call of a function over an iterator of Arrow batches is an operator of its own, with its own
    hand-over of the rows between JVM and Python. Fused calls are one operator, whose value is a struct of their values.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self.templates: dict[str, list[str]] = {}
        """By registered name, the calls that are made, such as "f({0}, g[{1}])" of the first two columns.

        A call among the arguments of another has brackets, because it is listed itself.
        """

    def register(self, calls: Sequence[CallOfColumns], output: Sequence[int], width: int) -> str:
        """Register the calls over `width` columns as a temporary function, and return its name.

        Args:
            calls: The calls, each after those among its arguments.
            output: The positions of the calls whose values the function returns, in the fields `field_of(0)` and so on.
            width: The number of columns.

        """
        planned = [each.function.plan(len(each.columns)) for each in calls]
        parts = [(_identity(call), each.columns) for call, each in zip(planned, calls, strict=True)]
        key = (tuple(parts), tuple(output))
        if key not in self._names:
            fused = FusedPlan(
                tuple(
                    PlannedCall(call, each.columns, names=tuple(f"a{place}" for place in range(len(each.columns))))
                    for call, each in zip(planned, calls, strict=True)
                ),
                tuple(output),
            )
            self._names[key] = self._register(calls[0].function, fused, width)
        return self._names[key]

    def _register(self, function: RemoteFunction, fused: FusedPlan, width: int) -> str:
        names = [planned.call.spec.name for planned in fused.calls]
        readable = re.sub(r"\W", "_", "_".join(names))[:_NAMES_LENGTH]
        name = hidden(f"fused_{next(_NUMBERS)}_{readable}")
        run, result = partial(evaluate_fused, fused), spark_type(fused.type)
        function.spark.udf.register(name, new_spark_function(run, "evaluate", result, deterministic=True))
        shown = [f"{{{column}}}" for column in range(width)]
        self.templates[name] = []
        for planned in fused.calls:
            arguments = ", ".join(shown[column] for column in planned.columns)
            shown.append(f"{planned.call.spec.name}[{arguments}]")
            self.templates[name].append(f"{planned.call.spec.name}({arguments})")
        return name


def _identity(call: ScalarCall) -> tuple[str, str, tuple[tuple[str, str], ...], ErrorPolicy]:
    return call.spec.key, call.spec.fingerprint, tuple(sorted(call.options.items())), call.policy
