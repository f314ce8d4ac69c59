"""Opening checks an Open message against the function that it names, before any row is sent."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from remote_udf.arrow import read_schema, write_schema
from remote_udf.effective_options import ScalarOptions, canonical
from remote_udf.errors import ErrorCode, ErrorKind, InvalidOption, StreamError, UnsupportedType
from remote_udf.functions import VALUE, FunctionKind
from remote_udf.options import AGGREGATE_OPTIONS
from remote_udf.process_calls import ProcessCall
from remote_udf.segments import applied_from_proto, checked_segments
from remote_udf.types import require_supported
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import __version__
from udf_server.aggregate.binding import bind_aggregate
from udf_server.aggregate.declaration import Aggregate
from udf_server.base.attempts import with_attempt_timeout
from udf_server.base.bundle_metrics import BundleMetrics, ProcessMetrics
from udf_server.base.context import StreamContext
from udf_server.base.estimating import estimating
from udf_server.base.functions import Function
from udf_server.base.metrics import ServerMetrics
from udf_server.base.spending import StreamSpending
from udf_server.budgets.budgets import Budgets
from udf_server.budgets.job_budget import JobBudget
from udf_server.budgets.stream_budget import StreamBudget
from udf_server.guards.hedge import Hedge
from udf_server.hosting.function_host import FunctionHost
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.process.binding import bind_process, checked_process_segments
from udf_server.process.declaration import ProcessFunction
from udf_server.runners.runner import Arguments
from udf_server.security.access import Caller
from udf_server.streams.session import PROTOCOL_VERSION

__all__ = ["Opening", "SecondRefused", "open_function", "opened_message"]

JOB_LENGTH = 100
"""Longest name of a job that is kept for people."""
SMALL_BYTES = 64 << 10
"""An Open message of at most this size is checked on the event loop. Most have a kilobyte."""


class SecondRefused(StreamError):
    """A stream for rows that another server has too was refused. The rows are not lost, so nobody needs to act."""


@dataclass(frozen=True)
class Opening:
    """A function ready to be called, and how this stream calls it."""

    hosted: HostedFunction
    function: Function
    """The function to call: the hosted one, or an aggregate or process one that is bound to this stream's segments."""
    context: StreamContext
    options: ScalarOptions
    options_text: Mapping[str, str]
    """The options in effect, under the names of the function's kind."""
    arguments: Arguments
    budgets: Sequence[StreamBudget] = ()
    """What its calls may spend: each of them bounds it."""


async def open_function(
    host: FunctionHost, request: pb.Open, metrics: ServerMetrics, caller: Caller, budgets: Budgets | None,
    held: contextlib.ExitStack,
) -> Opening:  # fmt: skip
    """Find the function, check access, version, types, options and budget, and run its `open` hooks.

    The stream leaves its budget when `held` is closed.

    Raises StreamError if a check fails; its message names the function, what was found and what is expected. Raises
    ProtocolViolation if the schema of the arguments cannot be read.
    """
    # This check is the first one: any other refusal would reveal whether the function exists.
    caller.require(request.function)
    if request.protocol_version != PROTOCOL_VERSION:
        raise _refused(
            ErrorCode.UNSUPPORTED_PROTOCOL,
            f"the client speaks revision {request.protocol_version} of the protocol, this server {PROTOCOL_VERSION}: "
            f"install remote-udf {__version__}, the server's version, where tasks run",
        )
    hosted = host.find(request.function, request.version, may_see=caller.may_call)
    spec = hosted.spec
    if request.fingerprint not in ("", spec.fingerprint):
        raise _refused(
            ErrorCode.FUNCTION_CHANGED,
            f"function {spec.key} is not what this job was planned with; it is now {spec.signature}. "
            "Look the function up again and restart the job, or give a changed function a new version",
        )
    count: Callable[[dict[str, float]], None] = functools.partial(
        metrics.function(spec.name, spec.version).spent, caller.name
    )
    # Estimates are no calls, so neither budgets nor hedges apply.
    bounds = [] if request.estimate else _budgets(budgets, hosted, request, caller, held)
    spending = StreamSpending(functools.partial(_count_all, count, bounds) if bounds else count)
    if request.ByteSize() <= SMALL_BYTES:
        opened = _bound(hosted, request, metrics, spending, bounds)
    else:
        # The message has a wide table or much broadcast state, which would block the event loop.
        opened = await asyncio.get_running_loop().run_in_executor(
            None, _bound, hosted, request, metrics, spending, bounds
        )
    if spec.kind is FunctionKind.SCALAR and not request.estimate:
        opened = _hedged(opened, request, metrics)
    await hosted.open()
    return opened


