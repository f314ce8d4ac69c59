"""Process table functions as table functions of Spark: `SELECT * FROM f(TABLE(t) PARTITION BY k ORDER BY ts)`."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from remote_udf.argument_traits import ArgumentTrait
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.result_columns import depends_on_call, numbered
from spark_client.base.calls import ProcessTableCall
from spark_client.base.config import ClientConfig
from spark_client.base.identifiers import identifiers_of
from spark_client.base.options import call_options, session_options
from spark_client.base.types import spark_type
from spark_client.executor.process.table_function import ArrowTableFunction, handler_of

__all__ = ["RemoteTableFunction", "why_no_table_function"]


@dataclass(frozen=True)
class RemoteTableFunction:
    """A process table function that Spark can evaluate; `why_no_table_function` is None for its `spec`."""

    spec: FunctionSpec
    spark: SparkSession
    config: ClientConfig
    options: Mapping[str, object]

    def register(self, name: str) -> None:
        """Register the function with Spark as an Arrow UDTF of this name. Raises InvalidOption."""
        spec, kind = self.spec, FunctionKind.PROCESS
        session = session_options(self.spark, kind, spec.name)
        options, policy = call_options(self.options, session, spec.key, kind)
        call = ProcessTableCall(spec, len(spec.parameters), options, uuid.uuid4().hex, self.config, policy)
        fields = numbered(spec.result, identifiers_of(self.spark).key)
        schema = pa.schema([field.with_nullable(True) for field in fields])
        result = StructType([StructField(field.name, spark_type(field.type)) for field in schema])
        function = F.arrow_udtf(handler_of(ArrowTableFunction(call, schema)), returnType=result)
        # Without a class, which is optional, the result would be a decorator.
        self.spark.udtf.register(name, function)  # type: ignore[arg-type]


def why_no_table_function(spec: FunctionSpec) -> str | None:
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
