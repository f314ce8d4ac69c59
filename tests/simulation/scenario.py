"""A scenario is everything that a seed decides about a world: servers, tasks, rows and faults. It is plain data."""

from dataclasses import dataclass
from random import Random

from tests.simulation.functions import Behaviour
from udf_server.streams.admission import AdmissionLimits

__all__ = ["PROBE", "Fault", "Scenario", "TaskPlan", "drawn"]

NAMES = ("slow", "threaded", "vectorized")
LINK_FAULTS = ("cut", "half-client", "half-server", "hole", "hole-to-server", "hole-to-client", "slow-link", "late")
SERVER_FAULTS = ("crash", "freeze", "drain", "slow-server")
LIMITED = 0.2
"""Share of the worlds of mode `safety` whose servers have small limits."""
RESTART_SECONDS = (0.05, 8.0)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong: what, when, where, and for how long."""

    kind: str
    at: float
    server: int
    client: int
    seconds: float


@dataclass(frozen=True)
class TaskPlan:
    """One task of a Spark job: its calls, its rows and how they arrive."""

    functions: tuple[str, ...]
    ordered: bool
    rows: tuple[Behaviour, ...]
    batch_rows: int
    begins: float
    pause: float
    """Seconds that Spark takes for each batch."""
    timeout: float
    attempts: int
    capacity: int
    connect_seconds: float
    stream_seconds: float
    max_replays: int


@dataclass(frozen=True)
class Scenario:
    seed: int
    mode: str
    servers: int
    tasks: tuple[TaskPlan, ...]
    faults: tuple[Fault, ...]
    quiet: float
    """When the last fault is over."""
    lasting: tuple[str, ...] = ()
    """In mode `liveness`: what is wrong from then on with each server but the first one."""
    limits: AdmissionLimits | None = None
    """In mode `safety`: limits of each server that are so small that it refuses streams and rows."""


PROBE = TaskPlan(
    functions=("slow",), ordered=True, rows=(Behaviour(seconds=0.01),) * 30, batch_rows=10, begins=0.0, pause=0.5,
    timeout=10.0, attempts=1, capacity=5, connect_seconds=10.0, stream_seconds=300.0, max_replays=50,
)  # fmt: skip
"""A task that must succeed once a server and the way to it are healthy."""


def drawn(seed: int, mode: str) -> Scenario:
    """The scenario of a seed. In mode `liveness` every fault ends, and the world is then healthy."""
    random = Random(f"scenario {mode} {seed}")
    servers = random.choice((1, 2, 2, 3, 4))
    tasks = tuple(_task(random) for _ in range(random.choice((1, 1, 2, 3, 4))))
    horizon = random.choice((0.5, 5.0, 30.0))
    faults = tuple(_fault(random, horizon, servers, len(tasks)) for _ in range(random.choice((0, 1, 2, 4, 8, 16))))
    faults = tuple(sorted(faults, key=lambda fault: fault.at))
    quiet = max((fault.at + fault.seconds for fault in faults), default=0.0)
    lasting: tuple[str, ...] = ()
    if mode == "liveness":
        lasting = tuple(random.choice(("", "", "crash", "freeze", "hole")) for _ in range(servers - 1))
    limits = _limits(random) if mode == "safety" and random.random() < LIMITED else None
    return Scenario(seed, mode, servers, tasks, faults, quiet, lasting, limits)


def _limits(random: Random) -> AdmissionLimits:
    return AdmissionLimits(
        function_rows=random.choice((1, 5, 50)), server_bytes=random.choice((1_000, 10_000, 2 << 30)),
        streams=random.choice((1, 2, 4_000)),
    )  # fmt: skip


def _task(random: Random) -> TaskPlan:
    timeout = random.choice((1.0, 3.0, 10.0, 30.0))
    odd = random.choice((0.0, 0.0, 0.05, 0.3))
    pace = random.choice((0.0, 0.001, 0.02, timeout / 20))
    rows = tuple(_behaviour(random, odd, pace) for _ in range(random.choice((1, 7, 30, 80))))
    return TaskPlan(
        functions=tuple(random.choice(NAMES) for _ in range(random.choice((1, 1, 1, 2)))),
        ordered=random.random() < 0.6,
        rows=rows,
        batch_rows=random.choice((1, 5, 20, 100)),
        begins=random.choice((0.0, random.uniform(0, 5))),
        pause=random.choice((0.0, 0.0, 0.05, 1.0)),
        timeout=timeout,
        attempts=random.choice((1, 2, 4)),
        capacity=random.choice((1, 3, 20)),
        connect_seconds=random.choice((2.0, 10.0)),
        stream_seconds=random.choice((0.5, 5.0, 300.0)),
        max_replays=random.choice((1, 50, 50)),
    )


def _behaviour(random: Random, odd: float, pace: float) -> Behaviour:
    seconds = random.uniform(0, 2 * pace)
    if random.random() >= odd:
        return Behaviour("value", seconds)
    kind = random.choice(("error", "error", "flaky", "flaky", "hang", "crash"))
    return Behaviour(kind, seconds, random.choice((1, 1, 2, 5)))


def _fault(random: Random, horizon: float, servers: int, clients: int) -> Fault:
    kind = random.choice((*LINK_FAULTS, *SERVER_FAULTS))
    seconds = random.uniform(*RESTART_SECONDS) if random.random() < 0.7 else random.uniform(0, 60)
    return Fault(kind, random.uniform(0, horizon), random.randrange(servers), random.randrange(clients), seconds)