def _budgets(
    budgets: Budgets | None, hosted: HostedFunction, request: pb.Open, caller: Caller, held: contextlib.ExitStack
) -> list[StreamBudget]:
    """The budgets of the caller and of the job, in this order: a call that its job refuses takes nothing of others."""
    found: list[Callable[[], JobBudget]] = []
    if budgets is not None and (terms := caller.settings.budget) is not None:
        daily = budgets.daily(caller.name, terms)
        found.append(lambda: daily.today)
    if request.HasField("budget"):
        job = _job_budget(budgets, hosted, request, caller, held)
        found.append(lambda: job)
    return [StreamBudget(current, hosted.spec.key, hosted.executors.clock) for current in found]


def _job_budget(
    budgets: Budgets | None, hosted: HostedFunction, request: pb.Open, caller: Caller, held: contextlib.ExitStack
) -> JobBudget:
    if budgets is None:
        raise _refused(
            ErrorCode.INVALID_OPTION,
            f"function {hosted.spec.key}: a budget needs a server; here the function runs in the process of its caller",
        )
    # An address is no caller: the executors of a job have several.
    budget = budgets.join(caller.name, request.budget, request.context.job[:JOB_LENGTH])
    held.callback(budgets.leave, budget)
    return budget


def _count_all(
    count: Callable[[dict[str, float]], None], budgets: Sequence[StreamBudget], amounts: dict[str, float]
) -> None:
    count(amounts)
    for budget in budgets:
        budget.spent(amounts)


def _bounded(function: Function, budgets: Sequence[StreamBudget], timeout: float) -> Function:
    """The function whose calls take what they cost from each of the budgets, from the last one first."""
    for budget in budgets:
        function = budget.wrap(function, timeout)
    return function


def _bound(
    hosted: HostedFunction, request: pb.Open, metrics: ServerMetrics, spending: StreamSpending,
    budgets: Sequence[StreamBudget],
) -> Opening:  # fmt: skip
    """Check the message. It runs on any thread: what streams share is for the event loop."""
    spec = hosted.spec
    if request.estimate and spec.kind is not FunctionKind.SCALAR:
        raise _refused(ErrorCode.INVALID_OPTION, f"function {spec.key}: only scalar functions have costs")
    schema = read_schema(request.arguments)
    context = StreamContext.from_proto(spec.name, spec.version, request.context, spending)
    try:
        for field in schema:
            require_supported(field.type, f"function {spec.key}, argument {field.name!r}")
        if isinstance(hosted.function, Aggregate):
            opening = _aggregate(hosted, hosted.function, request, schema, context, metrics)
        elif isinstance(hosted.function, ProcessFunction):
            opening = _process(hosted, hosted.function, request, schema, context, metrics)
        else:
            opening = _scalar(hosted, request, schema, context)
        return replace(opening, function=_bounded(opening.function, budgets, opening.options.timeout), budgets=budgets)
    except UnsupportedType as error:
        raise _refused(ErrorCode.ARGUMENT_TYPE, str(error)) from error
    except InvalidOption as error:
        raise _refused(ErrorCode.INVALID_OPTION, str(error)) from error


def _scalar(hosted: HostedFunction, request: pb.Open, schema: pa.Schema, context: StreamContext) -> Opening:
    spec = hosted.spec
    options = hosted.options.scalar(canonical(request.options, source=f"call of {spec.key}"))
    _ = hosted.options.merging  # raises InvalidOption
    arguments = Arguments(schema, spec.check_arguments(schema.types))
    if request.estimate:
        return _estimate(hosted, context, options, arguments)
    return Opening(hosted, hosted.function, context, options, options.to_text(), arguments)


def _estimate(
    hosted: HostedFunction, context: StreamContext, options: ScalarOptions, arguments: Arguments
) -> Opening:  # fmt: skip
    if hosted.function.cost is None:
        raise _refused(
            ErrorCode.INVALID_OPTION,
            f"function {hosted.spec.key}: its declaration has no cost=..., so what its calls cost is not known before",
        )
    options = replace(options, cache_ttl=0.0)  # what is kept are values, not estimates
    return Opening(hosted, estimating(hosted.function), context, options, options.to_text(), arguments)


