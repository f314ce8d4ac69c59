"""Registration of remote functions in Spark SQL."""

import dataclasses

from pyspark.sql import SparkSession

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, quoted
from spark_client.base.options import session_options
from spark_client.functions.aggregate import RemoteAggregate
from spark_client.functions.scalar import RemoteFunction, SparkFunction

__all__ = [
    "EMPTY", "LATERAL", "ONCE", "carrier_of", "register_empty", "register_function", "register_lateral",
    "register_once",
]  # fmt: skip

ONCE = hidden("once_")
"""The prefix of functions that are registered as nondeterministic, so that Spark does not duplicate their calls."""

EMPTY = hidden("empty_")
"""The prefix of registered calls without arguments of functions that have parameters."""

LATERAL = hidden("lateral_")
"""The prefix of nondeterministic functions that are registered as deterministic, for lateral joins."""


def register_function(function: RemoteFunction | RemoteAggregate, name: str) -> str:
    """Register a temporary function with this name, and return the name.

    Spark passes SQL's arguments by position only. Spark has no scalar Arrow functions without arguments, so a
    function without parameters becomes a SQL function that calls another function with a constant.
    Raises PlanError for an aggregate, and for an error policy that needs whole rows.
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
    """Register the call without arguments of a function with parameters, and return its name.

    Returns None for a function that requires arguments or has no parameters.
    """
    spec = function.spec
    if not spec.parameters or spec.required_parameters:
        return None
    session = session_options(function.spark, spec.kind, spec.name)
    udf = function.user_defined_function(0, {**function.options, "output_mode": "ordered"}, session)
    return _register_without_arguments(function.spark, f"{EMPTY}{name}", udf)


def carrier_of(name: str) -> str:
    """The function that a function registered without parameters calls with a constant."""
    return hidden(name.replace("@", "_").replace(".", "_"))


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
    session = session_options(function.spark, spec.kind, spec.name)
    # asNondeterministic changes the object, so it must not be the object of the function's other calls.
    own = dataclasses.replace(function, _planned={})
    udf = own.user_defined_function(None, {**function.options, "output_mode": "ordered"}, session)
    function.spark.udf.register(f"{ONCE}{name}", udf.asNondeterministic())
    return f"{ONCE}{name}"


def register_lateral(function: RemoteFunction, name: str) -> str:
    """Register a nondeterministic function as deterministic, and return its name.

    Spark refuses nondeterministic functions in lateral joins. There a call is alone in an operator over the rows on the
    left, so Spark neither merges it with another call nor repeats it.
    """
    same = dataclasses.replace(function, spec=dataclasses.replace(function.spec, deterministic=True), _planned={})
    return register_function(same, f"{LATERAL}{name}")
