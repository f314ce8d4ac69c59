"""Errors of the server and of plugins.

RemoteUdfError                  (remote_udf.errors)
├── RetryableError              a function asks to be called again for this row
│   └── CircuitOpen             a guard did not call the function, because the latest calls have all failed
├── BudgetSpent                 a function was not called, because the budget of the job is spent
├── Failure                     one row of a call has failed; it may be returned in place of the row's value
├── RowErrors                   some rows of a call have failed, each with its own error
├── PluginError                 a plugin cannot be used; the server does not start
│   ├── DeclarationError        a function is declared wrongly; its author must change it
│   ├── PluginImportError       a plugin's code could not be imported
│   └── FunctionClash           two functions have the same name and version
├── InvalidCost                 the cost of a call is not an amount of at least 0; the function's author must change it
├── InvalidSetting              an environment variable of a plugin is missing or malformed; the operator must change it
├── InvalidConfig               a setting is unknown, malformed or invalid; the operator must change it
└── FunctionBlocked             a function holds more threads than it may lose; the server must be restarted
"""

from collections.abc import Mapping
from typing import Any

from remote_udf.errors import RemoteUdfError

__all__ = [
    "BudgetSpent",
    "CircuitOpen",
    "DeclarationError",
    "Failure",
    "FunctionBlocked",
    "FunctionClash",
    "InvalidConfig",
    "InvalidCost",
    "InvalidSetting",
    "PluginError",
    "PluginImportError",
    "RetryableError",
    "RowErrors",
]


class RetryableError(RemoteUdfError):
    """Raise it from a function when another attempt may succeed.

    `retry_after` is the minimum delay before that attempt, in seconds, such as the Retry-After header
    of a service. If the delay of the retry strategy is longer, that delay is used.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Failure(RemoteUdfError):
    """The outcome of a row that failed. A list function returns it in place of the row's value; it can also be raised.

    The caller sees `message`. With `retryable`, the row alone is called again, as after a RetryableError.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class RowErrors(RemoteUdfError):
    """Raise it from a function that is called for many rows when only some of them have failed.

    `errors` has the exception of each failed row by its position in the call. `values` is what the function would
    have returned: one value per row, of which those of failed rows are ignored. Without `values`, the other rows are
    called again.
    """

    def __init__(self, errors: Mapping[int, BaseException], values: Any = None) -> None:
        first = next((f", such as row {row}: {error!r}" for row, error in errors.items()), "")
        super().__init__(f"{len(errors)} rows failed{first}")
        self.errors = errors
        self.values = values


class BudgetSpent(RemoteUdfError):
    """The function was not called, because the job has spent its budget. The message has the unit and both amounts."""


class CircuitOpen(RetryableError):
    """The function was not called, as too many consecutive calls have failed. Retry after `retry_after` seconds."""


class PluginError(RemoteUdfError):
    """A plugin cannot be used. The message names the plugin and the function."""


class DeclarationError(PluginError):
    """A function's declaration is wrong. The message names function and parameter."""


class PluginImportError(PluginError):
    """A plugin could not be imported; the cause is chained."""


class FunctionClash(PluginError):
    """Two plugins provide a function with the same name and version. Block one plugin, or rename a function."""


class InvalidConfig(RemoteUdfError, ValueError):
    """A setting of the server is unknown, malformed or invalid."""


class InvalidCost(RemoteUdfError, ValueError):
    """What `cost` returned, or a call has spent, is not an amount of at least 0 of a unit; or `cost` has raised."""


class InvalidSetting(RemoteUdfError, ValueError):
    """An environment variable of a plugin is missing or malformed. The message names it and never shows its value."""


class FunctionBlocked(RemoteUdfError):
    """The maximum number of calls that do not return is reached; each of them may hold a thread."""
