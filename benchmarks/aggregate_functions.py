"""One average, written in each of the three ways. The server loads this plugin by its file name."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import udf_server as udf

ACCUMULATOR = "struct<sum:double,count:bigint>"


class VectorizedAverage(udf.VectorizedAggregateFunction):
    """Processes a whole bundle at a time with numpy."""

    parameters, returns, accumulator = "v double", "double", ACCUMULATOR

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        values = bundle.columns[0].to_numpy(zero_copy_only=False)
        sums, counts = (part.to_numpy() for part in bundle.accumulators.flatten())
        total = bundle.reduce_rows(np.add, values) + bundle.reduce_accumulators(np.add, sums)
        count = np.diff(bundle.offsets) + bundle.reduce_accumulators(np.add, counts)
        return pa.StructArray.from_arrays([pa.array(total), pa.array(count)], names=["sum", "count"])

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        sums, counts = (part.to_numpy() for part in accumulators.flatten())
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)


class BundledAverage(udf.BundledAggregateFunction):
    """Processes a list of segments at a time in Python."""

    parameters, returns, accumulator = "v double", "double", ACCUMULATOR

    def supports_merging(self) -> bool:
        return True

    def bundled_accumulate_retract(self, bundle: list[udf.BundledKeySegment]) -> list[udf.BundledKeySegmentApplied]:
        applied = []
        for segment in bundle:
            total = sum([before["sum"] for before in segment.accumulators]) + sum([v for (v,) in segment.rows])
            count = sum([before["count"] for before in segment.accumulators]) + len(segment.rows)
            value = total / count if count else None
            applied.append(udf.BundledKeySegmentApplied({"sum": total, "count": count}, None, value))
        return applied


@dataclass(slots=True)
class Sum:
    """The accumulator of the classic average."""

    sum: float
    count: int


class ClassicAverage(udf.AggregateFunction):
    """Processes a row at a time by the classic methods."""

    def create_accumulator(self) -> Sum:
        return Sum(0.0, 0)

    def accumulate(self, accumulator: Sum, v: float) -> None:
        accumulator.sum += v
        accumulator.count += 1

    def merge(self, accumulator: Sum, others: Sequence[Sum]) -> None:
        for other in others:
            accumulator.sum += other.sum
            accumulator.count += other.count

    def get_value(self, accumulator: Sum) -> float | None:
        return accumulator.sum / accumulator.count if accumulator.count else None
