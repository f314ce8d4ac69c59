"""top_k: the greatest values."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import udf_server as udf

__all__ = ["TopK"]

MOST = 10_000


@dataclass
class Greatest:
    """The greatest values so far in rising order, at most k of them; k is 0 before the first row."""

    k: int
    values: list[float]


class TopK(udf.AggregateFunction):
    """The k greatest values in descending order, with repetitions; an empty list without rows.

    NaN is greater than any number. `k`, from 1 to 10000, is the same for all rows of a key. The function keeps
    only k values, so it cannot retract.
    """

    nulls = "skip"

    def create_accumulator(self) -> Greatest:
        return Greatest(0, [])

    def accumulate(self, accumulator: Greatest, v: float, k: int) -> None:
        values = accumulator.values
        if k != accumulator.k or k < 1:
            accumulator.k = _checked(accumulator.k, k)
        place = _place(v)
        if len(values) == k:
            if place <= _place(values[0]):
                return
            del values[0]
        # -0.0 becomes 0.0
        bisect.insort(values, v + 0.0, key=_place)

    def merge(self, accumulator: Greatest, others: Sequence[Greatest]) -> None:
        values = list(accumulator.values)
        for other in others:
            if other.k and other.k != accumulator.k:
                accumulator.k = _checked(accumulator.k, other.k)
            values += other.values
        accumulator.values = sorted(values, key=_place)[-accumulator.k :]

    def get_value(self, accumulator: Greatest) -> list[float]:
        return accumulator.values[::-1]


def _place(value: float) -> tuple[bool, float]:
    """A sort key that orders NaN after all numbers."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def _checked(known: int, k: int) -> int:
    if known:
        raise ValueError(f"k: {known} and {k}; it is the same for all rows of a key")
    if not 1 <= k <= MOST:
        raise ValueError(f"k: {k} is not from 1 to {MOST}")
    return k
