"""What a server reports of its streams: errors to clients, sums of sessions to drivers, and lines to the audit log."""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError, capped
from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2
from udf_server.base.errors import FunctionBlocked
from udf_server.base.failures import describe, traceback_of
from udf_server.base.open_files import are_exhausted, open_files, out_of_files
from udf_server.security.access import Caller

__all__ = [
    "SessionProgress",
    "StreamProgress",
    "add_other_process",
    "as_stream_error",
    "audit",
    "error_message",
    "refused",
    "stream_ended",
    "stream_refused",
]

MOST_SESSIONS = 1_000
"""Number of sessions whose ended streams are remembered; the one that ended a stream longest ago is forgotten."""
ID_CHARACTERS = 64
"""Maximum length of the id of a session; a longer one is not counted."""
_KINDS = {
    ErrorKind.USER: pb.Error.KIND_USER,
    ErrorKind.WORKER: pb.Error.KIND_WORKER,
    ErrorKind.PROTOCOL: pb.Error.KIND_PROTOCOL,
}


def as_stream_error(error: Exception) -> StreamError:
    """The StreamError for any exception that ends a stream. A bug of the server is INTERNAL, with the traceback."""
    if isinstance(error, StreamError):
        return error
    if isinstance(error, ProtocolViolation):
        return StreamError(ErrorKind.PROTOCOL, ErrorCode.PROTOCOL_VIOLATION, str(error))
    if isinstance(error, UnicodeDecodeError):
        # It is from a name in a schema: values were validated, and an exception of a function is the row's error.
        message = f"a name in the schema is not UTF-8: {error.reason}"
        return StreamError(ErrorKind.PROTOCOL, ErrorCode.PROTOCOL_VIOLATION, message)
    if isinstance(error, FunctionBlocked):
        return StreamError(ErrorKind.WORKER, ErrorCode.OVERLOADED, str(error), retryable=True)
    if are_exhausted(error):
        return out_of_files("the server cannot serve the stream", open_files())
    message = f"the server failed: {describe(error)}"
    return StreamError(ErrorKind.WORKER, ErrorCode.INTERNAL, message, traceback=capped(traceback_of(error)))


def refused(code: ErrorCode, message: str) -> StreamError:
    """The error of a stream that its client may not open so."""
    return StreamError(ErrorKind.PROTOCOL, code, message)


def error_message(error: StreamError) -> pb.ExecuteResponse:
    """The Error message. Its text is cut to the maximum length of an error message."""
    message = pb.Error(
        kind=_KINDS[error.kind],
        code=error.code,
        message=capped(error.message),
        traceback=error.traceback,
        retryable=error.retryable,
    )
    if error.retry_after is not None:
        message.retry_after.FromNanoseconds(round(error.retry_after * 1e9))
    return pb.ExecuteResponse(error=message)


audit = logging.getLogger("udf_server.audit")
"""Records the caller, its address, the function and the number of rows."""


def stream_refused(caller: Caller, function: str, refusal: StreamError) -> None:
    """Log that a stream was refused before its function was opened. It is a warning, because nothing else is logged."""
    why = {"function": function[:200], "code": refusal.code, "why": refusal.message}
    audit.warning("stream refused", extra={**_who(caller), **why})


def stream_ended(
    caller: Caller, function: str, end: str, counts: pb.StreamCounts, seconds: float, *, estimate: bool = False
) -> None:
    """Log that a stream has ended, for any reason. One with estimates says so, and has no calls."""
    audit.info(
        "stream ended",
        extra={
            **_who(caller), "function": function, "end": end,
            "rows_in": counts.rows_in, "rows_ok": counts.rows_ok,
            "rows_failed": counts.rows_failed, "rows_skipped": counts.rows_skipped,
            "calls": 0 if estimate else counts.calls, "retries": counts.retries,
            "seconds": round(seconds, 3), **({"estimate": True} if estimate else {}),
        },
    )  # fmt: skip


def _who(caller: Caller) -> dict[str, str]:
    return {"caller": caller.name, "peer": caller.peer}


@dataclass(frozen=True)
class StreamProgress:
    """The counts of one stream, and its rows that are not answered yet."""

    session: str
    counts: pb.StreamCounts
    unanswered: int


class SessionProgress:
    """The sums of the ended streams of each session."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._ended: OrderedDict[str, pb.StreamCounts] = OrderedDict()

    def ended(self, stream: StreamProgress | None) -> None:
        """Count a stream that has ended; None is one that was not opened."""
        if stream is None or not 0 < len(stream.session) <= ID_CHARACTERS:
            return
        _add(self._ended.setdefault(stream.session, pb.StreamCounts()), stream.counts)
        self._ended.move_to_end(stream.session)
        while len(self._ended) > self._most:
            self._ended.popitem(last=False)

    def of(self, session: str, streams: Iterable[StreamProgress | None]) -> service_pb2.GetProgressResponse:
        """The sums of a session over its ended streams and the open ones among `streams`."""
        response = service_pb2.GetProgressResponse()
        if (ended := self._ended.get(session)) is not None:
            response.counts.CopyFrom(ended)
        for stream in streams:
            if stream is not None and session and stream.session == session:
                _add(response.counts, stream.counts)
                response.rows_unanswered += stream.unanswered
        return response


def add_other_process(response: service_pb2.GetProgressResponse, other: service_pb2.GetProgressResponse | None) -> None:
    """Add the answer of another process; None if it does not answer, so that its rows are missing.

    The load is that of the busiest process: a stream of the client may be for any of them.
    """
    if other is None:
        response.partial = True
        return
    _add(response.counts, other.counts)
    response.rows_unanswered += other.rows_unanswered
    if response.HasField("load") and other.load.load > response.load.load:
        response.load.CopyFrom(other.load)


def _add(total: pb.StreamCounts, counts: pb.StreamCounts) -> None:
    for field in pb.StreamCounts.DESCRIPTOR.fields:
        setattr(total, field.name, getattr(total, field.name) + getattr(counts, field.name))
