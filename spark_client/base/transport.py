"""Transport: an interface to the network, so that tests and the target "local:..." can replace it."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from remote_udf.v1 import service_pb2
from spark_client.base.server_load import ServerLoad

__all__ = ["Place", "Question", "Responses", "Transport", "TransportLost"]


class TransportLost(Exception):
    """The connection was lost or never established; rows in flight may be sent again."""


class Place(NamedTuple):
    """Where a stream is opened: at one server."""

    server: str
    """The address of the server, as `Transport.servers` lists it."""
    address: str = ""
    """Another port of its host, if the server has sent the stream there."""
    route: str = ""
    """What the process at this port is called."""


class Question(Protocol):
    """Loads that servers were asked for, without waiting."""

    @property
    def done(self) -> bool:
        """Whether every server has answered or failed."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait up to this time for each answer. Later answers still count."""
        ...

    def answers(self) -> Mapping[str, ServerLoad]:
        """The loads by address, of the servers that have told one. Call once, when it is done."""
        ...

    def cancel(self) -> None:
        """Give up. Safe to call twice."""
        ...


class Responses(Protocol):
    """The responses of one stream."""

    same_host: bool
    """Whether the server is probably on this host."""
    server: str
    """The address of the server, as `Transport.servers` lists it."""

    def __next__(self) -> bytes:
        """Wait for the next message. Raises StopIteration at the end, TransportLost, or an error of spark_client."""
        ...

    def cancel(self) -> None:
        """Cancel the stream; a blocked __next__ raises TransportLost. Any thread may call it, also several times."""
        ...

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        """Skip the server of this stream for a while, because it was lost or rejects streams.

        `leave` if another process takes over its address: the next stream to it needs a new connection.
        """
        ...


class Transport(Protocol):
    """A connection to one or several servers."""

    def servers(self) -> Sequence[str]:
        """The addresses of the servers that streams may use. Raises TransportLost if none is known."""
        ...

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = (), place: Place | None = None) -> Responses:
        """Open an Execute stream at this place, otherwise, if possible, on a server that is not in `avoid`.

        Another thread reads `requests`. Raises TransportLost.
        """
        ...

    def ask_loads(self, server: str) -> Question | None:
        """Ask this server and another one, chosen at random, for their loads. None if there is no other one."""
        ...

    def heard_load(self, server: str, load: ServerLoad) -> None:
        """Remember the load that a server has told a stream."""
        ...

    def list_functions(self, seconds: float) -> Sequence[service_pb2.ListFunctionsResponse]:
        """The functions of each server that answers; there is at least one answer.

        Raises TransportLost after `seconds` at most, or an error of spark_client, if no server answers.
        """
        ...
