"""mode: the value that occurs most often."""

from collections.abc import Iterable, Mapping, Sequence

import udf_server as udf

__all__ = ["Mode"]

Counts = dict[str, int]


class Mode(udf.AggregateFunction):
    """The text that occurs most often; the alphabetically first one if several do; null without rows.

    The function keeps every distinct value of a key with its count, since any of them may be retracted.
    """

    nulls = "skip"

    def create_accumulator(self) -> Counts:
        return {}

    def accumulate(self, accumulator: Counts, v: str) -> None:
        _add(accumulator, ((v, 1),))

    def retract(self, accumulator: Counts, v: str) -> None:
        _add(accumulator, ((v, -1),))

    def merge(self, accumulator: Counts, others: Sequence[Mapping[str, int]]) -> None:
        for other in others:
            _add(accumulator, other.items())

    def get_value(self, accumulator: Counts) -> str | None:
        # A count is negative if a row was retracted before it was added; merging the parts restores it.
        present = [(-count, value) for value, count in accumulator.items() if count > 0]
        return min(present)[1] if present else None


def _add(counts: Counts, more: Iterable[tuple[str, int]]) -> None:
    for value, count in more:
        total = counts.get(value, 0) + count
        if total:
            counts[value] = total
        else:
            del counts[value]
