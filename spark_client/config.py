"""ClientConfig: how to reach a server. Travels to the executors inside plans, so it holds no secret."""

from dataclasses import dataclass

__all__ = ["ClientConfig"]


@dataclass(frozen=True)
class ClientConfig:
    """Where the server is and how long to wait for it."""

    target: str
    """A gRPC target: "host:port", "unix:/path", "dns:///name:port"."""
    connect_seconds: float = 10.0
    """How long a first answer may take, on the driver and in every task."""
