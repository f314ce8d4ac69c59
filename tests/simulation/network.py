"""A seeded network between clients and servers: the messages of gRPC streams, and what can happen to them.

The client's own `GrpcTransport`, `Channels` and `Endpoints` run on it; gRPC itself is what is simulated.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import grpc

from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.threads import SimulatedThreads

__all__ = ["Link", "Network", "Path", "SimulatedChannel", "UnaryCall"]

WINDOW = 8
"""Messages that a sender may be ahead of its receiver: gRPC's flow control."""
UPDATE = 4
"""A receiver says after this many messages that it has read them."""
KEEPALIVE_SECONDS = (10.0, 15.0)
"""A client finds out within this time that nothing comes back; see `channels.py`."""
SERVER_KEEPALIVE_SECONDS = (20.0, 40.0)
CONNECT_SECONDS = 20.0
"""gRPC gives up a connection that is not answered after this time."""


class RpcLost(grpc.RpcError):
    """What gRPC raises if a stream ends otherwise than well."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Link:
    """The way between one client and one server. Its settings are changed by faults."""

    def __init__(self, scheduler: Scheduler, client: str, server: str) -> None:
        self.name = f"{client}-{server}"
        self._random = scheduler.random(f"link {self.name}")
        self.latency = (0.0001, 0.002)
        self.bytes_per_second = 1e9
        self.dropped = [False, False]
        """Whether nothing reaches the server, and whether nothing reaches the client."""
        self.streams: dict[Any, None] = {}
        self.paths: dict[Path, None] = {}

    def seconds(self, size: int) -> float:
        return self._random.uniform(*self.latency) + (size // 1024) * 1024 / self.bytes_per_second

    def drop(self, to_server: bool, to_client: bool) -> None:
        """Let nothing through in these directions, or let it through again: TCP then repeats what was lost."""
        self.dropped = [to_server, to_client]
        for path in list(self.paths):
            path.flush()


class Path:
    """One direction of one stream. What is sent arrives in order, after the link's latency."""

    def __init__(self, scheduler: Scheduler, link: Link, direction: int, network: Process) -> None:
        self._scheduler, self._link, self._direction, self._network = scheduler, link, direction, network
        self._last = 0.0
        self._closed = self._ended = self._late = False
        self._held: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        link.paths[self] = None

    def send(self, size: int, deliver: Callable[..., object], *arguments: Any) -> None:
        if self._ended:
            return
        self._last = max(self._last, self._scheduler.now + self._link.seconds(size))
        self._scheduler.at(self._last, self._network, self._arrive, deliver, arguments)

    def close(self) -> None:
        self._closed = self._ended = True
        self._link.paths.pop(self, None)
        self._held.clear()

    def delay(self, seconds: float) -> None:
        """Take nothing more. What is on its way arrives, but not before this time has passed."""
        self._ended = self._late = True
        self._network.after(seconds, self._hurry)

    def _hurry(self) -> None:
        self._late = False
        self.flush()

    def flush(self) -> None:
        while self._held and not (self._late or self._link.dropped[self._direction]):
            deliver, arguments = self._held.popleft()
            deliver(*arguments)

    def _arrive(self, deliver: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self._closed:
            return
        if self._held or self._late or self._link.dropped[self._direction]:
            self._held.append((deliver, arguments))
        else:
            deliver(*arguments)


class Network:
    """The links of a world, and the servers that listen."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.process = Process(scheduler, "network")
        self.listening: dict[str, Any] = {}
        """Address to the server that accepts streams there."""
        self.links: dict[tuple[str, str], Link] = {}
        self.opened = 0
        self.unreachable: dict[str, None] = {}
        """Addresses to which no new link lets anything through."""
        self.callers: Callable[[str], str] = str
        """The caller to which the process of a client belongs."""

    def link(self, client: str, server: str) -> Link:
        key = (client, server)
        if key not in self.links:
            self.links[key] = Link(self.scheduler, client, server)
            self.links[key].dropped = [server in self.unreachable] * 2
        return self.links[key]

    def links_of(self, server: str) -> list[Link]:
        return [self.links[key] for key in sorted(key for key in self.links if key[1] == server)]

    def cut(self, link: Link, *, client: bool = True, server: bool = True, late: float | None = None) -> None:
        """Break the connections of a link. An end that does not notice at once does so by its keepalive.

        With `late`, what the clients have sent still arrives, after this time.
        """
        for stream in list(link.streams):
            stream.cut(client, server, late)

    def reset(self, address: str) -> None:
        """The process that listened there has ended: its host says so to every client."""
        self.listening.pop(address, None)
        for link in self.links_of(address):
            for stream in list(link.streams):
                stream.cut(client=True, server=False)

    def hang_up(self, client: str) -> None:
        """The process of a client has ended: its host says so to every server."""
        for (name, _), link in sorted(self.links.items()):
            if name == client:
                self.cut(link)

    def stall(self, link: Link) -> None:
        """Have the keepalive of both ends look whether the other one answers."""
        for stream in list(link.streams):
            stream.watch()


class SimulatedChannel:
    """What `Channels` needs of a gRPC channel."""

    def __init__(self, network: Network, threads: SimulatedThreads, address: str, random: Random) -> None:
        self._network, self._threads, self._address, self._random = network, threads, address, random
        self.closed = False

    def stream_stream(self, method: str) -> Callable[..., "ClientStream"]:
        def begin(requests: Iterator[bytes], metadata: Any) -> ClientStream:
            return ClientStream(self._network, self._threads, self._address, requests, self._random)

        return begin

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any) -> "UnaryMethod":
        return UnaryMethod(self._network, self._threads, self._address)

    def close(self) -> None:
        self.closed = True


class UnaryMethod:
    """What a `grpc.UnaryUnaryMultiCallable` is to the transport."""

    def __init__(self, network: Network, threads: SimulatedThreads, address: str) -> None:
        self._network, self._threads, self._address = network, threads, address

    def future(self, request: Any, timeout: float, metadata: Any) -> "UnaryCall":
        return UnaryCall(self._network, self._threads, self._address, request, timeout)


class UnaryCall:
    """A call of GetProgress. A frozen or unreachable server does not answer it until its timeout."""

    def __init__(self, network: Network, threads: SimulatedThreads, address: str, request: Any, timeout: float) -> None:
        self._network, self._address, self._request = network, address, request
        self._client = threads.process
        self._link = network.link(threads.process.name, address)
        self._ended = threads.event()
        self._outcome: Any = None
        self._callbacks: list[Callable[[], None]] = []
        network.process.after(self._link.seconds(0), self._reach)
        network.process.after(timeout, self._end, RpcLost(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"))

    def done(self) -> bool:
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Any:
        if self._outcome is None:
            self._ended.wait(timeout)
        if self._outcome is None:
            raise grpc.FutureTimeoutError
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        self._end(RpcLost(grpc.StatusCode.CANCELLED, "cancelled"))

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self._outcome is None:
            self._callbacks.append(callback)
        return self._outcome is None

    def _reach(self) -> None:
        server = self._network.listening.get(self._address)
        if server is None:
            self._end(RpcLost(grpc.StatusCode.UNAVAILABLE, "connection refused"))
        elif not self._link.dropped[0]:
            server.tell_progress(self._request, self._answer)

    def _answer(self, response: Any) -> None:
        """The server's process has answered."""
        self._network.process.after(self._link.seconds(0), self._arrive, response)

    def _arrive(self, response: Any) -> None:
        if not self._link.dropped[1]:
            self._end(response)

    def _end(self, outcome: Any) -> None:
        if self._outcome is None and self._client.alive:
            self._outcome = outcome
            self._ended.set()
            for callback in self._callbacks:
                callback()


class ClientStream:
    """The client's end of a stream: what a `grpc.CallIterator` is to the transport."""

    def __init__(
        self, network: Network, threads: SimulatedThreads, address: str, requests: Iterator[bytes], random: Random
    ) -> None:
        network.opened += 1
        self.name = f"stream{network.opened}"
        self.address = address
        self.network, self._threads, self._random = network, threads, random
        self.link = network.link(threads.process.name, address)
        self.caller = network.callers(threads.process.name)
        """Who the server takes the client for."""
        self.link.streams[self] = None
        scheduler = network.scheduler
        self.to_server = Path(scheduler, self.link, 0, network.process)
        self.to_client = Path(scheduler, self.link, 1, network.process)
        self._inbox = threads.queue()
        self._ended: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._room = WINDOW
        self._read = 0
        """Messages that were read, and of which the server was not told."""
        self._has_room = threads.event()
        self.server: Any = None
        """The server's end, once there is one."""
        scheduler.note(threads.process.name, f"{self.name} to {address}")
        self.to_server.send(0, self._reach)
        network.process.after(CONNECT_SECONDS, self._connected)
        self._reached = False
        threads.start(f"feeder {self.name}", self._feed, requests)

    def __hash__(self) -> int:
        return int(self.name[6:])

    def __next__(self) -> bytes:
        item = self._inbox.get()
        if isinstance(item, Exception):
            self._inbox.put(item)
            raise item
        if item is None:
            self._inbox.put(None)
            raise StopIteration
        self._read += 1
        if self._read == UPDATE:
            self._read = 0
            self.to_server.send(0, self._update)
        return item

    def is_active(self) -> bool:
        return self._ended is None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call this when the stream ends. Returns False if it has ended already."""
        if self._ended is None:
            self._callbacks.append(callback)
        return self._ended is None

    def cancel(self) -> None:
        if self._ended is None:
            self.end(RpcLost(grpc.StatusCode.CANCELLED, "cancelled"))
            self.to_server.send(0, self._cancel_server)

    def end(self, error: Exception | None) -> None:
        """The stream is over for the client: None if the server has ended it well."""
        if self._ended is not None:
            return
        self._ended = error or StopIteration()
        self.network.scheduler.note(self._threads.process.name, f"{self.name} ends: {error or 'well'}")
        self._inbox.put(error)
        self._has_room.set()
        self.link.streams.pop(self, None)
        for callback in self._callbacks:
            callback()

    def receive(self, message: bytes) -> None:
        if self._ended is None and self._threads.process.alive:
            self.network.scheduler.note(self._threads.process.name, f"{self.name} receives")
            self._inbox.put(message)

    def consumed(self) -> None:
        """The server has read some messages."""
        self._room += UPDATE
        self._has_room.set()

    def cut(self, client: bool, server: bool, late: float | None = None) -> None:
        process, random = self.network.process, self._random
        lost = RpcLost(grpc.StatusCode.UNAVAILABLE, "connection reset")
        if client:
            self.end(lost)
        else:
            process.after(random.uniform(*KEEPALIVE_SECONDS), self.end, lost)
        if self.server is not None:
            if server:
                self.server.cut()
            else:
                process.after(random.uniform(*SERVER_KEEPALIVE_SECONDS), self.server.cut)
        if late is None:
            self.to_server.close()
        else:
            self.to_server.delay(late)
        self.to_client.close()

    def watch(self) -> None:
        process = self.network.process
        process.after(self._random.uniform(*KEEPALIVE_SECONDS), self._alive_still)

    def _alive_still(self) -> None:
        server = self.network.listening.get(self.address)
        if any(self.link.dropped) or (server is not None and server.process.frozen):
            self.cut(client=True, server=False)

    def _reach(self) -> None:
        server = self.network.listening.get(self.address)
        if server is None:
            self.end(RpcLost(grpc.StatusCode.UNAVAILABLE, "connection refused"))
            return
        self.server = server.accept(self)
        if self._ended is not None:  # the request was on its way when the connection broke
            self.network.process.after(self._random.uniform(*SERVER_KEEPALIVE_SECONDS), self.server.cut)
        # It is the process, not its host, that answers the first frames.
        server.process.after(0.0, self.to_client.send, 0, self._answered)

    def _answered(self) -> None:
        self._reached = True

    def _connected(self) -> None:
        if not self._reached and self._ended is None:
            self.end(RpcLost(grpc.StatusCode.UNAVAILABLE, "connection timed out"))
            if self.server is not None:
                self.server.cut()

    def _update(self) -> None:
        if self.server is not None:
            self.server.consumed()

    def _cancel_server(self) -> None:
        if self.server is not None:
            self.server.cut()

    def _feed(self, requests: Iterator[bytes]) -> None:
        for message in requests:
            while not self._room and self._ended is None:
                self._has_room.clear()
                self._has_room.wait()
            if self._ended is not None:
                break
            self._room -= 1
            self.to_server.send(len(message), self._deliver, message)
        self.to_server.send(0, self._deliver, None)

    def _deliver(self, message: bytes | None) -> None:
        if self.server is not None:
            self.server.receive(message)
