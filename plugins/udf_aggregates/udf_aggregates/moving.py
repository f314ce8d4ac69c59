"""ewm_mean: the exponentially weighted mean."""

from dataclasses import dataclass

import udf_server as udf

__all__ = ["EwmMean"]


@dataclass
class Weighted:
    """A sum in which each value weighs 1 - alpha times as much as the next one, and the sum of these weights."""

    sum: float
    weight: float


class EwmMean(udf.AggregateFunction):
    """The exponentially weighted mean of the values in their order; null without rows.

    The result equals the last value of `Series.ewm(alpha=alpha).mean()` of pandas, without nulls. The newest value
    weighs 1, the one before 1 - alpha, and so on; alpha is greater than 0 and at most 1. The result depends on the
    order of the rows, so the function neither merges nor retracts. If a value is NaN, the result is NaN.
    """

    nulls = "skip"

    def create_accumulator(self) -> Weighted:
        return Weighted(0.0, 0.0)

    def accumulate(self, accumulator: Weighted, v: float, alpha: float) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha: {alpha} is not greater than 0 and at most 1")
        accumulator.sum = accumulator.sum * (1.0 - alpha) + v
        accumulator.weight = accumulator.weight * (1.0 - alpha) + 1.0

    def get_value(self, accumulator: Weighted) -> float | None:
        return accumulator.sum / accumulator.weight if accumulator.weight else None
