"""What plugin authors import: `import udf_server as udf`."""

from remote_udf.row_kinds import RowKind
from remote_udf.version import __version__
from udf_server.aggregates.base import AggregateFunction, BundledAggregateFunction, VectorizedAggregateFunction
from udf_server.aggregates.bundle import Bundle
from udf_server.aggregates.segments import BundledKeySegment, BundledKeySegmentApplied
from udf_server.context import CallContext
from udf_server.errors import DeclarationError, PluginError, RetryableError
from udf_server.functions import Function
from udf_server.hookspecs import hookimpl
from udf_server.scalar import scalar

__all__ = [
    "AggregateFunction",
    "Bundle",
    "BundledAggregateFunction",
    "BundledKeySegment",
    "BundledKeySegmentApplied",
    "CallContext",
    "DeclarationError",
    "Function",
    "PluginError",
    "RetryableError",
    "RowKind",
    "VectorizedAggregateFunction",
    "__version__",
    "hookimpl",
    "scalar",
]
