"""Errors that a Spark job can raise.

    RemoteUdfError                  (remote_udf.errors)
    ├── ServerUnavailable           no server at the target answers in time; try again later
    ├── AccessDenied                the server rejects this caller; correct the token or the certificate
    ├── NotARemoteUdfServer         another kind of server answers, or only one side uses TLS; correct the target or TLS
    ├── EmbeddedServerFailed        the server that connect() starts did not start, or an edited plugin does not import
    ├── UnknownFunction             the server has no function with that name and version
    ├── PlanError                   a call cannot be planned because of its arguments, its types or where it is used
    ├── SummaryUnavailable          the tasks of this Spark session cannot report statistics
    ├── FunctionFailed              a row failed and the policy is to fail
    ├── BudgetExceeded              the session has spent its budget, and the policy is to fail
    ├── BudgetNotKept               the servers cannot keep a budget together; see the message
    ├── ErrorBudgetExceeded         more rows failed than the caller allows
    ├── DeadLetterFailed            failed rows cannot be written to the given path; correct the path
    ├── ReadFailed                  a worker cannot read a file of `read_parquet` as Spark would; see the message
    ├── InvalidVector               vectors of VECTOR_SEARCH cannot be compared; see the message
    ├── WriteFailed                 files of `write_parquet` cannot be written, or its path is in use; see the message
    ├── StateMismatch               the function has changed and cannot use the checkpoint's state; start a new one
    └── AccountingMismatch          the counts of rows and outcomes differ; this is a bug and is never ignored

The first seven are raised on the driver. The others are raised in an executor: the driver receives
Spark's own PythonException with their text. `write_parquet` also raises WriteFailed on the driver.
"""

from remote_udf.errors import RemoteUdfError

__all__ = [
    "AccessDenied",
    "AccountingMismatch",
    "BudgetExceeded",
    "BudgetNotKept",
    "DeadLetterFailed",
    "EmbeddedServerFailed",
    "ErrorBudgetExceeded",
    "FunctionFailed",
    "InvalidVector",
    "NotARemoteUdfServer",
    "PlanError",
    "ReadFailed",
    "ServerUnavailable",
    "StateMismatch",
    "SummaryUnavailable",
    "UnknownFunction",
    "WriteFailed",
]


class ServerUnavailable(RemoteUdfError):
    """No server answers at the target, or a server stopped answering and did not recover in time."""


class AccessDenied(RemoteUdfError, PermissionError):
    """The server rejects this caller, or the token or certificate cannot be read on this machine."""


class NotARemoteUdfServer(RemoteUdfError):
    """What answers at the target does not speak this protocol, or the two sides do not agree on TLS."""


class EmbeddedServerFailed(RemoteUdfError):
    """The embedded server did not start, or cannot import a plugin that was edited.

    The message ends with the end of its log, or with the traceback.
    """


class UnknownFunction(RemoteUdfError, LookupError):
    """The server does not have the function, or not in that version; the message lists what it has."""


class PlanError(RemoteUdfError, ValueError):
    """A call cannot be planned. The message names the function and the argument or column."""


class SummaryUnavailable(RemoteUdfError, NotImplementedError):
    """Spark Connect has no accumulators in which tasks could report, and no directory was given."""


class FunctionFailed(RemoteUdfError):
    """A row failed. The message shows the function, its version, the arguments, the attempts and the traceback."""


class BudgetExceeded(RemoteUdfError):
    """The session has spent its `budget`. The message shows the unit, what was spent and what was allowed."""


class BudgetNotKept(RemoteUdfError):
    """The servers do not count the `budget` of a session together. The message shows what to set."""


class ErrorBudgetExceeded(RemoteUdfError):
    """More rows of a task failed than `max-errors` or `max-error-rate` allow."""


class DeadLetterFailed(RemoteUdfError, OSError):
    """Failed rows cannot be written. The message shows the option, the path and the error of the file system."""


class ReadFailed(RemoteUdfError):
    """A worker cannot read a Parquet file. The message shows the file, the column, what was found and what to do."""


class InvalidVector(RemoteUdfError, ValueError):
    """Vectors that VECTOR_SEARCH compares have different lengths, or nulls in them."""


class WriteFailed(RemoteUdfError, OSError):
    """Parquet files cannot be written or published. The message shows the path, what was found and what to do."""


class StateMismatch(RemoteUdfError):
    """This call cannot use a checkpoint's state. The message shows uid, entry, what was found and what is expected."""


class AccountingMismatch(RemoteUdfError):
    """The server's counts of rows and outcomes differ from the client's counts."""
