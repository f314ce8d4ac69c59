"""What plugin authors import: `import udf_server as udf`."""

from remote_udf.result_columns import column_named_by, columns_of
from remote_udf.row_kinds import RowKind
from remote_udf.table_arguments import ArgumentTrait, ChangelogMode
from remote_udf.version import __version__
from udf_server.aggregates.base import AggregateFunction, BundledAggregateFunction, VectorizedAggregateFunction
from udf_server.aggregates.bundle import Bundle
from udf_server.aggregates.segments import BundledKeySegment, BundledKeySegmentApplied
from udf_server.context import CallContext
from udf_server.errors import DeclarationError, PluginError, RetryableError
from udf_server.functions import Function
from udf_server.hookspecs import hookimpl
from udf_server.scalar import scalar
from udf_server.tables.base import ProcessTableFunction, StateHint
from udf_server.tables.context import ProcessContext
from udf_server.tables.rows import Row
from udf_server.tables.views import ListView, MapView, ValueView

__all__ = [
    "AggregateFunction",
    "ArgumentTrait",
    "Bundle",
    "BundledAggregateFunction",
    "BundledKeySegment",
    "BundledKeySegmentApplied",
    "CallContext",
    "ChangelogMode",
    "DeclarationError",
    "Function",
    "ListView",
    "MapView",
    "PluginError",
    "ProcessContext",
    "ProcessTableFunction",
    "RetryableError",
    "Row",
    "RowKind",
    "StateHint",
    "ValueView",
    "VectorizedAggregateFunction",
    "__version__",
    "column_named_by",
    "columns_of",
    "hookimpl",
    "scalar",
]
