"""What PySpark jobs import: `from spark_client import connect`."""

from remote_udf.version import __version__
from spark_client.errors import (
    EmbeddedServerFailed,
    NotARemoteUdfServer,
    PlanError,
    ServerUnavailable,
    UnknownFunction,
)
from spark_client.scalar import RemoteFunction
from spark_client.session import RemoteSession, connect

__all__ = [
    "EmbeddedServerFailed",
    "NotARemoteUdfServer",
    "PlanError",
    "RemoteFunction",
    "RemoteSession",
    "ServerUnavailable",
    "UnknownFunction",
    "__version__",
    "connect",
]
