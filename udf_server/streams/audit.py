"""The audit log: one line per stream and one per refused caller."""

import logging

from remote_udf.errors import StreamError
from remote_udf.v1 import message_pb2 as pb
from udf_server.security.access import Caller

__all__ = ["audit", "stream_ended", "stream_refused"]

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
