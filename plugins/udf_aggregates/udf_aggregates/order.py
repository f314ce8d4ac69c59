"""minimum, maximum and median of changelogs."""

import numpy as np
import pyarrow as pa

from udf_aggregates.multisets import MultisetFunction, Sorted

__all__ = ["Maximum", "Median", "Minimum"]


class Minimum(MultisetFunction):
    """The least value; null without rows. NaN is greater than any number."""

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        values = Sorted(accumulators)
        return pa.array(values.take(np.zeros(len(accumulators), np.int64)), mask=values.counts == 0)


class Maximum(MultisetFunction):
    """The greatest value; null without rows. NaN is greater than any number."""

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        values = Sorted(accumulators)
        return pa.array(values.take(values.counts - 1), mask=values.counts == 0)


class Median(MultisetFunction):
    """The value in the middle, or the mean of the two there; null without rows. NaN is greater than any number."""

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        values = Sorted(accumulators)
        low, high = values.take((values.counts - 1) // 2), values.take(values.counts // 2)
        with np.errstate(all="ignore"):
            # Halved first: the sum of two large numbers is infinite.
            middle = np.where(low == high, low, low / 2 + high / 2)
        return pa.array(middle, mask=values.counts == 0)