def _hedged(opening: Opening, request: pb.Open, metrics: ServerMetrics) -> Opening:
    """The opening of a scalar function with its hedged calls and attempts that end. Raises SecondRefused.

    All streams share the hedges of a function. Call it on the event loop.
    """
    hosted, function, limit = opening.hosted, opening.function, opening.options.attempt_timeout
    if request.second:
        _accept_second(hosted, metrics)
    if (options := hosted.options.hedging) is not None:
        if hosted.hedge is None:
            after = None if isinstance(options.hedge_after, str) else options.hedge_after
            count = metrics.function(hosted.spec.name, hosted.spec.version).hedged
            hosted.hedge = Hedge(after, options.hedge_share, count, lambda: hosted.waiting, hosted.executors.clock)
        function = hosted.hedge.wrap(function)
    return replace(opening, function=function if limit is None else with_attempt_timeout(function, limit))


def _accept_second(hosted: HostedFunction, metrics: ServerMetrics) -> None:
    """Count a stream for rows that another server has too. Raises StreamError if that would add to an overload."""
    guard_waits = getattr(hosted.function.call, "overloaded", lambda: False)
    count = metrics.function(hosted.spec.name, hosted.spec.version).hedged
    if hosted.crowded or guard_waits():
        count("refused")
        raise SecondRefused(
            ErrorKind.WORKER, ErrorCode.OVERLOADED,
            f"function {hosted.spec.key}: rows wait for a turn or for the guard; rows of other servers are not taken",
            retryable=True,
        )  # fmt: skip
    count("received")


def _aggregate(
    hosted: HostedFunction, function: Aggregate, request: pb.Open, schema: pa.Schema, context: StreamContext,
    metrics: ServerMetrics,
) -> Opening:  # fmt: skip
    spec = hosted.spec
    known = (AGGREGATE_OPTIONS,)
    options = hosted.options.aggregate(canonical(request.options, source=f"call of {spec.key}", known=known))
    fields = applied_from_proto(request.applied)
    if not fields:
        raise _refused(ErrorCode.ARGUMENT_TYPE, f"function {spec.key}: nothing is wanted of its segments")
    targets = checked_segments(spec, schema)
    target = pa.schema([pa.field(name, type_) for name, type_ in zip(schema.names, targets, strict=True)])
    bound = bind_aggregate(function, target, fields, BundleMetrics(metrics, spec.name, spec.version))
    return Opening(hosted, bound, context, options.for_segments(), options.to_text(), Arguments(schema, targets))


def _process(
    hosted: HostedFunction, function: ProcessFunction, request: pb.Open, schema: pa.Schema, context: StreamContext,
    metrics: ServerMetrics,
) -> Opening:  # fmt: skip
    spec = hosted.spec
    assert spec.process is not None
    known = (AGGREGATE_OPTIONS,)
    options = hosted.options.aggregate(canonical(request.options, source=f"call of {spec.key}", known=known))
    call = ProcessCall.from_proto(request.process)
    if len(call.tables) != len(spec.process.tables):
        raise _refused(
            ErrorCode.ARGUMENT_COUNT,
            f"function {spec.key} takes {len(spec.process.tables)} tables, got {len(call.tables)}: {spec.signature}",
        )
    targets = checked_process_segments(function, call, schema)
    bound = bind_process(function, call, ProcessMetrics(metrics, spec.name, spec.version))
    return Opening(hosted, bound, context, options.for_segments(), options.to_text(), Arguments(schema, targets))


def opened_message(opening: Opening, max_message_bytes: int, progress_seconds: float) -> pb.ExecuteResponse:
    """The answer to Open."""
    spec = opening.function.spec
    opened = pb.Opened(
        version=spec.version,
        result=write_schema(pa.schema([pa.field(VALUE, spec.result)])),
        options=opening.options_text,
        max_message_bytes=max_message_bytes,
        execution=spec.to_proto().execution,
    )
    if spec.kind is FunctionKind.SCALAR and (options := opening.hosted.options.hedging_elsewhere) is not None:
        opened.second.share = options.hedge_share
        if not isinstance(options.hedge_elsewhere, str):
            assert options.hedge_elsewhere is not None
            opened.second.after.FromNanoseconds(round(options.hedge_elsewhere * 1e9))
    opened.progress_interval.FromNanoseconds(round(progress_seconds * 1e9))
    return pb.ExecuteResponse(opened=opened)


def _refused(code: ErrorCode, message: str) -> StreamError:
    return StreamError(ErrorKind.PROTOCOL, code, message)
