"""Binding: turns an aggregate function into a vectorized function over segments, for one stream.

Bundles therefore get everything that vectorized functions have: deadlines, retries, and isolation of a failing segment
by halving.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.functions import FunctionSpec, NullCall
from remote_udf.segments import ROWS, AppliedField, applied_type
from udf_server.aggregate.base import BundledKeySegment, BundledKeySegmentApplied, VectorizedAggregateFunction
from udf_server.aggregate.bundle import Bundle, read_bundle
from udf_server.aggregate.declaration import Aggregate
from udf_server.aggregate.segments import SegmentObjects
from udf_server.aggregate.vectorized import apply_vectorized
from udf_server.base.context import CallContext
from udf_server.base.extra_metrics import BundleMetrics
from udf_server.declaring.annotations import AuthorCode
from udf_server.declaring.functions import Function, place_of
from udf_server.runners.calling import WrongResult
from udf_server.values.values import codec_for_type

__all__ = ["bind_aggregate"]


def bind_aggregate(
    aggregate: Aggregate, schema: pa.Schema, fields: Sequence[AppliedField], metrics: BundleMetrics
) -> Function:
    """The function that takes the columns of `schema` and returns a struct of `fields` per segment.

    `schema` has the types the function declared, see `remote_udf.segments.checked_segments`.
    """
    binding = _Binding(aggregate, schema, fields, metrics)
    if aggregate.is_async:
        call: AuthorCode = binding.call_async
    elif isinstance(aggregate.implementation, VectorizedAggregateFunction):
        call = binding.call_vectorized
    elif aggregate.implementation.supports_bundling():
        call = binding.call_bundled
    else:
        call = binding.call_classic
    # Rows with nulls are skipped by whoever makes the segments; a segment is never skipped.
    spec = replace(aggregate.spec, result=binding.result, nulls=NullCall.CALL)
    bound = Function(
        spec=spec,
        call=call,
        parameters=[[codec_for_type(field.type)] for field in schema],
        result=codec_for_type(binding.result),
        context_parameter=aggregate.context_parameter,
        origin=aggregate.origin,
        is_async=aggregate.is_async,
        places=binding.place,
    )
    # The aggregate's own, so that hooks added later count as well.
    bound.opens, bound.closes = aggregate.opens, aggregate.closes
    return bound


class _Binding:
    def __init__(
        self, aggregate: Aggregate, schema: pa.Schema, fields: Sequence[AppliedField], metrics: BundleMetrics
    ) -> None:
        self._aggregate = aggregate
        self._names = schema.names
        self._fields = fields
        self._metrics = metrics
        self._objects = SegmentObjects(aggregate, schema, fields)
        self.result = applied_type(aggregate.spec, fields)

    def place(self, position: int, path: Sequence[str]) -> str:
        """What messages call a field of a segment."""
        column = self._names[position]
        if column == ROWS and path:
            return place_of(f"parameter {self._aggregate.spec.parameter(int(path[0])).name!r}", path[1:])
        return place_of(column, path)

    def call_vectorized(self, *columns: pa.Array) -> pa.Array:
        bundle = self._bundle(columns)
        return self._struct(apply_vectorized(self._aggregate, bundle, self._fields), bundle)

    def call_classic(self, *columns: pa.Array) -> pa.Array:
        bundle, segments = self._segments(columns)
        return self._encoded(self._objects.apply_classic(segments), bundle, segments)

    def call_bundled(self, *columns: pa.Array, **context: CallContext) -> pa.Array:
        bundle, segments = self._segments(columns)
        return self._encoded(self._aggregate.call(segments, **context), bundle, segments)

    async def call_async(self, *columns: pa.Array, **context: CallContext) -> pa.Array:
        bundle, segments = self._segments(columns)
        return self._encoded(await self._aggregate.call(segments, **context), bundle, segments)

    def _bundle(self, columns: Sequence[pa.Array]) -> Bundle:
        aggregate = self._aggregate
        parameters = [codecs[0].type for codecs in aggregate.parameters]
        bundle = read_bundle(dict(zip(self._names, columns, strict=True)), aggregate.accumulator.type, parameters)
        _require_support(aggregate.spec, bundle)
        return bundle

    def _segments(self, columns: Sequence[pa.Array]) -> tuple[Bundle, list[BundledKeySegment]]:
        bundle = self._bundle(columns)
        return bundle, self._objects.read(bundle)

    def _encoded(
        self, applied: Sequence[BundledKeySegmentApplied], bundle: Bundle, segments: Sequence[BundledKeySegment]
    ) -> pa.Array:
        return self._struct(self._objects.arrays(applied, segments), bundle)

    def _struct(self, arrays: Mapping[AppliedField, pa.Array], bundle: Bundle) -> pa.Array:
        """The results of the bundle, which counts from here on as applied."""
        columns = [arrays[field] for field in self._fields]
        if AppliedField.ACCUMULATOR in arrays and arrays[AppliedField.ACCUMULATOR].null_count:
            raise WrongResult(
                ErrorCode.RESULT_TYPE, "an accumulator is null; return a new accumulator for a key without rows"
            )
        result = pa.StructArray.from_arrays(columns, fields=list(self.result))
        retracted = 0 if bundle.retracts is None else int(np.count_nonzero(bundle.retracts))
        counts = np.diff(bundle.accumulator_offsets)
        merged = int(counts[counts > 1].sum())  # accumulators of segments that have several
        self._metrics.applied(bundle.segments, bundle.rows, retracted, merged)
        return result


def _require_support(spec: FunctionSpec, bundle: Bundle) -> None:
    """Raises NotImplementedError for what the function cannot do; isolation finds the segments that ask for it."""
    if not spec.supports_retracting and bundle.retracts is not None:
        raise NotImplementedError(
            f"Retract functionality is not implemented for the aggregate function: {spec.key}; a row is -U or -D"
        )
    if not spec.supports_merging and len(bundle.accumulators) and np.diff(bundle.accumulator_offsets).max() > 1:
        raise NotImplementedError(
            f"Merge functionality is not implemented for the aggregate function: {spec.key}; a segment has "
            "several accumulators"
        )
