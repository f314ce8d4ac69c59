"""The arguments of calls: columns from what users pass, and checks of their number and their types."""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.types import arrow_type
from spark_client.functions.column_calls import is_value

__all__ = ["column_of", "require_arguments", "require_count"]


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


def require_count(spec: FunctionSpec, count: int) -> None:
    """Raises PlanError if the function does not take this number of arguments."""
    try:
        spec.check_count(count)
    except StreamError as error:
        raise PlanError(error.message) from None


def require_arguments(spec: FunctionSpec, columns: Sequence[StructField]) -> None:
    """Raises PlanError if a column does not fit its parameter, UnsupportedType if its type cannot be sent."""
    types = [
        arrow_type(column.dataType, f"call of {spec.key}, argument {spec.parameter(position).name!r}")
        for position, column in enumerate(columns)
    ]
    try:
        spec.check_arguments(types)
    except StreamError as error:
        raise PlanError(error.message) from None
