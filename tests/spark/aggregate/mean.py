"""An aggregate of which Spark has an equal, and which fails for one value."""

import udf_server as udf

__all__ = ["MyMean"]


class MyMean(udf.AggregateFunction):
    """Equals Spark's avg of bigints, but fails for 13."""

    nulls = "skip"

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def accumulate(self, accumulator, v: int):
        if v == 13:
            raise ValueError("no thirteens")
        return [accumulator[0] + v, accumulator[1] + 1]

    def merge(self, accumulator, others):
        return [sum(each) for each in zip(accumulator, *others, strict=True)]

    def get_value(self, accumulator) -> float:
        return accumulator[0] / accumulator[1] if accumulator[1] else None
