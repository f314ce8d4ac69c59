"""Runs segments by the classic methods: create, merge, accumulate, retract, get_value."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from remote_udf.segments import AppliedField
from udf_server.aggregate.declaration import Aggregate
from udf_server.aggregate.segments import BundledKeySegment, BundledKeySegmentApplied
from udf_server.base.codecs import Codec
from udf_server.base.records import StructCodec, is_frozen

__all__ = ["apply_classic"]


def apply_classic(
    aggregate: Aggregate, segments: Sequence[BundledKeySegment], fields: Sequence[AppliedField]
) -> list[BundledKeySegmentApplied]:
    """One result per segment. Only the requested values are computed."""
    run = _Verbs(aggregate, fields)
    return [run.apply(segment) for segment in segments]


class _Verbs:
    def __init__(self, aggregate: Aggregate, fields: Sequence[AppliedField]) -> None:
        self._function = aggregate.implementation
        self._name = aggregate.spec.key
        # A forgotten `return` would lose rows silently.
        self._returned = not _changes_in_place(aggregate.accumulator)
        self._starting = AppliedField.STARTING_VALUE in fields
        self._final = AppliedField.FINAL_VALUE in fields
        self._copied = aggregate.result.copied

    def apply(self, segment: BundledKeySegment) -> BundledKeySegmentApplied:
        function = self._function
        accumulator = self._before(segment.accumulators)
        starting = self._value(accumulator) if self._starting else None
        updated = []
        if segment.row_kinds is None and not segment.updated_values_after_each_row:
            accumulate = function.accumulate
            for row in segment.rows:
                changed = accumulate(accumulator, *row)
                if changed is not None:
                    accumulator = changed
                elif self._returned:
                    self._missing("accumulate")
        else:
            for adds, row in segment.changes():
                accumulator = self._changed(function.accumulate if adds else function.retract, accumulator, *row)
                if segment.updated_values_after_each_row:
                    updated.append(self._value(accumulator))
        final = self._value(accumulator) if self._final else None
        return BundledKeySegmentApplied(accumulator, starting, final, updated)

    def _value(self, accumulator: Any) -> Any:
        # Values are encoded after the last row, and `get_value` may return the accumulator itself.
        return self._copied(self._function.get_value(accumulator))

    def _before(self, accumulators: Sequence[Any]) -> Any:
        if not accumulators:
            return self._function.create_accumulator()
        if len(accumulators) == 1:
            return accumulators[0]
        return self._changed(self._function.merge, accumulators[0], list(accumulators[1:]))

    def _changed(self, verb: Callable[..., Any], accumulator: Any, *arguments: Any) -> Any:
        """The accumulator after a verb, which returned it or changed it in place."""
        changed = verb(accumulator, *arguments)
        if changed is None and self._returned:
            self._missing(verb.__name__)
        return accumulator if changed is None else changed

    def _missing(self, verb: str) -> None:
        raise TypeError(
            f"function {self._name}: {verb} returned None; an accumulator that cannot be changed in place must be "
            "returned"
        )


def _changes_in_place(accumulator: Codec) -> bool:
    if isinstance(accumulator, StructCodec) and accumulator.record is not None:
        return not is_frozen(accumulator.record)
    return pa.types.is_nested(accumulator.type)
