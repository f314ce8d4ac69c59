"""What authors of aggregate functions write and get: the base classes, and the segments of a bundle (FLIP-491)."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from remote_udf.row_kinds import RowKind
from udf_server.aggregate.bundle import Bundle
from udf_server.declaring.annotations import GivenType
from udf_server.values.values import Key

__all__ = [
    "AggregateFunction",
    "BundledAggregateFunction",
    "BundledKeySegment",
    "BundledKeySegmentApplied",
    "VectorizedAggregateFunction",
]


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


class AggregateFunction:
    """An aggregate that is written with the classic methods of Flink's AggregateFunction.

    The types are those of the methods' annotations, or of `parameters`, `returns` and `accumulator`, given as Spark
    DDL, Arrow types or annotations. An accumulator travels with the rows: keep all state of a key in it, and none
    in the instance, which several threads share.

    A method that changes its accumulator in place returns None; a method that creates another one returns it.
    """

    name: ClassVar[str | None] = None
    """The name of the function; by default the class's name in snake case."""
    version: ClassVar[str] = "1"
    description: ClassVar[str | None] = None
    """The description that callers see; by default the docstring."""
    parameters: ClassVar[str | Mapping[str, GivenType] | None] = None
    returns: ClassVar[GivenType | None] = None
    accumulator: ClassVar[GivenType | None] = None
    nulls: ClassVar[str] = "call"
    """`skip`: rows with a null argument are skipped, as Spark's own aggregates do."""
    deterministic: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {}
    """Defaults of call options, see `remote_udf.options.AGGREGATE_OPTIONS`."""

    def supports_bundling(self) -> bool:
        """Whether `bundled_accumulate_retract` is called instead of the classic methods."""
        return False

    def supports_retracting(self) -> bool:
        """Whether rows can be retracted: -U and -D of a changelog, and rows that leave a bounded frame.

        By default, a function with the classic methods supports it if it defines `retract`; other functions do not.
        """
        return not self.supports_bundling() and _overrides(self, "retract")

    def supports_merging(self) -> bool:
        """Whether accumulators can be merged, so that several tasks can process the rows of a key.

        By default, a function with the classic methods supports it if it defines `merge`; other functions do not.
        """
        return not self.supports_bundling() and _overrides(self, "merge")

    def create_accumulator(self) -> Any:
        """Create an accumulator: a value of the declared type, never None."""
        raise NotImplementedError

    def accumulate(self, accumulator: Any, *arguments: Any) -> Any:
        """Add a row."""
        raise NotImplementedError

    def retract(self, accumulator: Any, *arguments: Any) -> Any:
        """Retract a row that was added."""
        raise NotImplementedError

    def merge(self, accumulator: Any, others: Sequence[Any]) -> Any:
        """Add the contents of other accumulators."""
        raise NotImplementedError

    def get_value(self, accumulator: Any) -> Any:
        """Return the value of a key. It is also called for a new accumulator: a table without rows has a value."""
        raise NotImplementedError


class BundledAggregateFunction(AggregateFunction):
    """An aggregate that gets segments of many keys in one call (FLIP-491).

    The classic methods are never called. Give the types as class attributes: `parameters = "v bigint"`,
    `returns = "bigint"`, `accumulator = "struct<sum:bigint,count:bigint>"`.
    """

    def supports_bundling(self) -> bool:
        return True

    def bundled_accumulate_retract(
        self, bundle: list[BundledKeySegment]
    ) -> list[BundledKeySegmentApplied] | Awaitable[list[BundledKeySegmentApplied]]:
        """Return one result per segment, in the same order. It may be `async`.

        A second parameter annotated with CallContext receives the call's context. If it raises, it is called again
        with halves of the bundle until the failing segment is isolated.
        """
        raise NotImplementedError("must be implemented if supports_bundling() is true")


class VectorizedAggregateFunction(AggregateFunction):
    """An aggregate that gets whole bundles as Arrow columns, for NumPy and Arrow.

    Give the types as class attributes, as for BundledAggregateFunction.
    """

    def supports_bundling(self) -> bool:
        return True

    def apply_bundle(self, bundle: Bundle) -> pa.Array:
        """Merge the accumulators of each segment, apply its rows, and return one accumulator per segment, none null."""
        raise NotImplementedError

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        """Return the value of each accumulator."""
        raise NotImplementedError


def _overrides(function: AggregateFunction, verb: str) -> bool:
    return getattr(type(function), verb) is not getattr(AggregateFunction, verb)
