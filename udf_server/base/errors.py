"""Errors of the server and of plugins.

RemoteUdfError                  (remote_udf.errors)
├── RetryableError              a function says: call me again for this row
│   └── CircuitOpen             its guard says so: what it calls has only failed lately
├── PluginError                 a plugin cannot be used; the start stops, nothing was served
│   ├── DeclarationError        a function is declared wrongly; its author must change it
│   ├── PluginImportError       a plugin's code could not be imported
│   └── FunctionClash           two functions of one name and version
├── InvalidSetting              an environment variable of a plugin is missing or malformed; the operator must change it
├── InvalidConfig               a setting is unknown, malformed or invalid; the operator must change it
└── FunctionBlocked             a function holds more threads than it may lose; the server must be restarted
"""

from remote_udf.errors import RemoteUdfError

__all__ = [
    "CircuitOpen",
    "DeclarationError",
    "FunctionBlocked",
    "FunctionClash",
    "InvalidConfig",
    "InvalidSetting",
    "PluginError",
    "PluginImportError",
    "RetryableError",
]


class RetryableError(RemoteUdfError):
    """Raise it from a function when another attempt may succeed.

    `retry_after` is the shortest wait before that, in seconds: what a service says in its
    Retry-After header. A longer delay of the retry strategy wins.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CircuitOpen(RetryableError):
    """The function was not called: too many calls in a row have failed. `retry_after` says when one may try again."""


class PluginError(RemoteUdfError):
    """A plugin cannot be used. The message names the plugin and the function."""


class DeclarationError(PluginError):
    """A function's declaration is wrong. The message names function and parameter."""


class PluginImportError(PluginError):
    """A plugin could not be imported; the cause is chained."""


class FunctionClash(PluginError):
    """Two plugins provide a function of one name and version. Block one of them, or rename."""


class InvalidConfig(RemoteUdfError, ValueError):
    """A setting of the server is unknown, malformed or invalid."""


class InvalidSetting(RemoteUdfError, ValueError):
    """An environment variable of a plugin is missing or malformed. The message names it and never shows its value."""


class FunctionBlocked(RemoteUdfError):
    """Calls of a function never came back and hold as many threads as the server may lose to it."""
