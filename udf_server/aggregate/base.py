"""What authors of aggregate functions derive from."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from udf_server.aggregate.bundle import Bundle
from udf_server.aggregate.segments import BundledKeySegment, BundledKeySegmentApplied

__all__ = ["AggregateFunction", "BundledAggregateFunction", "VectorizedAggregateFunction"]


class AggregateFunction:
    """An aggregate by the classic verbs (Flink's AggregateFunction); the server bundles the calls.

    Types come from the verbs' annotations, or from `parameters`, `returns` and `accumulator` as Spark
    DDL, Arrow types or annotations. An accumulator travels with the rows: whatever a function wants to
    remember of a key stands in it, and nothing in the instance, which several threads share.

    A verb that changes its accumulator in place returns None; one that makes another returns that.
    """

    name: ClassVar[str | None] = None
    """The class's name in snake case unless given."""
    version: ClassVar[str] = "1"
    description: ClassVar[str | None] = None
    """The docstring unless given."""
    parameters: ClassVar[str | Mapping[str, Any] | None] = None
    returns: ClassVar[Any] = None
    accumulator: ClassVar[Any] = None
    nulls: ClassVar[str] = "call"
    """`skip`: rows with a null argument are left out, as Spark's own aggregates do."""
    deterministic: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {}
    """Defaults of call options, see `remote_udf.options.AGGREGATE_OPTIONS`."""

    def supports_bundling(self) -> bool:
        """Whether `bundled_accumulate_retract` is called instead of the verbs."""
        return False

    def supports_retracting(self) -> bool:
        """Whether rows can be taken back: -U and -D of a changelog, rows that leave a bounded frame."""
        return _overrides(self, "retract")

    def supports_merging(self) -> bool:
        """Whether several accumulators can become one, so that a key's rows need not be in one place."""
        return _overrides(self, "merge")

    def create_accumulator(self) -> Any:
        """A new accumulator: a value of the declared type, never None."""
        raise NotImplementedError

    def accumulate(self, accumulator: Any, *arguments: Any) -> Any:
        """Adds a row."""
        raise NotImplementedError

    def retract(self, accumulator: Any, *arguments: Any) -> Any:
        """Takes a row back."""
        raise NotImplementedError

    def merge(self, accumulator: Any, others: Sequence[Any]) -> Any:
        """Adds what other accumulators hold."""
        raise NotImplementedError

    def get_value(self, accumulator: Any) -> Any:
        """The value of a key; also of a new accumulator, for there is one for a table without rows."""
        raise NotImplementedError


class BundledAggregateFunction(AggregateFunction):
    """An aggregate that gets segments of many keys in one call (FLIP-491).

    The verbs are never called. Give the types as class attributes: `parameters = "v bigint"`,
    `returns = "bigint"`, `accumulator = "struct<sum:bigint,count:bigint>"`.
    """

    def supports_bundling(self) -> bool:
        return True

    def supports_retracting(self) -> bool:
        return False

    def supports_merging(self) -> bool:
        return False

    def bundled_accumulate_retract(
        self, bundle: list[BundledKeySegment]
    ) -> list[BundledKeySegmentApplied] | Awaitable[list[BundledKeySegmentApplied]]:
        """One result per segment, in the same order; may be `async`.

        A second parameter annotated with CallContext receives the call's context. If it raises, the
        bundle is called again in halves until the segment that fails stands alone.
        """
        raise NotImplementedError("must be implemented if supports_bundling() is true")


class VectorizedAggregateFunction(AggregateFunction):
    """An aggregate over whole bundles as Arrow columns, at the speed of numpy.

    Give the types as class attributes, as for BundledAggregateFunction.
    """

    def supports_bundling(self) -> bool:
        return True

    def supports_retracting(self) -> bool:
        return False

    def supports_merging(self) -> bool:
        return False

    def apply_bundle(self, bundle: Bundle) -> pa.Array:
        """The accumulator of each segment, after its accumulators were merged and its rows applied; none null."""
        raise NotImplementedError

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        """The value of each accumulator."""
        raise NotImplementedError


def _overrides(function: AggregateFunction, verb: str) -> bool:
    return getattr(type(function), verb) is not getattr(AggregateFunction, verb)
