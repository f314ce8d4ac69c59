"""Joins a frame with the rows that a call returns for each of its rows."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import error_column, hidden, identifiers_of
from spark_client.base.types import spark_type
from spark_client.functions.column_calls import call_of
from spark_client.planning.rows.planner import plan_with_columns

__all__ = ["How", "plan_lateral_join"]

How = Literal["inner", "left"]
_ROWS = hidden("rows")


def plan_lateral_join(
    spark: SparkSession, config: ClientConfig, frame: DataFrame, call: Column, how: How, names: Sequence[str] | None,
    options: Mapping[str, object],
) -> DataFrame:  # fmt: skip
    """Return `frame` with the columns of the rows after its own. Raises as `plan_with_columns`."""
    written = call_of(call)
    if written is None:
        raise PlanError("lateral_join: the call of a remote function is expected, and nothing around it")
    spec = written.spec
    if not pa.types.is_list(spec.result) or not pa.types.is_struct(spec.result.value_type):
        raise PlanError(f"lateral_join: a function that returns rows is expected, not {spec.signature}")
    if how not in ("inner", "left"):
        raise PlanError(f"lateral_join: how is 'inner' or 'left', not {how!r}")
    fields = [field.name for field in spec.result.value_type]
    shown = fields if names is None else list(names)
    if len(shown) != len(fields):
        raise PlanError(f"lateral_join: names has {len(shown)} names, the rows of {spec.key} have {', '.join(fields)}")
    planned = plan_with_columns(spark, config, frame, {_ROWS: call}, options)
    errors = error_column(_ROWS)
    failures = [error_column(spec.name)] if errors in planned.columns else []
    repeated = identifiers_of(spark).repeated([*dict.fromkeys(frame.columns), *failures, *shown])
    if repeated:
        raise PlanError(
            f"lateral_join: there would be two columns {repeated[0]!r}; pass names for the columns of the rows"
        )
    rows = F.col(_ROWS)
    if failures:
        # A failed call has no rows, but its error must not get lost.
        nothing = F.lit(None).cast(spark_type(spec.result.value_type))
        rows = F.when(F.col(errors).isNotNull(), F.array(nothing)).otherwise(rows)
    generator = F.inline_outer(rows) if how == "left" else F.inline(rows)
    joined = planned.select("*", generator.alias(*shown)).drop(_ROWS)
    return joined.withColumnRenamed(errors, failures[0]) if failures else joined
