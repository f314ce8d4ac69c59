"""average: the mean, exact for integers."""

from typing import ClassVar

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_aggregates.columns import Doubles, Integers, accumulator_fields, doubles_of, signs_of

__all__ = ["Average"]

FIELDS = ("count", "high", "low", "sum", "nan", "plus", "minus")
BITS = 32


class Average(udf.VectorizedAggregateFunction):
    """The mean; null without rows.

    Integers are summed exactly, in any order. Doubles are summed as doubles; NaN and infinities are
    counted, so that retracting one restores the mean of the other values. The mean of rows with a NaN, or
    with both infinities, is NaN.
    """

    parameters: ClassVar = {"v": int | float}
    returns = "double"
    nulls = "skip"
    # `count` is the number of finite rows; their sum is high * 2^32 + low + sum, with 0 <= low < 2^32.
    accumulator = "struct<count:bigint,high:bigint,low:bigint,sum:double,nan:bigint,plus:bigint,minus:bigint>"

    def supports_retracting(self) -> bool:
        return True

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        # A sum of doubles that is too large is infinite, as in Spark.
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [
                bundle.reduce_accumulators(np.add, before) + rows
                for before, rows in zip(accumulator_fields(bundle.accumulators), _of_rows(bundle), strict=True)
            ]
        high, low = parts[1], parts[2]
        parts[1:3] = high + (low >> BITS), low & (2**BITS - 1)
        return pa.StructArray.from_arrays([pa.array(part) for part in parts], FIELDS)

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        count, high, low, total, nan, plus, minus = accumulator_fields(accumulators)
        with np.errstate(all="ignore"):
            means = (high * 2.0**BITS + low + total) / count
        means = np.where(plus > 0, np.inf, means)
        means = np.where(minus > 0, -np.inf, means)
        means = np.where((nan > 0) | ((plus > 0) & (minus > 0)), np.nan, means)
        return pa.array(means, mask=count + nan + plus + minus <= 0)


def _of_rows(bundle: udf.Bundle) -> list[Integers | Doubles]:
    """Returns what the rows add to each field of the accumulators."""
    column, signs = bundle.columns[0], signs_of(bundle)
    nothing = np.zeros(bundle.segments, np.int64)
    if pa.types.is_integer(column.type):
        values = column.to_numpy(zero_copy_only=False)
        high = bundle.reduce_rows(np.add, (values >> BITS) * signs)
        low = bundle.reduce_rows(np.add, (values & (2**BITS - 1)) * signs)
        return [bundle.reduce_rows(np.add, signs), high, low, nothing + 0.0, nothing, nothing, nothing]
    values = doubles_of(column)
    finite = np.isfinite(values)
    if finite.all():
        total = bundle.reduce_rows(np.add, values * signs)
        return [bundle.reduce_rows(np.add, signs), nothing, nothing, total, nothing, nothing, nothing]
    total = bundle.reduce_rows(np.add, np.where(finite, values, 0.0) * signs)
    counts = [
        bundle.reduce_rows(np.add, np.where(chosen, signs, 0))
        for chosen in (finite, np.isnan(values), values == np.inf, values == -np.inf)
    ]
    return [counts[0], nothing, nothing, total, *counts[1:]]
