"""minimum, maximum, median and percentiles of changelogs."""

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_aggregates.columns import Doubles, doubles_of
from udf_aggregates.multisets import MultisetFunction, Sorted

__all__ = ["Maximum", "Median", "Minimum", "Percentile"]


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
            # The values are halved before they are added, because the sum of two large numbers is infinite.
            middle = np.where(low == high, low, low / 2 + high / 2)
        return pa.array(middle, mask=values.counts == 0)


class Percentile(MultisetFunction):
    """The value at the share `q`, from 0 to 1, of the sorted values; null without rows.

    Interpolates linearly between two values, as Spark's `percentile` does. NaN is greater than any number. `q` is
    the same for all rows of a key.
    """

    parameters = "v double, q double"
    accumulator = "struct<values:array<double>,counts:array<bigint>,q:double>"

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        lists, counts = super().apply_bundle(bundle).flatten()
        shares = np.concatenate((_shares(bundle.accumulators), doubles_of(bundle.columns[1])))
        segments = np.concatenate((bundle.segment_of_accumulator, bundle.segment_of_row))
        least, greatest = np.full((2, bundle.segments), np.nan)
        np.fmin.at(least, segments, shares)
        np.fmax.at(greatest, segments, shares)
        wrong = doubles_of(bundle.columns[1])
        wrong = wrong[~((wrong >= 0) & (wrong <= 1))]
        if len(wrong):
            raise ValueError(f"q: {wrong[0]} is not from 0 to 1")
        for low, high in zip(least[least < greatest], greatest[least < greatest], strict=True):
            raise ValueError(f"q: {low} and {high}; it is the same for all rows of a key")
        return pa.StructArray.from_arrays(
            [lists, counts, pa.array(least, mask=np.isnan(least))], ("values", "counts", "q")
        )

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        values, shares = Sorted(accumulators), _shares(accumulators)
        places = np.nan_to_num(shares) * np.maximum(values.counts - 1, 0)
        below = np.floor(places).astype(np.int64)
        low, high = values.take(below), values.take(np.ceil(places).astype(np.int64))
        with np.errstate(all="ignore"):
            # The values are weighted separately, because the difference of two large numbers is infinite.
            between = np.where(low == high, low, low * (1 - (places - below)) + high * (places - below))
        # A result that is exactly one value must not depend on an infinity or NaN beside it.
        return pa.array(np.where(places == below, low, between), mask=values.counts == 0)


def _shares(accumulators: pa.StructArray) -> Doubles:
    """Returns the share of each accumulator; NaN for one without rows."""
    found: Doubles = accumulators.flatten()[2].to_numpy(zero_copy_only=False).astype(np.float64)
    return found
