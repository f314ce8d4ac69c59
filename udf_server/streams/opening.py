"""Opening makes a stream's call of a function ready, before any row is sent: check, choose, bind, limit, start."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from remote_udf.arrow import write_schema
from remote_udf.errors import ErrorCode
from remote_udf.functions import VALUE, FunctionKind
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import PROTOCOL_VERSION, __version__
from udf_server.base.call_scope import StreamSpending
from udf_server.base.context import StreamContext
from udf_server.base.threads import done_aside
from udf_server.declaring.functions import Function
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.limits.budget import Budget
from udf_server.limits.hedge import Hedge
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.stream_budget import StreamBudget
from udf_server.security.access import Caller
from udf_server.streams.binding import Bound, bound
from udf_server.streams.services import StreamServices
from udf_server.streams.stream_reports import refused

__all__ = ["Opening", "open_function", "opened_message"]

JOB_LENGTH = 100
"""Longest name of a job that is kept for people."""
SMALL_BYTES = 64 << 10
"""An Open message of at most this size is checked on the event loop. Most have a kilobyte."""


@dataclass(frozen=True)
class Opening:
    """A function ready to be called, and how this stream calls it."""

    hosted: HostedFunction
    bound: Bound
    """What runners call: the function for the types of this stream, with all that limits its calls."""
    context: StreamContext
    budgets: Sequence[StreamBudget] = ()
    """What its calls may spend: each of them bounds it."""


async def open_function(
    services: StreamServices, request: pb.Open, caller: Caller, held: contextlib.ExitStack
) -> Opening:
    """Find the function, check access, version, types, options and budget, and run its `open` hooks.

    The stream leaves its budget, and no longer uses the function, when `held` is closed. Call it on the event loop.

    Raises StreamError if a check fails; its message names the function, what was found and what is expected. Raises
    ProtocolViolation if the schema of the arguments cannot be read.
    """
    _check(request, caller)
    if services.edits is not None:
        await services.edits.require_current(request.context.session, request.context.run)
    hosted = _chosen(services, request, caller)
    held.enter_context(hosted.used())
    budgets = _budgets(services, hosted, request, caller, held)
    # A large message has a wide table or much broadcast state, which would block the event loop.
    call = await done_aside(request.ByteSize() > SMALL_BYTES, bound, hosted, request, services.metrics)
    call = replace(call, function=_limited(services, hosted, request, call, budgets))
    await hosted.open()
    return Opening(hosted, call, _context(services, hosted, request, caller, budgets), budgets)


def _check(request: pb.Open, caller: Caller) -> None:
    """Check what concerns no function: any other refusal would reveal whether the function exists."""
    caller.require(request.function)
    if request.protocol_version != PROTOCOL_VERSION:
        raise refused(
            ErrorCode.UNSUPPORTED_PROTOCOL,
            f"the client speaks revision {request.protocol_version} of the protocol, this server {PROTOCOL_VERSION}: "
            f"install remote-udf {__version__}, the server's version, where tasks run",
        )


def _chosen(services: StreamServices, request: pb.Open, caller: Caller) -> HostedFunction:
    """The function of the request, in the version and with the types that its job was planned with."""
    hosted = services.host.find(request.function, request.version, may_see=caller.may_call)
    spec = hosted.spec
    if request.fingerprint not in ("", spec.fingerprint):
        raise refused(
            ErrorCode.FUNCTION_CHANGED,
            f"function {spec.key} is not what this job was planned with; it is now {spec.signature}. "
            "Look the function up again, or register it again, and restart the job; or give a changed function a new "
            "version",
        )
    return hosted


def _budgets(
    services: StreamServices, hosted: HostedFunction, request: pb.Open, caller: Caller, held: contextlib.ExitStack
) -> Sequence[StreamBudget]:
    """The budgets of the caller and of the job, in this order. Estimates are no calls, so they have none."""
    if request.estimate:
        return ()
    budgets, found = services.budgets, list[Callable[[], Budget]]()
    if budgets is not None and (terms := caller.settings.budget) is not None:
        daily = budgets.daily(caller.name, terms)
        found.append(lambda: daily.today)
    if request.HasField("budget"):
        if budgets is None:
            raise refused(
                ErrorCode.INVALID_OPTION,
                f"function {hosted.spec.key}: a budget needs a server; here the function runs in the process of its "
                "caller",
            )
        # An address is no caller: the executors of a job have several.
        job = budgets.join(caller.name, request.budget, request.context.job[:JOB_LENGTH])
        held.callback(budgets.leave, job)
        found.append(lambda: job)
    return [StreamBudget(current, hosted.spec.key) for current in found]


def _limited(
    services: StreamServices, hosted: HostedFunction, request: pb.Open, call: Bound, budgets: Sequence[StreamBudget]
) -> Function:
    """The function with all that limits its calls. Estimates are no calls."""
    if request.estimate:
        return call.function
    return limited(
        call.function, _limiter(services, hosted, budgets), budgets=budgets, timeout=call.options.timeout,
        hedge=_hedge(services, hosted),
        attempt_timeout=call.options.attempt_timeout if hosted.spec.kind is FunctionKind.SCALAR else None,
        retry_empty=hosted.spec.kind is FunctionKind.SCALAR and call.options.retry_empty,
    )  # fmt: skip


def _limiter(services: StreamServices, hosted: HostedFunction, budgets: Sequence[StreamBudget]) -> Limiter | None:
    """What lets the calls of the function begin, which all its streams share; None if nothing limits them."""
    guard = services.guards.get(hosted.spec.key)
    if guard is not None or not budgets:
        return guard
    if hosted.limiter is None:
        hosted.limiter = Limiter(hosted.spec.key, clock=hosted.executors.clock)
    return hosted.limiter


def _hedge(services: StreamServices, hosted: HostedFunction) -> Hedge | None:
    """The second calls of the function, which all its streams share; None if it has none."""
    spec = hosted.spec
    if spec.kind is not FunctionKind.SCALAR or (options := hosted.options.hedging) is None:
        return None
    if hosted.hedge is None:
        guard = services.guards.get(spec.key)
        hosted.hedge = Hedge(
            None if isinstance(options.hedge_after, str) else options.hedge_after, options.hedge_share,
            services.metrics.function(spec.name, spec.version).hedged,
            lambda: hosted.waiting > 0 or (guard is not None and guard.is_full()), hosted.executors.clock,
        )  # fmt: skip
    return hosted.hedge


def _context(
    services: StreamServices, hosted: HostedFunction, request: pb.Open, caller: Caller, budgets: Sequence[StreamBudget]
) -> StreamContext:
    """Where the rows come from, and what counts what their calls spend."""
    spec = hosted.spec
    count = functools.partial(services.metrics.function(spec.name, spec.version).spent, caller.name)

    def counted(amounts: dict[str, float]) -> None:
        count(amounts)
        for budget in budgets:
            budget.spent(amounts)

    spending = StreamSpending(counted if budgets else count)
    return StreamContext.from_proto(spec.name, spec.version, request.context, spending)


def opened_message(opening: Opening, max_message_bytes: int, progress_seconds: float) -> pb.ExecuteResponse:
    """The answer to Open."""
    spec = opening.bound.function.spec
    opened = pb.Opened(
        version=spec.version,
        result=write_schema(pa.schema([pa.field(VALUE, spec.result)])),
        options=opening.bound.options_text,
        max_message_bytes=max_message_bytes,
        execution=spec.to_proto().execution,
    )
    opened.progress_interval.FromNanoseconds(round(progress_seconds * 1e9))
    return pb.ExecuteResponse(opened=opened)
