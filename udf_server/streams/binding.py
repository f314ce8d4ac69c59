"""Binding makes the call of a stream: the function for its types, and the options in effect, by kind of function."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from remote_udf.amounts import AMOUNTS
from remote_udf.arrow import read_schema
from remote_udf.effective_options import ScalarOptions
from remote_udf.errors import ErrorCode, InvalidOption, UnsupportedType
from remote_udf.functions import Execution, FunctionKind
from remote_udf.process_calls import ProcessCall
from remote_udf.segments import applied_from_proto, checked_segments
from remote_udf.types import require_supported
from remote_udf.v1 import message_pb2 as pb
from udf_server.aggregate.binding import bind_aggregate
from udf_server.aggregate.declaration import Aggregate
from udf_server.base.errors import InvalidCost
from udf_server.base.extra_metrics import BundleMetrics, ProcessMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.declaring.functions import Function
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.process.binding import bind_process, checked_process_segments
from udf_server.process.declaration import ProcessFunction
from udf_server.runners.runner import Arguments
from udf_server.streams.stream_reports import refused
from udf_server.values.values import codec_for_type

__all__ = ["Bound", "bound"]


@dataclass(frozen=True)
class Bound:
    """A function for the types and options of one stream."""

    function: Function
    """The function to call: the hosted one, or an aggregate or process one that is bound to this stream's segments."""
    options: ScalarOptions
    options_text: Mapping[str, str]
    """The options in effect, under the names of the function's kind."""
    arguments: Arguments


def bound(hosted: HostedFunction, request: pb.Open, metrics: ServerMetrics) -> Bound:
    """Check types and options of the request. Safe to call from any thread.

    Raises StreamError, or ProtocolViolation if the schema of the arguments cannot be read.
    """
    spec = hosted.spec
    if request.estimate and spec.kind is not FunctionKind.SCALAR:
        raise refused(ErrorCode.INVALID_OPTION, f"function {spec.key}: only scalar functions have costs")
    schema = read_schema(request.arguments)
    try:
        for field in schema:
            require_supported(field.type, f"function {spec.key}, argument {field.name!r}")
        if isinstance(hosted.function, Aggregate):
            return _aggregate(hosted, hosted.function, request, schema, metrics)
        if isinstance(hosted.function, ProcessFunction):
            return _process(hosted, hosted.function, request, schema, metrics)
        return _scalar(hosted, request, schema)
    except UnsupportedType as error:
        raise refused(ErrorCode.ARGUMENT_TYPE, str(error)) from error
    except InvalidOption as error:
        raise refused(ErrorCode.INVALID_OPTION, str(error)) from error


def _scalar(hosted: HostedFunction, request: pb.Open, schema: pa.Schema) -> Bound:
    spec, function = hosted.spec, hosted.function
    options = hosted.options.scalar(request.options)
    _ = hosted.options.merging  # raises InvalidOption
    arguments = Arguments(schema, spec.check_arguments(schema.types))
    if request.estimate:
        if function.cost is None:
            raise refused(
                ErrorCode.INVALID_OPTION,
                f"function {spec.key}: its declaration has no cost=..., so what its calls cost is not known before",
            )
        function = _estimating(function)
        options = replace(options, cache_ttl=0.0)  # what is kept are values, not estimates
    return Bound(function, options, options.to_text(), arguments)


def _aggregate(
    hosted: HostedFunction, function: Aggregate, request: pb.Open, schema: pa.Schema, metrics: ServerMetrics
) -> Bound:
    spec, options = hosted.spec, hosted.options.aggregate(request.options)
    fields = applied_from_proto(request.applied)
    if not fields:
        raise refused(ErrorCode.ARGUMENT_TYPE, f"function {spec.key}: nothing is wanted of its segments")
    targets = checked_segments(spec, schema)
    target = pa.schema([pa.field(name, type_) for name, type_ in zip(schema.names, targets, strict=True)])
    called = bind_aggregate(function, target, fields, BundleMetrics(metrics, spec.name, spec.version))
    return Bound(called, options.for_segments(), options.to_text(), Arguments(schema, targets))


def _process(
    hosted: HostedFunction, function: ProcessFunction, request: pb.Open, schema: pa.Schema, metrics: ServerMetrics
) -> Bound:
    spec, options = hosted.spec, hosted.options.aggregate(request.options)
    assert spec.process is not None
    call = ProcessCall.from_proto(request.process)
    if len(call.tables) != len(spec.process.tables):
        raise refused(
            ErrorCode.ARGUMENT_COUNT,
            f"function {spec.key} takes {len(spec.process.tables)} tables, got {len(call.tables)}: {spec.signature}",
        )
    function = function.in_call(call)
    targets = checked_process_segments(function, call, schema)
    called = bind_process(function, call, ProcessMetrics(metrics, spec.name, spec.version))
    return Bound(called, options.for_segments(), options.to_text(), Arguments(schema, targets))


def _estimating(function: Function) -> Function:
    """The function whose values are the estimates by its `cost`, `map<string, double>` by unit.

    If a call is for many rows, each of them gets an equal part. Guards, retries and context of the function do not
    apply: nothing is called.
    """
    spec = replace(function.spec, result=AMOUNTS)
    alone = replace(
        function, spec=spec, result=codec_for_type(AMOUNTS), context_parameter=None, context_position=None,
        takes_batch_context=False, guarded=False,
    )  # fmt: skip
    many = spec.execution in (Execution.VECTORIZED, Execution.BATCHED)

    def shares(*arguments: Any) -> Any:
        found = alone.estimated(arguments)
        if not many:
            return found
        if not arguments:
            raise InvalidCost(f"function {spec.key}: calls without arguments have no estimate by row")
        rows = len(arguments[0])
        each = {unit: amount / rows for unit, amount in found.items()}
        return [each] * rows if spec.execution is Execution.BATCHED else pa.array([list(each.items())] * rows, AMOUNTS)

    async def estimate(*arguments: Any) -> Any:
        return shares(*arguments)

    return replace(alone, call=estimate if function.is_async else shares)
