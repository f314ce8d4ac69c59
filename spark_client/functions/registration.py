"""Makes remote functions known to Spark SQL."""

import dataclasses

from pyspark.sql import SparkSession

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, quoted
from spark_client.base.options import session_options
from spark_client.functions.aggregate import RemoteAggregate
from spark_client.functions.scalar import RemoteFunction, SparkFunction

__all__ = ["EMPTY", "ONCE", "register_empty", "register_function", "register_once"]

ONCE = hidden("once_")
"""What begins the name of a function that Spark takes for nondeterministic, so that it makes no call twice."""

EMPTY = hidden("empty_")
"""What begins the name of a call without arguments, of a function that has parameters."""


def register_function(function: RemoteFunction | RemoteAggregate, name: str) -> str:
    """Registers a temporary function of this name, which it returns.

    Spark passes SQL's arguments by position only. A function without parameters becomes a SQL function
    around one that takes a column for its length, because Spark has no scalar Arrow function without
    arguments. Raises PlanError for an aggregate, and for a policy that needs whole rows.
    """
    if not isinstance(function, RemoteFunction):
        raise PlanError(f"function {function.spec.key} is an aggregate, which Spark SQL cannot call: use `remote.sql`")
    spec, spark = function.spec, function.spark
    session = session_options(spark, spec.kind, spec.name)
    options = {**function.options, "output_mode": "ordered"}
    udf = function.user_defined_function(None if spec.parameters else 0, options, session)
    if spec.parameters:
        spark.udf.register(name, udf)
        return name
    return _register_without_arguments(spark, name, udf)


def register_empty(function: RemoteFunction, name: str) -> str | None:
    """Registers the call without arguments of a function with parameters, and returns what it is called then.

    None for a function that must be passed arguments, or takes none.
    """
    spec = function.spec
    if not spec.parameters or spec.required_parameters:
        return None
    session = session_options(function.spark, spec.kind, spec.name)
    udf = function.user_defined_function(0, {**function.options, "output_mode": "ordered"}, session)
    return _register_without_arguments(function.spark, f"{EMPTY}{name}", udf)


def _register_without_arguments(spark: SparkSession, name: str, udf: SparkFunction) -> str:
    carrier = hidden(name.replace("@", "_").replace(".", "_"))
    registered = spark.udf.register(carrier, udf)
    result = registered.returnType.simpleString()
    made = f"CREATE OR REPLACE TEMPORARY FUNCTION {quoted(name)}() RETURNS {result} RETURN {quoted(carrier)}(true)"
    spark.sql(made).collect()
    return name


def register_once(function: RemoteFunction, name: str) -> str | None:
    """Registers a deterministic function as if it were not one, and returns its name then; None for any other.

    Spark neither copies such a call nor moves a condition below it.
    """
    spec = function.spec
    if not spec.deterministic or not spec.parameters:
        return None
    session = session_options(function.spark, spec.kind, spec.name)
    # Another object than that of the function's other calls, which is marked as a whole.
    own = dataclasses.replace(function, _planned={})
    udf = own.user_defined_function(None, {**function.options, "output_mode": "ordered"}, session)
    function.spark.udf.register(f"{ONCE}{name}", udf.asNondeterministic())
    return f"{ONCE}{name}"
