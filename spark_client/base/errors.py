"""Errors a Spark job meets.

    RemoteUdfError                  (remote_udf.errors)
    ├── ServerUnavailable           no server answers at the target, or not in time; try again later
    ├── AccessDenied                the server does not know this caller; correct token or certificate
    ├── NotARemoteUdfServer         something else answers at the target; correct the target
    ├── EmbeddedServerFailed        the server that connect() starts by default did not start
    ├── UnknownFunction             the server has no function of that name and version
    ├── PlanError                   a call cannot be planned: arguments, types, or what it is used with
    ├── SummaryUnavailable          this Spark session cannot report what tasks did
    ├── FunctionFailed              a row failed and the policy is to fail
    ├── ErrorBudgetExceeded         more rows failed than the caller allows
    ├── DeadLetterFailed            failed rows cannot be written where the caller wants them; correct the path
    ├── StateMismatch               the state of a checkpoint is not of this function as it is now; start a new one
    └── AccountingMismatch          rows that went in and outcomes that came out differ; a bug, never ignored

The first seven are raised on the driver. The others are raised in an executor: what reaches the driver
is Spark's own PythonException with their text.
"""

from remote_udf.errors import RemoteUdfError

__all__ = [
    "AccessDenied",
    "AccountingMismatch",
    "DeadLetterFailed",
    "EmbeddedServerFailed",
    "ErrorBudgetExceeded",
    "FunctionFailed",
    "NotARemoteUdfServer",
    "PlanError",
    "ServerUnavailable",
    "StateMismatch",
    "SummaryUnavailable",
    "UnknownFunction",
]


class ServerUnavailable(RemoteUdfError):
    """No server answers at the target, or a server stopped answering and did not recover in time."""


class AccessDenied(RemoteUdfError, PermissionError):
    """The server rejects this caller, or the token or certificate cannot be read on this machine."""


class NotARemoteUdfServer(RemoteUdfError):
    """What answers at the target does not speak this protocol."""


class EmbeddedServerFailed(RemoteUdfError):
    """The embedded server did not start; the message ends with what it wrote."""


class UnknownFunction(RemoteUdfError, LookupError):
    """The server has no such function, or not in that version; the message lists what it has."""


class PlanError(RemoteUdfError, ValueError):
    """A call cannot be planned. The message names the function and the argument or column."""


class SummaryUnavailable(RemoteUdfError, NotImplementedError):
    """The session is one of Spark Connect, without accumulators for tasks to report in, and no directory was given."""


class FunctionFailed(RemoteUdfError):
    """A row failed. The message names function, version, arguments, attempts and the remote traceback."""


class ErrorBudgetExceeded(RemoteUdfError):
    """More rows of a task failed than `max-errors` or `max-error-rate` allow."""


class DeadLetterFailed(RemoteUdfError, OSError):
    """Failed rows cannot be written. The message names the option, the path and what the file system says."""


class StateMismatch(RemoteUdfError):
    """A checkpoint has state that this call cannot use; the message names uid, entry, what was found and expected."""


class AccountingMismatch(RemoteUdfError):
    """The server's counts of rows and outcomes are not those of this end."""
