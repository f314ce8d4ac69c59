"""exact_sum: the sum of integers and decimals without rounding."""

from typing import ClassVar

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_aggregates.columns import Integers, accumulator_fields, signs_of

__all__ = ["ExactSum"]

SUM = pa.decimal128(38, 18)
LIMBS = 4
BITS = 32
MASK = 2**BITS - 1


class ExactSum(udf.VectorizedAggregateFunction):
    """The sum of integers and decimals as decimal(38,18), exact in any order; null without rows.

    Only the final sum must fit, not intermediate sums. If the sum is 10^20 or more, its key fails with an error.
    """

    parameters: ClassVar = {"v": SUM}
    returns = SUM
    nulls = "skip"
    # The sum times 10^18 is the sum of limb i * 2^(32 i); all limbs but the last are from 0 to 2^32 - 1.
    accumulator = "struct<count:bigint,limb0:bigint,limb1:bigint,limb2:bigint,limb3:bigint>"

    def supports_retracting(self) -> bool:
        return True

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        signs = signs_of(bundle)
        count, *limbs = (bundle.reduce_accumulators(np.add, part) for part in accumulator_fields(bundle.accumulators))
        for index, digits in enumerate(_limbs(bundle.columns[0])):
            limbs[index] += bundle.reduce_rows(np.add, digits * signs)
        for index in range(LIMBS - 1):
            limbs[index + 1] += limbs[index] >> BITS
            limbs[index] &= MASK
        count += bundle.reduce_rows(np.add, signs)
        parts = [pa.array(part) for part in (count, *limbs)]
        return pa.StructArray.from_arrays(parts, ["count", *(f"limb{index}" for index in range(LIMBS))])

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        count, *limbs = accumulator_fields(accumulators)
        present = count > 0
        words = np.empty((len(count), 2), np.int64)
        words[:, 0] = limbs[0] | (limbs[1] << BITS)
        words[:, 1] = limbs[2] | (limbs[3] << BITS)
        words[~present] = 0
        sums = pa.Array.from_buffers(SUM, len(count), [pa.array(present).buffers()[1], pa.py_buffer(words)])
        top = limbs[3][present]
        if not len(top) or -(2 ** (BITS - 1)) <= top.min() <= top.max() < 2 ** (BITS - 1):
            try:
                sums.validate(full=True)
                return sums
            except pa.ArrowInvalid:
                pass
        raise OverflowError("the sum has more than 20 digits before the point, and does not fit decimal(38,18)")


def _limbs(column: pa.Array) -> list[Integers]:
    """Returns the 128 bits of each decimal, the lowest 32 first; the highest are signed."""
    words = np.frombuffer(column.buffers()[1] or b"", np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    low, high = words[0::2], words[1::2]
    return [low & MASK, (low >> BITS) & MASK, high & MASK, high >> BITS]
