"""Makes a cascade: calls both functions for a sample, and chooses the threshold."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from spark_client.base.errors import PlanError
from spark_client.base.statistics import CallCost
from spark_client.functions.scalar import RemoteFunction
from spark_client.models.cascade import Cascade
from spark_client.models.thresholds import Judged, chosen_threshold, rows_needed
from spark_client.planning.rows.planner import plan_with_columns

__all__ = ["Agree", "CascadeFields", "calibrated"]

MOST_ROWS = 100_000
"""Rows of a sample at most: the driver holds their confidences, and both functions are called for all of them."""

Agree = Callable[[Column, Column], Column]
"""Whether two values agree: gets those of the cheap and of the dear function."""


@dataclass(frozen=True)
class CascadeFields:
    """The names of the fields of the struct that the cheap function returns."""

    value: str
    confidence: str


def calibrated(
    cheap: object, dear: object, sample: DataFrame, fields: CascadeFields, target: float, confidence_level: float,
    agree: Agree | None, cost_of: Callable[[str], CallCost], known: dict[str, Cascade],
) -> Cascade:  # fmt: skip
    """Implements `RemoteSession.cascade`. `cost_of` returns what the calls of a function have cost so far.

    `known` has the cascades of the session by their names.
    """
    cheap, dear = _scalar(cheap, "cheap"), _scalar(dear, "dear")
    for name, number in {"target": target, "confidence_level": confidence_level}.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 1:
            raise PlanError(f"cascade: {name} is {number!r}; expected a number between 0 and 1, such as 0.95")
    _require_types(cheap, dear, fields)
    _require_rows(sample, target, confidence_level)
    before = {each.spec.key: cost_of(each.spec.key) for each in (cheap, dear)}
    rows = _answers(cheap, dear, sample, fields, agree or (lambda one, other: one.eqNullSafe(other)))
    costs = {name: cost_of(name) for name in before}
    judged = [_judged(row, cheap) for row in rows if row.failure is None]
    least = rows_needed(target, confidence_level)
    if len(judged) < least:
        why = next(row.failure for row in rows if row.failure is not None)
        raise PlanError(
            f"cascade: {dear.spec.key} has answered {len(judged)} of {len(rows)} rows of the sample; the target "
            f"{target:.6g} needs {least}. One of its errors: {why}"
        )
    found = chosen_threshold(judged, target, confidence_level)
    return Cascade(
        cheap, dear, None if found is None else found.value, target, confidence_level, len(judged),
        0 if found is None else found.rows, 0 if found is None else found.agreeing,
        0.0 if found is None else found.least_agreement, len(rows) - len(judged),
        {name: spent for name, cost in costs.items() if (spent := cost.minus(before[name])).rows},
        {name: cost.of_a_row() for name, cost in costs.items() if cost.rows}, fields.value, fields.confidence, known,
    )  # fmt: skip


def _scalar(function: object, name: str) -> RemoteFunction:
    if not isinstance(function, RemoteFunction):
        raise PlanError(
            f"cascade: {name} is {function!r}; expected a scalar function, such as remote.function('classify')"
        )
    return function


def _require_types(cheap: RemoteFunction, dear: RemoteFunction, fields: CascadeFields) -> None:
    result = cheap.spec.result
    names = [field.name for field in result] if pa.types.is_struct(result) else []
    missing = [name for name in (fields.value, fields.confidence) if name not in names]
    if missing:
        raise PlanError(
            f"cascade: {cheap.spec.signature} has no field {' and no field '.join(map(repr, missing))}; the cheap "
            "function returns a struct with a value and a confidence, which `value` and `confidence` name"
        )
    confidence = result.field(fields.confidence).type
    if not (pa.types.is_floating(confidence) or pa.types.is_integer(confidence)):
        raise PlanError(f"cascade: the field {fields.confidence!r} of {cheap.spec.signature} is not a number")
    if dear.spec.result not in (result, result.field(fields.value).type):
        raise PlanError(
            f"cascade: the types of the values differ: {dear.spec.signature} returns neither the type of the field "
            f"{fields.value!r} of {cheap.spec.signature} nor the same struct"
        )


def _require_rows(sample: DataFrame, target: float, confidence_level: float) -> None:
    """Refuse a sample before a function is called for it."""
    if sample.isStreaming:
        raise PlanError("cascade: the sample is a stream; pass a table")
    rows, least = sample.limit(MOST_ROWS + 1).count(), rows_needed(target, confidence_level)
    if rows > MOST_ROWS:
        raise PlanError(
            f"cascade: the sample has more than {MOST_ROWS:,} rows, for each of which both functions would be called; "
            "pass a part of it, such as df.orderBy(F.rand(1)).limit(1000)"
        )
    if rows < least:
        raise PlanError(
            f"cascade: the sample has {rows} rows; the target {target:.6g} at a confidence level of "
            f"{confidence_level:.6g} needs at least {least}, and more if the functions do not agree on all of them"
        )


def _answers(
    cheap: RemoteFunction, dear: RemoteFunction, sample: DataFrame, fields: CascadeFields, agree: Agree
) -> Sequence[Row]:
    names = [f"argument_{place}" for place in range(len(sample.columns))]
    calls = {
        "cheap": cheap.with_options(on_error="column")(*names), "dear": dear.with_options(on_error="column")(*names)
    }  # fmt: skip
    both = plan_with_columns(dear.spark, dear.config, sample.toDF(*names), calls, {})
    value, other = F.col("cheap")[fields.value], F.col("dear")
    if dear.spec.result == cheap.spec.result:
        other = other[fields.value]
    try:
        agreed = agree(value, other)
        judged = both.select(
            F.when(value.isNotNull(), F.col("cheap")[fields.confidence].cast("double")).alias("confidence"),
            agreed.alias("agrees"), F.col("dear_error.message").alias("failure"),
        )  # fmt: skip
        type_ = judged.schema["agrees"].dataType
    except AnalysisException as error:
        why = str(error).partition("\n")[0]
        raise PlanError(
            f"cascade: the values cannot be compared; pass `agree`, which compares two columns: {why}"
        ) from None
    if not isinstance(type_, BooleanType):
        raise PlanError(f"cascade: agree returns a column of the type {type_.simpleString()}; expected boolean")
    return judged.collect()


def _judged(row: Row, cheap: RemoteFunction) -> Judged:
    confidence = row.confidence
    if confidence is not None and not (math.isfinite(confidence) and 0 <= confidence <= 1):
        raise PlanError(
            f"cascade: {cheap.spec.key} has returned the confidence {confidence:g} for a row of the sample; expected a "
            "number from 0 to 1"
        )
    return Judged(confidence, bool(row.agrees))
