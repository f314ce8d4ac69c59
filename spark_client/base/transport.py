"""Transport: the network as one method, so that tests and the target "local:..." need none."""

from collections.abc import Container, Iterator, Sequence
from typing import Protocol

from remote_udf.v1 import service_pb2

__all__ = ["Responses", "Transport", "TransportLost"]


class TransportLost(Exception):
    """The connection broke or was never made; whatever was in flight may be sent again."""


class Responses(Protocol):
    """The responses of one stream."""

    same_host: bool
    """Whether the server seems to be on this host."""
    server: str
    """The address of the server, as `Transport.servers` lists it."""

    def __next__(self) -> bytes:
        """The next message. Blocks. Raises StopIteration at the end, TransportLost, or an error of spark_client."""
        ...

    def cancel(self) -> None:
        """Gives the stream up; a blocked __next__ raises TransportLost. From any thread, safe to call twice."""
        ...

    def distrust(self, seconds: float = 0.0) -> None:
        """The server behind it was lost or sends streams away: the next ones go elsewhere for a while."""
        ...


class Transport(Protocol):
    """A way to a server."""

    def servers(self) -> Sequence[str]:
        """The addresses of the servers that streams may go to. Raises TransportLost if none is known."""
        ...

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = ()) -> Responses:
        """Opens an Execute stream, on a server that is not one to `avoid` if there is such a one.

        `requests` is consumed on another thread.
        """
        ...

    def list_functions(self, seconds: float) -> Sequence[service_pb2.ListFunctionsResponse]:
        """What each server that answers offers; at least one answer.

        Raises TransportLost after `seconds` at most, or an error of spark_client, if no server answers.
        """
        ...
