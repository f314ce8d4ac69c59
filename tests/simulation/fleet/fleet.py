"""Fleet: servers that come and go, their name service, the clients, and what is measured every few seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.files import SharedFiles
from tests.simulation.fleet.clients import Client
from tests.simulation.fleet.work import CORES, Machine, machines, work
from tests.simulation.network import ClientStream, Network
from tests.simulation.oracles import Violation, check_leftovers
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.servers import SimulatedServer
from tests.simulation.world import SETTLE_SECONDS, end
from udf_server.hosting.executors import HostLimits

__all__ = ["LOOK_SECONDS", "Fleet", "Look"]

LOOK_SECONDS = 2.0
OPEN_SECONDS = 0.002
"""What it costs the event loop of a server to open a stream."""
MOST_EVENTS = 100_000_000
END_SECONDS = 600.0
"""Clients end within this time after the fleet was told to."""


@dataclass(frozen=True)
class Look:
    """The fleet at one moment."""

    at: float
    streams: tuple[int, ...]
    """Streams of each server that accepts new ones."""
    busy: tuple[float, ...]
    """The share of its cores that each of them used since the previous look."""
    opened: int
    """Streams that clients have asked for since then."""


class _Server(SimulatedServer):
    """A server of the fleet, which has a machine of its own."""

    beat_seconds = 1.0

    def __init__(self, network: Network, address: str, slow: float, cores: int) -> None:
        super().__init__(network, address, (work,), host=HostLimits(calls=cores))
        self.machine, self.cores = Machine(slow, cores), float(cores)

    def start(self) -> None:
        super().start()
        machines[self.process] = self.machine

    def cpu_seconds(self) -> float:
        return self.machine.spent(self.loop.time())

    def accept(self, client: ClientStream) -> Any:
        self.loop.block(OPEN_SECONDS)
        return super().accept(client)


class Fleet:
    """Servers and clients in virtual time. A pod that is replaced gets a new address, as on Kubernetes."""

    def __init__(self, seed: int, clients: int, seconds: float, frequent: int = 0) -> None:
        """The clients begin at once, and end after `seconds`.

        One of `frequent` clients sends more often than the others; 0 for none.
        """
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.random: Random = self.scheduler.random("fleet")
        self.seconds = seconds
        self.servers: list[_Server] = []
        self.looks: list[Look] = []
        self.processes: list[Process] = []
        self.files, self.redis = SharedFiles(), None
        self._spent: dict[_Server, float] = {}
        self._opened = 0
        self.clients = [
            Client(self.network, number, self._resolve, seconds, frequent=frequent > 0 and number % frequent == 0)
            for number in range(clients)
        ]
        self.workers = [client.worker for client in self.clients]

    def after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Do something at this time after the beginning."""
        self.network.process.after(seconds, callback, *arguments)

    @property
    def listed(self) -> list[_Server]:
        """The servers that the name service lists: those that accept streams."""
        return [server for server in self.servers if server.running and not server.service.draining]

    def add(self, count: int = 1, slow: float = 1.0, cores: int = CORES) -> list[_Server]:
        """Start servers."""
        first = len(self.servers)
        added = [_Server(self.network, f"server{first + number}", slow, cores) for number in range(count)]
        for server in added:
            server.start()
        self.servers += added
        return added

    def run(self) -> None:
        """Run until every client has ended, and a little longer. Raises Violation if something is left."""
        try:
            for client in self.clients:
                client.begin()
            self.after(LOOK_SECONDS, self._look)
            if not self.scheduler.run(self._ended, self.seconds + END_SECONDS, MOST_EVENTS):
                raise Violation("clients have not ended")
            self.scheduler.run(lambda: False, self.scheduler.now + SETTLE_SECONDS, MOST_EVENTS)
            check_leftovers(self)
        finally:
            self.scheduler.trace.clear()

    def close(self) -> None:
        """End every process."""
        end(self)
        machines.clear()

    def _ended(self) -> bool:
        return self.scheduler.now > self.seconds and not any(worker.process.threads for worker in self.workers)

    def _resolve(self) -> list[str]:
        addresses = [server.address for server in self.listed]
        if not addresses:
            raise OSError("no server is listed")
        return addresses

    def _look(self) -> None:
        listed, opened = self.listed, self.network.opened
        spent = {server: server.cpu_seconds() for server in listed}
        busy = tuple(
            (now - self._spent.get(server, 0.0)) / server.cores / LOOK_SECONDS for server, now in spent.items()
        )
        self._spent = spent
        streams = tuple(server.service.streams for server in listed)
        self.looks.append(Look(self.scheduler.now, streams, busy, opened - self._opened))
        self._opened = opened
        if self.scheduler.now < self.seconds:
            self.after(LOOK_SECONDS, self._look)
