"""Errors of the server and of plugins.

RemoteUdfError                  (remote_udf.errors)
├── RetryableError              a function asks to be called again for this row
│   └── CircuitOpen             a guard did not call the function, because the latest calls have all failed
├── PluginError                 a plugin cannot be used; the server does not start
│   ├── DeclarationError        a function is declared wrongly; its author must change it
│   ├── PluginImportError       a plugin's code could not be imported
│   └── FunctionClash           two functions have the same name and version
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

    `retry_after` is the minimum delay before that attempt, in seconds, such as the Retry-After header
    of a service. If the delay of the retry strategy is longer, that delay is used.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


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


class InvalidSetting(RemoteUdfError, ValueError):
    """An environment variable of a plugin is missing or malformed. The message names it and never shows its value."""


class FunctionBlocked(RemoteUdfError):
    """The maximum number of calls that do not return is reached; each of them may hold a thread."""
