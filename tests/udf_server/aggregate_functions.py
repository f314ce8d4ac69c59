"""Aggregate functions of several tests: one average in each of the three ways, and smaller ones."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import udf_server as udf

__all__ = ["BundledAverage", "Chosen", "ClassicAverage", "CountAll", "RetractsAndMerges", "VectorizedAverage"]


class RetractsAndMerges:
    """To be named before the base class of the project."""

    def supports_retracting(self):
        return True

    def supports_merging(self):
        return True


class BundledAverage(RetractsAndMerges, udf.BundledAggregateFunction):
    """The average of FLIP-491, "Example Bundled Average Aggregation Definition", rounded towards minus infinity."""

    parameters = "v bigint"
    returns = "bigint"
    accumulator = "struct<sum:bigint,count:bigint>"

    def bundled_accumulate_retract(self, bundle):
        return [self._applied(segment) for segment in bundle]

    def _applied(self, segment):
        total = sum(each["sum"] for each in segment.accumulators)
        count = sum(each["count"] for each in segment.accumulators)
        values = [total // count if count else None]
        for adds, (value,) in segment.changes():
            sign = 1 if adds else -1
            total, count = total + sign * value, count + sign
            values.append(total // count if count else None)
        updated = values[1:] if segment.updated_values_after_each_row else []
        return udf.BundledKeySegmentApplied({"sum": total, "count": count}, values[0], values[-1], updated)


@dataclass
class SumAndCount:
    sum: int
    count: int


class ClassicAverage(udf.AggregateFunction):
    def create_accumulator(self) -> SumAndCount:
        return SumAndCount(0, 0)

    def accumulate(self, accumulator: SumAndCount, v: int):
        accumulator.sum += v
        accumulator.count += 1

    def retract(self, accumulator, v):
        accumulator.sum -= v
        accumulator.count -= 1

    def merge(self, accumulator, others):
        for other in others:
            accumulator.sum += other.sum
            accumulator.count += other.count

    def get_value(self, accumulator) -> int:
        return accumulator.sum // accumulator.count if accumulator.count else None


class VectorizedAverage(RetractsAndMerges, udf.VectorizedAggregateFunction):
    parameters = "v bigint"
    returns = "bigint"
    accumulator = "struct<sum:bigint,count:bigint>"

    def apply_bundle(self, bundle):
        values = bundle.columns[0].to_numpy(zero_copy_only=False)
        signs = np.ones(bundle.rows, np.int64) if bundle.retracts is None else np.where(bundle.retracts, -1, 1)
        sums, counts = (part.to_numpy(zero_copy_only=False) for part in bundle.accumulators.flatten())
        total = bundle.reduce_rows(np.add, values * signs) + bundle.reduce_accumulators(np.add, sums)
        count = bundle.reduce_rows(np.add, signs) + bundle.reduce_accumulators(np.add, counts)
        return pa.StructArray.from_arrays([pa.array(total), pa.array(count)], ["sum", "count"])

    def get_values(self, accumulators):
        total, count = (part.to_numpy(zero_copy_only=False) for part in accumulators.flatten())
        return pa.array(total // np.where(count == 0, 1, count), mask=count == 0)


class CountAll(udf.AggregateFunction):
    """Counts rows; it has no arguments, and neither retracts nor merges."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator):
        return accumulator + 1

    def get_value(self, accumulator) -> int:
        return accumulator


class Chosen(udf.BundledAggregateFunction):
    """Answers a bundle with what `answer` makes of it."""

    name, parameters, returns, accumulator = "chosen", "v bigint", "bigint", "bigint"

    def __init__(self, answer):
        self.answer = answer

    def bundled_accumulate_retract(self, bundle):
        return self.answer(bundle)
