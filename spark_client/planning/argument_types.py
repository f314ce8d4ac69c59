"""Checks the columns with which a function is called against its parameters."""

from collections.abc import Sequence

from pyspark.sql.types import StructField

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.types import arrow_type

__all__ = ["require_arguments"]


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
