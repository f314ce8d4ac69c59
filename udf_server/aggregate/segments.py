"""The segments a BundledAggregateFunction gets and gives (FLIP-491, "Public Interfaces")."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from remote_udf.row_kinds import RowKind
from udf_server.base.values import Key

__all__ = ["BundledKeySegment", "BundledKeySegmentApplied"]


@dataclass(slots=True)
class BundledKeySegment:
    """Rows of one key, and what they are applied to.

    `key` has a value per column of the key; it is empty for an aggregate over everything. `rows` has
    one tuple of arguments per row, in the order of the input where the caller asked for one.
    `row_kinds` is as long, or None where every row is +I. `accumulators` are what was before: none
    asks for a new one, several are merged before the first row.
    """

    key: Key
    rows: Sequence[tuple[Any, ...]]
    accumulators: list[Any] = field(default_factory=list)
    updated_values_after_each_row: bool = False
    row_kinds: Sequence[RowKind] | None = None

    def changes(self) -> Iterator[tuple[bool, tuple[Any, ...]]]:
        """Whether to accumulate (True) or retract (False), and the row, for every row."""
        if self.row_kinds is None:
            for row in self.rows:
                yield True, row
        else:
            for kind, row in zip(self.row_kinds, self.rows, strict=True):
                yield kind.is_accumulate, row


@dataclass(slots=True)
class BundledKeySegmentApplied:
    """What applying a segment gave.

    `accumulator` is the one after all rows and never None. `starting_value` is the value after the
    accumulators were merged and before the first row, `final_value` the one after the last row.
    `updated_values_after_each_row` has as many values as the segment has rows if the segment requests them;
    otherwise it is ignored.
    """

    accumulator: Any
    starting_value: Any = None
    final_value: Any = None
    updated_values_after_each_row: Sequence[Any] = ()
