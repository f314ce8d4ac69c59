"""The public names for plugin authors: `import udf_server as udf`."""

from remote_udf.result_columns import column_named_by, columns_of, kinds_named_by
from remote_udf.row_kinds import ChangelogMode, RowKind
from remote_udf.table_arguments import ArgumentTrait
from remote_udf.version import __version__
from udf_server.aggregate.base import (
    AggregateFunction,
    BundledAggregateFunction,
    BundledKeySegment,
    BundledKeySegmentApplied,
    VectorizedAggregateFunction,
)
from udf_server.aggregate.bundle import Bundle
from udf_server.base.context import BatchContext, CallContext
from udf_server.base.errors import DeclarationError, Failure, PluginError, RetryableError, RowErrors
from udf_server.base.key_value_store import KeyValueEntry, KeyValueError, KeyValueStore
from udf_server.declaring.declaration import scalar
from udf_server.declaring.functions import Function
from udf_server.declaring.hooks import FunctionContext
from udf_server.plugins.hookspecs import hookimpl
from udf_server.plugins.metrics import Counter, Gauge, Histogram, counter, gauge, histogram
from udf_server.process.base import ProcessTableFunction, Row, StateHint
from udf_server.process.context import ProcessContext
from udf_server.process.views import ListView, MapView, ValueView

__all__ = [
    "AggregateFunction",
    "ArgumentTrait",
    "BatchContext",
    "Bundle",
    "BundledAggregateFunction",
    "BundledKeySegment",
    "BundledKeySegmentApplied",
    "CallContext",
    "ChangelogMode",
    "Counter",
    "DeclarationError",
    "Failure",
    "Function",
    "FunctionContext",
    "Gauge",
    "Histogram",
    "KeyValueEntry",
    "KeyValueError",
    "KeyValueStore",
    "ListView",
    "MapView",
    "PluginError",
    "ProcessContext",
    "ProcessTableFunction",
    "RetryableError",
    "Row",
    "RowErrors",
    "RowKind",
    "StateHint",
    "ValueView",
    "VectorizedAggregateFunction",
    "__version__",
    "column_named_by",
    "columns_of",
    "counter",
    "gauge",
    "histogram",
    "hookimpl",
    "kinds_named_by",
    "scalar",
]
