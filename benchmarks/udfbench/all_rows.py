"""The base of aggregates whose value needs all rows of a key."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import udf_server as udf

__all__ = ["OfAllRows"]


class OfAllRows(udf.VectorizedAggregateFunction):
    """An aggregate whose value needs all rows of a key: an accumulator is the list of them."""

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        kept = bundle.accumulators
        names = [field.name for field in kept.type.value_type]
        rows = pa.StructArray.from_arrays(list(bundle.columns), names=names)
        lengths = kept.value_lengths().to_numpy(zero_copy_only=False)
        segment = np.concatenate([np.repeat(bundle.segment_of_accumulator, lengths), bundle.segment_of_row])
        order = pa.array(np.argsort(segment, kind="stable"))
        ends = np.cumsum(np.bincount(segment, minlength=bundle.segments))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays([kept.flatten(), rows]).take(order), type=kept.type)

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        columns = [[list(row.values()) for row in rows] for rows in accumulators.to_pylist()]
        return pa.array([self.value(*zip(*rows, strict=True)) for rows in columns], self.type)

    def value(self, *columns: Sequence[Any]) -> Any:
        """The value of the columns of a key."""
        raise NotImplementedError

    type: pa.DataType
