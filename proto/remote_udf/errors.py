"""Errors and error codes that the server and its clients share.

    RemoteUdfError                  root of every error of this project
    ├── InvalidOption               an option is unknown, malformed or invalid; the caller's fault
    ├── InvalidCall                 a process table function is not called as it declares; the caller's fault
    ├── UnsupportedType             a type that cannot cross the wire; the caller's or author's fault
    ├── ProtocolViolation           the other end broke the protocol; a bug or another kind of peer
    └── StreamError                 the server ended a stream with an Error message
        udf_server.base.errors      adds errors for plugin authors and operators
        spark_client.base.errors    adds errors for Spark jobs

A failed row is not an exception but an outcome (`remote_udf.outcomes`); `ErrorCode` has the codes of both.
"""

import re
from enum import StrEnum

__all__ = [
    "TRACEBACK_LIMIT",
    "ErrorCode",
    "ErrorKind",
    "InvalidCall",
    "InvalidOption",
    "ProtocolViolation",
    "RemoteUdfError",
    "StreamError",
    "UnsupportedType",
    "capped",
]

TRACEBACK_LIMIT = 4_000
"""Maximum number of characters of a remote traceback, and of a message."""

_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class ErrorKind(StrEnum):
    """Who is at fault, as in Spark's UDF worker protocol: `ExecutionError`."""

    USER = "user"
    """The plugin author's code."""
    WORKER = "worker"
    """The server."""
    PROTOCOL = "protocol"
    """The client or its request."""


class ErrorCode(StrEnum):
    """What went wrong, for programs. Error columns, metrics, logs and the wire use the same words.

    `ErrorCode(text)` accepts any word in capitals, so that the code of a newer server is kept unchanged, and raises
    ValueError for anything else. Decide by `retryable`, which every error has, rather than by the code.
    """

    # Codes of rows.
    FUNCTION_ERROR = "FUNCTION_ERROR"
    """The function raised."""
    TIMEOUT = "TIMEOUT"
    """The row's deadline passed. The deadline includes retries and waiting."""
    RESULT_TYPE = "RESULT_TYPE"
    """The function returned a value that does not fit its declared type."""
    RESULT_LENGTH = "RESULT_LENGTH"
    """A vectorized function returned a number of values that differs from the number of its rows."""
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
    """The value of this one row does not fit into a message."""
    ARGUMENT_VALUE = "ARGUMENT_VALUE"
    """A Python object cannot hold an argument's value, such as a timestamp after the year 9999 or text not in UTF-8."""
    ARGUMENT_TOO_LARGE = "ARGUMENT_TOO_LARGE"
    """The arguments of this one row do not fit into a message."""
    SERVER_UNAVAILABLE = "SERVER_UNAVAILABLE"
    """No server answered for this row within its deadline."""
    BUDGET_SPENT = "BUDGET_SPENT"
    """The function was not called for this row, because the budget of the job is spent."""
    BUDGET_UNAVAILABLE = "BUDGET_UNAVAILABLE"
    """The function was not called for this row within its deadline, because its budget could not be counted."""
    CACHE_UNAVAILABLE = "CACHE_UNAVAILABLE"
    """The function was not called for this row within its deadline, because `cache-required` forbids it."""

    # Codes of streams.
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    FUNCTION_CHANGED = "FUNCTION_CHANGED"
    """The function's types differ from those the job was planned with."""
    ARGUMENT_COUNT = "ARGUMENT_COUNT"
    ARGUMENT_TYPE = "ARGUMENT_TYPE"
    INVALID_OPTION = "INVALID_OPTION"
    PLUGIN_FAILED = "PLUGIN_FAILED"
    """The plugin was edited, and cannot be imported as it is now."""
    OPEN_FAILED = "OPEN_FAILED"
    """The function's `open` hook raised."""
    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    UNSUPPORTED_PROTOCOL = "UNSUPPORTED_PROTOCOL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    """The server does not know the caller."""
    PERMISSION_DENIED = "PERMISSION_DENIED"
    """The server knows the caller, who may not call this function."""
    OVERLOADED = "OVERLOADED"
    """The server has no room for this stream or no thread left for this function."""
    IDLE = "IDLE"
    """For too long, the client sent nothing and waited for nothing, or read nothing of what the server sent."""
    SHUTTING_DOWN = "SHUTTING_DOWN"
    INTERNAL = "INTERNAL"
    """A bug of the server."""

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        # The enum must not store the new member: codes come from the network, and enums are never released.
        if not isinstance(value, str) or not _CODE.fullmatch(value):
            return None
        code = str.__new__(cls, value)
        code._name_ = code._value_ = value
        return code

    def __reduce_ex__(self, protocol: object) -> tuple[type["ErrorCode"], tuple[str]]:
        # Members are pickled by value: Python 3.11 pickles them by name, and only known codes have names.
        return ErrorCode, (self.value,)


class RemoteUdfError(Exception):
    """Root of every error that this project raises on purpose."""


class InvalidCall(RemoteUdfError, ValueError):
    """A call of a process table function does not match its declaration. The message names function and argument."""


class InvalidOption(RemoteUdfError, ValueError):
    """An option is unknown or malformed, or cannot be combined with another option."""


class UnsupportedType(RemoteUdfError, TypeError):
    """A type cannot be sent to or returned from a remote function."""


class ProtocolViolation(RemoteUdfError):
    """The other end sent something that the protocol does not allow at that point."""


class StreamError(RemoteUdfError):
    """A stream ended with an Error message.

    `retryable` says whether the same stream may succeed later or on another server. `retry_after` is the number of
    seconds to wait before that, or None if the server did not give it.
    """

    def __init__(
        self,
        kind: ErrorKind,
        code: ErrorCode,
        message: str,
        *,
        traceback: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.kind = kind
        self.code = code
        self.message = message
        self.traceback = traceback
        self.retryable = retryable
        self.retry_after = retry_after


def capped(text: str, limit: int = TRACEBACK_LIMIT) -> str:
    """Return `text`, or its first and last parts with a note between, so that both ends of a traceback are kept."""
    if len(text) <= limit:
        return text
    head = limit // 3
    tail = limit - head
    return f"{text[:head]}\n... {len(text) - limit} characters cut ...\n{text[-tail:]}"
