"""The function that queries over windows name without describing it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import udf_server as udf

__all__ = ["ConcatDistinctAgg"]


class ConcatDistinctAgg(udf.AggregateFunction):
    """Flink's test function: the distinct values with '|' between them; null without any.

    Its accumulator counts each value, so that a row can be retracted.
    """

    name = "concat_distinct_agg"
    parameters = {"value": pa.string()}  # noqa: RUF012 - read by the server
    returns = pa.string()
    accumulator = pa.map_(pa.string(), pa.int64())

    def create_accumulator(self) -> Any:
        return {}

    def accumulate(self, accumulator: Any, value: Any) -> Any:
        return self._counted(accumulator, value, 1)

    def retract(self, accumulator: Any, value: Any) -> Any:
        return self._counted(accumulator, value, -1)

    def merge(self, accumulator: Any, others: Sequence[Any]) -> Any:
        for other in others:
            for value, count in dict(other).items():
                accumulator = self._counted(accumulator, value, count)
        return accumulator

    def get_value(self, accumulator: Any) -> Any:
        return "|".join(sorted(value for value, count in dict(accumulator).items() if count > 0)) or None

    def _counted(self, accumulator: Any, value: Any, by: int) -> dict[str, int]:
        counts = dict(accumulator)
        if value is not None:
            counts[value] = counts.get(value, 0) + by
        return {each: count for each, count in counts.items() if count}
