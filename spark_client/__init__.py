"""The public names for PySpark jobs: `from spark_client import connect`."""

import functools
import importlib
import os
import sys
import typing

if sys.version_info < (3, 11):  # noqa: UP036 - a path of modules may be given to any Python
    raise ImportError(f"remote-udf needs Python 3.11 or later, found {sys.version.split()[0]}")

from remote_udf.version import __version__

# gRPC reads it once, when it is imported: in the driver, and in Spark's workers, which import this package for their
# plans. Below errors it has lines for connections that were idle, which concern nobody.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

if typing.TYPE_CHECKING:
    from spark_client.base.errors import (
        AccessDenied,
        EmbeddedServerFailed,
        NotARemoteUdfServer,
        PlanError,
        ServerUnavailable,
        SummaryUnavailable,
        UnknownFunction,
        WriteFailed,
    )
    from spark_client.base.root_cause import root_cause
    from spark_client.base.security import Security
    from spark_client.connecting import connect
    from spark_client.functions.aggregate import AggregateExpression, RemoteAggregate
    from spark_client.functions.scalar import RemoteFunction
    from spark_client.functions.window import Window, desc
    from spark_client.models.cascade import Cascade
    from spark_client.models.estimate import Estimate
    from spark_client.planning.aggregate.grouping import RemoteGrouping
    from spark_client.session import RemoteSession
    from spark_client.summary.job_summary import JobSummary

__all__ = [
    "AccessDenied",
    "AggregateExpression",
    "Cascade",
    "EmbeddedServerFailed",
    "Estimate",
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
    "WriteFailed",
    "__version__",
    "connect",
    "desc",
    "root_cause",
]

_MODULES = {
    "base.errors": [
        "AccessDenied", "EmbeddedServerFailed", "NotARemoteUdfServer", "PlanError", "ServerUnavailable",
        "SummaryUnavailable", "UnknownFunction", "WriteFailed",
    ],
    "base.root_cause": ["root_cause"],
    "base.security": ["Security"],
    "connecting": ["connect"],
    "functions.aggregate": ["AggregateExpression", "RemoteAggregate"],
    "models.cascade": ["Cascade"],
    "functions.scalar": ["RemoteFunction"],
    "functions.window": ["Window", "desc"],
    "planning.aggregate.grouping": ["RemoteGrouping"],
    "models.estimate": ["Estimate"],
    "session": ["RemoteSession"],
    "summary.job_summary": ["JobSummary"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Python's workers import `spark_client.executor` only. The planners and their parser of SQL would take each new
    # worker half a second of CPU time, so they are imported when a job uses a public name.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require_packages()
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


@functools.cache
def _require_packages() -> None:
    importlib.import_module(f"{__name__}.base.requirements").require_packages()


def __dir__() -> list[str]:
    return __all__
