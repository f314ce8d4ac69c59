"""weighted_average: a mean in which rows have weights."""

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_aggregates.columns import accumulator_fields, doubles_of, signs_of

__all__ = ["WeightedAverage"]

FIELDS = ("count", "weight", "sum", "nan", "plus", "minus")


class WeightedAverage(udf.VectorizedAggregateFunction):
    """The sum of v * w divided by the sum of w; null without rows, or if no row has a weight.

    Weights are finite and not below zero; a row of weight zero is ignored. NaN and infinities are counted
    as by `average`.
    """

    parameters = "v double, w double"
    returns = "double"
    nulls = "skip"
    # `count` rows have a finite value and a weight above zero; the fields after them count the other rows.
    accumulator = "struct<count:bigint,weight:double,sum:double,nan:bigint,plus:bigint,minus:bigint>"

    def supports_retracting(self) -> bool:
        return True

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        values, weights = doubles_of(bundle.columns[0]), doubles_of(bundle.columns[1])
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
        if len(wrong):
            raise ValueError(f"w: {wrong[0]} is not finite and at least 0")
        signs = np.where(weights > 0, signs_of(bundle), 0)
        finite = np.isfinite(values)
        with np.errstate(over="ignore", invalid="ignore"):
            rows = [
                np.where(finite, signs, 0),
                np.where(finite, weights * signs, 0.0),
                np.where(finite, values, 0.0) * weights * signs,
                *(np.where(chosen, signs, 0) for chosen in (np.isnan(values), values == np.inf, values == -np.inf)),
            ]
            parts = [
                bundle.reduce_accumulators(np.add, before) + bundle.reduce_rows(np.add, added)
                for before, added in zip(accumulator_fields(bundle.accumulators), rows, strict=True)
            ]
        return pa.StructArray.from_arrays([pa.array(part) for part in parts], FIELDS)

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        count, weight, total, nan, plus, minus = accumulator_fields(accumulators)
        with np.errstate(all="ignore"):
            means = total / weight
        means = np.where(plus > 0, np.inf, means)
        means = np.where(minus > 0, -np.inf, means)
        means = np.where((nan > 0) | ((plus > 0) & (minus > 0)), np.nan, means)
        return pa.array(means, mask=count + nan + plus + minus <= 0)
