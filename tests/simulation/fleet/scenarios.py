"""What happens to fleets: each scenario is a list of phases, and what it does to the servers at their beginnings."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.work import CORES

__all__ = ["SCENARIOS", "STEADY", "FleetScenario", "Phase", "Size"]

GRACE_SECONDS = 30.0
START_SECONDS = 5.0
"""From the start of a pod until it is listed."""
OUTAGE_SECONDS = 30.0
SLOW_SERVER, SLOW_ZONE = 10.0, 3.0
"""How many times as long rows take on a slow server, and on the servers of a slow zone."""


@dataclass(frozen=True)
class Size:
    """How large a fleet is."""

    clients: int
    servers: int

    @property
    def few(self) -> int:
        """Servers of a fleet that is scaled down, or that are replaced at a time."""
        return max(self.servers * 4 // 50, 1)


@dataclass(frozen=True)
class Phase:
    """A part of a scenario that is measured alone."""

    name: str
    seconds: float


@dataclass(frozen=True)
class FleetScenario:
    name: str
    phases: tuple[Phase, ...]
    plan: Callable[[Fleet, Size], object]
    """Starts servers, and schedules what happens to them."""
    frequent: int = 0
    """One of this number of clients sends five times as often as the others; 0 for none."""

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


def _steady(fleet: Fleet, size: Size) -> None:
    fleet.add(size.servers)


def _uneven(fleet: Fleet, size: Size) -> None:
    """A third of the servers each has half, all and twice the usual cores."""
    for number in range(size.servers):
        fleet.add(cores=CORES // 2 * (1, 2, 4)[number % 3])


def _added(fleet: Fleet, size: Size) -> None:
    late = size.servers // 5
    fleet.add(size.servers - late)
    fleet.after(60.0, fleet.add, late)


def _rolling(fleet: Fleet, size: Size) -> None:
    """Some pods at a time: new ones are started, then old ones drained."""
    old, at = fleet.add(size.servers), 60.0
    for start in range(0, size.servers, size.few):
        group = old[start : start + size.few]
        fleet.after(at + START_SECONDS, fleet.add, len(group))
        for server in group:
            fleet.after(at + START_SECONDS, server.drain, GRACE_SECONDS)
        at += 180.0 * size.few / size.servers


def _scaled(fleet: Fleet, size: Size) -> None:
    fleet.add(size.few)
    fleet.after(60.0, fleet.add, size.servers - size.few)

    def to_zero() -> None:
        for server in fleet.listed:
            server.drain(GRACE_SECONDS)

    fleet.after(420.0, to_zero)
    fleet.after(420.0 + OUTAGE_SECONDS, fleet.add, size.servers)


def _slow_server(fleet: Fleet, size: Size) -> None:
    servers = fleet.add(size.servers)
    fleet.after(60.0, setattr, servers[0].machine, "slow", SLOW_SERVER)


def _slow_zone(fleet: Fleet, size: Size) -> None:
    for server in fleet.add(size.servers)[::3]:
        fleet.after(60.0, setattr, server.machine, "slow", SLOW_ZONE)


def _herd(fleet: Fleet, size: Size) -> None:
    """Every server crashes; they come back within a few seconds, at the addresses that they had."""
    for server in fleet.add(size.servers):
        fleet.after(60.0, server.crash)
        fleet.after(60.0 + OUTAGE_SECONDS + fleet.random.uniform(0, START_SECONDS), server.start)


STEADY = FleetScenario("nothing happens", (Phase("first minute", 60.0), Phase("then", 180.0)), _steady)
SCENARIOS = (
    STEADY,
    FleetScenario("uneven servers", (Phase("first minute", 60.0), Phase("then", 180.0)), _uneven),
    FleetScenario("uneven clients", (Phase("first minute", 60.0), Phase("then", 180.0)), _steady, frequent=20),
    FleetScenario(
        "late servers", (Phase("before", 60.0), Phase("added, first minute", 60.0), Phase("then", 180.0)), _added
    ),
    FleetScenario(
        "rolling update", (Phase("before", 60.0), Phase("update", 200.0), Phase("after", 100.0)), _rolling
    ),
    FleetScenario(
        "scaled up, to none and back",
        (
            Phase("few servers", 60.0), Phase("all, first minute", 60.0), Phase("five minutes more", 300.0),
            Phase("no server", OUTAGE_SECONDS), Phase("all again", 90.0),
        ),
        _scaled,
    ),
    FleetScenario(
        "slow server", (Phase("before", 60.0), Phase("one is slow", 180.0), Phase("then", 180.0)), _slow_server
    ),
    FleetScenario(
        "slow zone", (Phase("before", 60.0), Phase("a third are slow", 180.0), Phase("then", 180.0)), _slow_zone
    ),
    FleetScenario(
        "outage",
        (Phase("before", 60.0), Phase("no server", OUTAGE_SECONDS), Phase("after", 90.0), Phase("then", 120.0)), _herd,
    ),
)  # fmt: skip
