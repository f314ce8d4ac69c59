"""What plugin authors import: `import udf_server as udf`."""

from remote_udf.version import __version__
from udf_server.context import CallContext
from udf_server.errors import DeclarationError, PluginError, RetryableError
from udf_server.functions import Function
from udf_server.hookspecs import hookimpl
from udf_server.scalar import scalar

__all__ = [
    "CallContext",
    "DeclarationError",
    "Function",
    "PluginError",
    "RetryableError",
    "__version__",
    "hookimpl",
    "scalar",
]
