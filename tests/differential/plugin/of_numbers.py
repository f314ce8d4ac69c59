"""Aggregates of numbers: sums, averages, medians."""

import math

import numpy as np
import pyarrow as pa

import udf_server as udf


class ClassicSum(udf.AggregateFunction):
    """sum: classic, merges, retracts; the accumulator is [sum, number of rows]."""

    name, nulls = "sum_bigint", "skip"
    parameters, accumulator, returns = "v bigint", "array<bigint>", "bigint"

    def create_accumulator(self):
        return [0, 0]

    def accumulate(self, accumulator, v):
        accumulator[0] += v
        accumulator[1] += 1

    def retract(self, accumulator, v):
        accumulator[0] -= v
        accumulator[1] -= 1

    def merge(self, accumulator, others):
        for total, count in others:
            accumulator[0] += total
            accumulator[1] += count

    def get_value(self, accumulator):
        return accumulator[0] if accumulator[1] else None


class DecimalSum(ClassicSum):
    """sum of decimals, without merge and retract."""

    name, parameters, returns = "sum_decimal", "v decimal(10,2)", "decimal(20,2)"
    accumulator = "array<decimal(20,2)>"

    def supports_merging(self):
        return False

    def supports_retracting(self):
        return False


class BundledSum(udf.BundledAggregateFunction):
    """sum: bundled, and does not merge."""

    name, nulls = "bsum_bigint", "skip"
    parameters, accumulator, returns = "v bigint", "struct<s:bigint,n:bigint>", "bigint"

    def bundled_accumulate_retract(self, bundle):
        applied = []
        for segment in bundle:
            total = sum(each["s"] for each in segment.accumulators)
            count = sum(each["n"] for each in segment.accumulators)
            values = [total if count else None]
            for adds, (v,) in segment.changes():
                total, count = total + (v if adds else -v), count + (1 if adds else -1)
                values.append(total if count else None)
            accumulator = {"s": total, "n": count}
            applied.append(udf.BundledKeySegmentApplied(accumulator, values[0], values[-1], values[1:]))
        return applied


class RetractingSum(BundledSum):
    """The same, with merge and retract."""

    name = "rsum_bigint"

    def supports_merging(self):
        return True

    def supports_retracting(self):
        return True


class VectorizedSum(udf.VectorizedAggregateFunction):
    """sum: vectorized, merges and retracts."""

    name, nulls = "vsum_bigint", "skip"
    parameters, accumulator, returns = "v bigint", "struct<s:bigint,n:bigint>", "bigint"

    def supports_merging(self):
        return True

    def supports_retracting(self):
        return True

    def apply_bundle(self, bundle):
        sums, counts = (part.to_numpy(zero_copy_only=False) for part in bundle.accumulators.flatten())
        signs = np.ones(bundle.rows, np.int64) if bundle.retracts is None else np.where(bundle.retracts, -1, 1)
        values = bundle.columns[0].to_numpy(zero_copy_only=False)
        total = bundle.reduce_accumulators(np.add, sums) + bundle.reduce_rows(np.add, values * signs)
        count = bundle.reduce_accumulators(np.add, counts) + bundle.reduce_rows(np.add, signs)
        return pa.StructArray.from_arrays([pa.array(total), pa.array(count)], ["s", "n"])

    def get_values(self, accumulators):
        sums, counts = (part.to_numpy(zero_copy_only=False) for part in accumulators.flatten())
        return pa.array(sums, mask=counts == 0)


class VectorizedDoubleSum(VectorizedSum):
    """sum of doubles: NaN and infinities cannot be retracted."""

    name, parameters, accumulator, returns = "vsum_double", "v double", "struct<s:double,n:bigint>", "double"

    def supports_retracting(self):
        return False

    def apply_bundle(self, bundle):
        with np.errstate(invalid="ignore"):
            return super().apply_bundle(bundle)


class BundledAverage(udf.BundledAggregateFunction):
    """avg: bundled, asynchronous, merges."""

    name, nulls = "avg_double", "skip"
    parameters, accumulator, returns = "v double", "struct<s:double,n:bigint>", "double"

    def supports_merging(self):
        return True

    async def bundled_accumulate_retract(self, bundle):
        applied = []
        for segment in bundle:
            total = sum((each["s"] for each in segment.accumulators), 0.0)
            count = sum(each["n"] for each in segment.accumulators)
            values = [total / count if count else None]
            for (v,) in segment.rows:
                total, count = total + v, count + 1
                values.append(total / count)
            accumulator = {"s": total, "n": count}
            applied.append(udf.BundledKeySegmentApplied(accumulator, values[0], values[-1], values[1:]))
        return applied


class Median(udf.AggregateFunction):
    """median: keeps the values, in any order; merges and retracts."""

    name, nulls = "median_bigint", "skip"
    parameters, accumulator, returns = "v bigint", "array<bigint>", "double"

    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, v):
        accumulator.append(v)

    def retract(self, accumulator, v):
        accumulator.remove(v)

    def merge(self, accumulator, others):
        for other in others:
            accumulator += other

    def get_value(self, accumulator):
        if not accumulator:
            return None
        ordered = sorted(map(float, accumulator), key=lambda v: (math.isnan(v), v))
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        # Spark's formula: between -inf and a number it gives NaN.
        return (low if low == high else low + (high - low) * 0.5) + 0.0


class DoubleMedian(Median):
    """median of doubles, with NaN above all; without merge and retract."""

    name, parameters, accumulator = "median_double", "v double", "array<double>"

    def supports_merging(self):
        return False

    def supports_retracting(self):
        return False


FUNCTIONS = (
    ClassicSum, DecimalSum, BundledSum, RetractingSum, VectorizedSum, VectorizedDoubleSum, BundledAverage, Median,
    DoubleMedian,
)  # fmt: skip
