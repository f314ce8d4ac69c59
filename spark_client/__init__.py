"""What PySpark jobs import: `from spark_client import connect`."""

from remote_udf.version import __version__
from spark_client.aggregate import AggregateExpression, RemoteAggregate
from spark_client.errors import (
    AccessDenied,
    EmbeddedServerFailed,
    NotARemoteUdfServer,
    PlanError,
    ServerUnavailable,
    SummaryUnavailable,
    UnknownFunction,
)
from spark_client.grouping import RemoteGrouping
from spark_client.over import Window, desc
from spark_client.scalar import RemoteFunction
from spark_client.security import Security
from spark_client.session import RemoteSession, connect
from spark_client.summary import JobSummary

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
