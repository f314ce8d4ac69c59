"""The plugin `aggregates`: aggregate functions that retract, merge, or approximate."""

import udf_server as udf
from udf_aggregates.averages import Average
from udf_aggregates.exact import ExactSum
from udf_aggregates.mode import Mode
from udf_aggregates.moving import EwmMean
from udf_aggregates.order import Maximum, Median, Minimum, Percentile
from udf_aggregates.sketches import ApproxDistinct, ApproxQuantile
from udf_aggregates.top import TopK
from udf_aggregates.weighted import WeightedAverage

__all__ = [
    "ApproxDistinct",
    "ApproxQuantile",
    "Average",
    "EwmMean",
    "ExactSum",
    "Maximum",
    "Median",
    "Minimum",
    "Mode",
    "Percentile",
    "TopK",
    "WeightedAverage",
    "udf_functions",
]


@udf.hookimpl
def udf_functions() -> list[type[udf.AggregateFunction]]:
    """The functions of this plugin."""
    return [
        ApproxDistinct, ApproxQuantile, Average, EwmMean, ExactSum, Maximum, Median, Minimum, Mode, Percentile, TopK,
        WeightedAverage,
    ]  # fmt: skip
