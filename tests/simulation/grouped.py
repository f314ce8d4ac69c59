"""Servers with a group: the real relay and real routes between two simulated processes, which crash and are reloaded.

A process at the address of the server has no function. A process of the group is at the next port of the same host, and
on a socket. A reload starts one beside the old one, has the relay know it, and drains the old one. Both listen at the
port meanwhile, and a client may reach either.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import grpc
from grpc import aio

from remote_udf.messages import read_request, read_response
from tests.simulation.network import ClientStream, RpcLost
from tests.simulation.oracles import Violation
from tests.simulation.scenario import Scenario
from tests.simulation.servers import METRICS, ServerStream, SimulatedServer
from tests.simulation.world import FUNCTIONS, World
from udf_server.hosting.registry import Registry
from udf_server.streams.entrance import Entrance
from udf_server.streams.relay import Relay
from udf_server.streams.routes import GroupFunction, Route, name_of_route
from udf_server.streams.service import OPEN_SECONDS

__all__ = ["GroupedWorld"]

GROUP, PORT = "group", 2
CHECK_SECONDS, SIGNAL_SECONDS, DRAIN_SECONDS = 0.3, 0.02, 300.0
"""How long both processes listen before the switch, until the old one knows that it drains, and may drain."""
RESTART_SECONDS = 0.5
HOP_SECONDS = 0.0001
"""Between two processes of a server."""


class GroupedWorld(World):
    """A world whose servers have a group, which is reloaded at random times, and crashes in worlds with faults.

    A reload alone sends no row again: in worlds without faults the oracles allow no replay.
    """

    def __init__(self, scenario: Scenario, *, reachable: bool = True) -> None:
        """Unless they are `reachable`, clients reach no port of a group."""
        super().__init__(scenario)
        self.addresses = [f"10.0.0.{number}:1" for number in range(1, scenario.servers + 1)]
        self.groups = [_Group(self, address, reachable=reachable) for address in self.addresses]
        self.servers = [group.main for group in self.groups]
        self.direct = self.passed_on = 0
        """Streams that a group has opened at its port, and for the relay."""

    def begin(self) -> None:
        super().begin()
        random = Random(f"groups {self.scenario.seed}")
        for group in self.groups:
            group.start()
            events = (group.reload, group.reload, group.crash) if self.scenario.faults else (group.reload,)
            for _ in range(random.randrange(6)):
                self.network.process.after(random.uniform(0.0, 10.0), random.choice(events))

    def _crash(self, process: Any) -> None:
        """A row ends the process of its group."""
        for group in self.groups:
            for each in group.processes:
                if each.running and each.process is process:
                    each.crash()
                    self.network.process.after(RESTART_SECONDS, group.restart)


class _Group:
    """A server, and the processes of its group, of which the last one is current."""

    def __init__(self, world: GroupedWorld, address: str, *, reachable: bool) -> None:
        self.world, self.reachable = world, reachable
        self.port = f"{address.rpartition(':')[0]}:{PORT}"
        self.main = _Main(world, self, address)
        self.processes: list[_GroupProcess] = []
        self.routes: Mapping[str, Route] = {}
        self.known = [GroupFunction(function.spec, GROUP) for function in FUNCTIONS]

    def start(self) -> None:
        self._make()
        self.publish()

    def restart(self) -> None:
        """The parent starts the current process again, under the same route."""
        if not self.processes[-1].running:
            self.processes[-1].start()

    def crash(self) -> None:
        if self.processes[-1].running:
            self.processes[-1].crash()
            self.world.network.process.after(RESTART_SECONDS, self.restart)

    def reload(self) -> None:
        old = self.processes[-1]
        if not old.running:
            return  # one that does not answer is started again first
        self._make()
        after = self.world.network.process.after

        def switch() -> None:
            self.publish()
            after(SIGNAL_SECONDS, old.drain, DRAIN_SECONDS)

        after(CHECK_SECONDS, switch)

    def _make(self) -> None:
        made = _GroupProcess(self.world, self, len(self.processes))
        self.processes.append(made)
        self.world.servers.append(made)
        made.start()

    def publish(self) -> None:
        socket = str(self.processes[-1].socket)
        self.routes = {GROUP: {"sockets": [socket], "port": PORT, "functions": []}}
        # The relay looks up its functions again if this is another list.
        self.known = [*self.known]

    def current(self) -> tuple[list[GroupFunction], Mapping[str, Route]]:
        """What the relay reads."""
        return self.known, self.routes

    def listening(self) -> list["_GroupProcess"]:
        return [each for each in self.processes if each.running and not each.ending]

    def accept(self, client: ClientStream) -> ServerStream:
        """The kernel chooses one of the processes that listen at the port."""
        found = self.listening()
        random = self.world.scheduler.random(f"accept {self.port} {client.name}")
        return _GroupStream(random.choice(found), client)

    @property
    def process(self) -> Any:
        return self.processes[-1].process


class _Member(SimulatedServer):
    """A process of a server with a group."""

    def _enter(self, relay: Relay | None, route: str) -> None:
        self.service._relay, self.service._route = relay, route
        self.service._entrance = Entrance(relay, route, METRICS, OPEN_SECONDS)


class _Main(_Member):
    """The process at the address of the server."""

    def __init__(self, world: GroupedWorld, group: _Group, address: str) -> None:
        super().__init__(world.network, address, ())
        self._group = group
        self.calls: dict[_SocketCall, None] = {}
        """Streams that it passes on."""

    def start(self) -> None:
        super().start()
        self._enter(_SimulatedRelay(self, self._group), "")

    def accept(self, client: ClientStream) -> ServerStream:
        return _RelayingStream(self, client)

    def crash(self) -> None:
        super().crash()
        for call in list(self.calls):
            call.cancel()


class _GroupProcess(_Member):
    """A process of the group, until a reload replaces it."""

    def __init__(self, world: GroupedWorld, group: _Group, number: int) -> None:
        super().__init__(world.network, f"{group.port} generation {number}", FUNCTIONS)
        self.world, self._group = world, group
        self.socket = Path("/", group.main.address, f"g{number}-0")
        self.calls: dict[_SocketCall, None] = {}

    def start(self) -> None:
        super().start()
        self._enter(None, name_of_route(self.socket))
        self._listen()

    def crash(self) -> None:
        streams = list(self.streams)
        super().crash()
        for stream in streams:
            stream._client.cut(client=True, server=False)
        self._listen()

    def drain(self, grace: float) -> None:
        super().drain(grace)
        self._listen()

    def _listen(self) -> None:
        group, listening = self._group, self.network.listening
        if group.reachable and group.listening():
            listening[group.port] = group
        else:
            listening.pop(group.port, None)


class _SimulatedRelay(Relay):
    def __init__(self, main: _Main, group: _Group) -> None:
        super().__init__(group, Registry([]))  # type: ignore[arg-type] # what it needs of a watched file
        self._main, self._group = main, group

    def _channel(self, socket: str) -> Any:
        return _Socket(self._main, next(each for each in self._group.processes if str(each.socket) == socket))


class _Socket:
    """The connection of the relay to a process of the group."""

    calls, is_lost = 0, False

    def __init__(self, main: _Main, process: _GroupProcess) -> None:
        self._main, self._process = main, process

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        yield

    def execute(self, timeout: None, metadata: Any) -> "_SocketCall":
        return _SocketCall(self._main, self._process)

    async def progress(self, request: bytes, metadata: Any) -> None:
        return None


class _SocketCall:
    """A stream on such a connection: what aio's call is to the relay, and what a client is to the process."""

    def __init__(self, main: _Main, process: _GroupProcess) -> None:
        self._main, self._process = main, process
        self._answers: deque[bytes] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._error: Any = None
        self._ended = False
        self.caller, self.to_client, self._group_end = "unix:", self, None
        if process in process._group.listening():
            self._group_end = _GroupStream(process, self)  # type: ignore[arg-type] # what it needs of a client
            main.calls[self] = process.calls[self] = None
        else:
            self.end(RpcLost(grpc.StatusCode.UNAVAILABLE, "connection refused"))

    async def read(self) -> Any:
        while not self._answers and not self._ended:
            self._arrived = self._main.loop.create_future()
            await self._arrived
        return self._answers.popleft() if self._answers else aio.EOF

    async def write(self, message: bytes) -> None:
        self._to_group(message)

    async def done_writing(self) -> None:
        self._to_group(None)

    def _to_group(self, message: bytes | None) -> None:
        if self._group_end is not None:
            self._main.network.process.after(HOP_SECONDS, self._group_end.receive, message)

    def cancel(self) -> None:
        if self._group_end is not None and not self._ended:
            self._main.network.process.after(HOP_SECONDS, self._group_end.cut)
        self.end(RpcLost(grpc.StatusCode.CANCELLED, "cancelled"))

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK if self._error is None else self._error.code()

    async def details(self) -> str:
        return "" if self._error is None else str(self._error.details())

    async def trailing_metadata(self) -> tuple[Any, ...]:
        return ()

    # What the process of the group sees as its client.

    def send(self, size: int, deliver: Any, *arguments: Any) -> None:
        self._main.network.process.after(HOP_SECONDS, deliver, *arguments)

    def receive(self, message: bytes) -> None:
        if not self._ended:
            self._answers.append(message)
            self._wake()

    def consumed(self) -> None:
        """The window of the client bounds what is on its way."""

    def end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._main.calls.pop(self, None)
            self._process.calls.pop(self, None)
            self._wake()

    def cut(self, *, client: bool, server: bool) -> None:
        self.end(RpcLost(grpc.StatusCode.UNAVAILABLE, "connection reset"))

    def _wake(self) -> None:
        def wake() -> None:
            if self._arrived is not None and not self._arrived.done():
                self._arrived.set_result(None)
            if self._group_end is not None:
                self._group_end.consumed()

        if self._main.running:
            self._main.loop.call_soon_threadsafe(wake)


class _RelayingStream(ServerStream):
    """The end of a stream at the address of the server, whose status the relay may set."""

    _code = grpc.StatusCode.OK
    _details = ""

    def time_remaining(self) -> None:
        return None

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Any) -> None:
        """There is none."""

    def _status(self) -> Exception | None:
        return None if self._code is grpc.StatusCode.OK else RpcLost(self._code, self._details)


class _GroupStream(ServerStream):
    """The end of a stream in a process of the group. Its oracle looks at what the process serves."""

    _wanted: str | None = None

    def peer(self) -> str:
        return "unix:" if isinstance(self._client, _SocketCall) else super().peer()

    def receive(self, message: bytes | None) -> None:
        if self._wanted is None and message is not None:
            self._wanted = read_request(message).envelope.open.route
        super().receive(message)

    async def write(self, message: bytes) -> None:
        process: Any = self._server
        if read_response(message).envelope.HasField("opened"):
            at_port = not isinstance(self._client, _SocketCall)
            own = name_of_route(process.socket)
            if at_port and self._wanted != own:
                what = f"a stream for {self._wanted} is served by {own}"
                process.network.scheduler.fail(Violation(what))
            process.world.direct += at_port
            process.world.passed_on += not at_port
        await super().write(message)
