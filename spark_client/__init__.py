"""The public names for PySpark jobs: `from spark_client import connect`."""

from remote_udf.version import __version__
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
