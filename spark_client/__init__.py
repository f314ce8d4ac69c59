"""The public names for PySpark jobs: `from spark_client import connect`."""

import importlib
import typing

from remote_udf.version import __version__

if typing.TYPE_CHECKING:
    from spark_client.base.errors import (
        AccessDenied,
        EmbeddedServerFailed,
        NotARemoteUdfServer,
        PlanError,
        ServerUnavailable,
        SummaryUnavailable,
        UnknownFunction,
    )
    from spark_client.base.security import Security
    from spark_client.connecting import connect
    from spark_client.functions.aggregate import AggregateExpression, RemoteAggregate
    from spark_client.functions.scalar import RemoteFunction
    from spark_client.functions.window import Window, desc
    from spark_client.planning.aggregate.grouping import RemoteGrouping
    from spark_client.session import RemoteSession
    from spark_client.summary.job_summary import JobSummary

__all__ = [
    "AccessDenied",
    "AggregateExpression",
    "EmbeddedServerFailed",
    "JobSummary",
    "NotARemoteUdfServer",
    "PlanError",
    "RemoteAggregate",
    "RemoteFunction",
    "RemoteGrouping",
    "RemoteSession",
    "Security",
    "ServerUnavailable",
    "SummaryUnavailable",
    "UnknownFunction",
    "Window",
    "__version__",
    "connect",
    "desc",
]

_MODULES = {
    "base.errors": [
        "AccessDenied", "EmbeddedServerFailed", "NotARemoteUdfServer", "PlanError", "ServerUnavailable",
        "SummaryUnavailable", "UnknownFunction",
    ],
    "base.security": ["Security"],
    "connecting": ["connect"],
    "functions.aggregate": ["AggregateExpression", "RemoteAggregate"],
    "functions.scalar": ["RemoteFunction"],
    "functions.window": ["Window", "desc"],
    "planning.aggregate.grouping": ["RemoteGrouping"],
    "session": ["RemoteSession"],
    "summary.job_summary": ["JobSummary"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Python's workers import `spark_client.executor` only. The planners and their parser of SQL would take each new
    # worker half a second of CPU time, so they are imported when a job uses a public name.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
