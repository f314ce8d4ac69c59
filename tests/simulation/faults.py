"""What goes wrong in a world: connections, links and servers."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.functions import later
from tests.simulation.scenario import LEDGER_FAULTS, SERVER_FAULTS, Fault
from udf_server.declaring.functions import Function

__all__ = ["heal", "inject"]

LATE_SECONDS = 10.0
LAG_SECONDS = 3.0
"""The longest time by which a replica of the Redis is behind when it takes over."""
MESSAGE_BYTES = 800
"""A message that takes more ends a server that is out of memory."""
OTHER_FUNCTIONS: tuple[Callable[[Sequence[Function]], Sequence[Function]], ...] = (
    lambda functions: (*functions, later),
    lambda functions: (*functions[1:], later),
    lambda functions: functions[1:],
)
"""What a deployment makes of the functions of a server, of which `slow` is the first."""
DROPS = {"hole": (True, True), "hole-to-server": (True, False), "hole-to-client": (False, True)}


def inject(world: Any, fault: Fault) -> None:
    """Begin a fault; what ends by itself ends after its seconds."""
    world.scheduler.note("fault", f"{fault.kind} server{fault.server} task{fault.client} {fault.seconds:.3f} s")
    if fault.kind in LEDGER_FAULTS:
        _ledger(world, fault)
        return
    server = world.servers[fault.server]
    if fault.kind in SERVER_FAULTS:
        _server(world, fault, server)
        return
    for link in world.network.links_of(server.address):
        if link.name.startswith(f"task{fault.client}."):
            _link(world, fault, link)


def _server(world: Any, fault: Fault, server: Any) -> None:
    after = world.network.process.after
    if fault.kind == "freeze":
        server.freeze(fault.seconds)
    elif fault.kind == "slow-server":
        process = server.process
        process.slow = 100.0
        after(fault.seconds, setattr, process, "slow", 1.0)
    elif fault.kind == "drain":
        server.drain(fault.seconds)
        world.restart_later(server, fault.seconds + 0.5)
    elif fault.kind == "out-of-memory":
        server.memory = MESSAGE_BYTES
        after(fault.seconds, setattr, server, "memory", None)
    elif fault.kind == "deployment" and not world.scenario.jobs:
        _deploy(server, OTHER_FUNCTIONS[round(fault.seconds * 1_000) % len(OTHER_FUNCTIONS)](server.functions))
        after(fault.seconds * 0.9, _deploy, server, server.functions)
    else:
        server.crash()
        world.restart_later(server, fault.seconds)


def _deploy(server: Any, functions: Sequence[Function]) -> None:
    """Restart the server with these functions, unless it has them."""
    if server.offered != functions:
        server.offered = functions
        server.crash()
        server.start()


def _ledger(world: Any, fault: Fault) -> None:
    redis = world.redis
    if fault.kind == "ledger-lost":
        redis.lose_data()
    elif fault.kind == "ledger-older":
        redis.fail_over(min(fault.seconds, LAG_SECONDS))
    else:
        redis.fails("away" if fault.kind == "ledger-away" else "late", fault.seconds)


def _link(world: Any, fault: Fault, link: Any) -> None:
    network, after = world.network, world.network.process.after
    if fault.kind == "cut":
        network.cut(link)
    elif fault.kind == "half-client":
        network.cut(link, client=False)
    elif fault.kind == "half-server":
        network.cut(link, server=False)
    elif fault.kind == "doubled":
        # The client connects again, while the server still receives what was sent before.
        network.cut(link, server=False, late=min(fault.seconds, LATE_SECONDS))
    elif fault.kind in DROPS:
        link.drop(*DROPS[fault.kind])
        network.stall(link)
        after(fault.seconds, link.drop, False, False)
    elif fault.kind == "slow-link":
        before = link.bytes_per_second
        link.bytes_per_second = 2_000.0
        after(fault.seconds, setattr, link, "bytes_per_second", before)
    else:
        link.latency = (0.05, 0.5)
        after(fault.seconds, setattr, link, "latency", (0.0001, 0.002))


def heal(world: Any) -> None:
    """End every fault of the first server; the other ones get what the scenario has for them, for good."""
    world.scheduler.note("fault", "quiet")
    if world.redis is not None:
        world.redis.away = world.redis.late = False
    for link in [link for _, link in sorted(world.network.links.items())]:
        link.drop(False, False)
        link.latency, link.bytes_per_second = (0.0001, 0.002), 1e9
    for server, lasting in zip(world.servers, ("", *world.scenario.lasting), strict=True):
        if server.running and server.ending:
            server.crash()
        if not server.running:
            server.start()
        elif server.process.frozen:
            server.process.thaw()
        _deploy(server, server.functions)
        server.process.slow, server.memory = 1.0, None
        if lasting == "crash":
            server.crash()
        elif lasting == "freeze":
            server.freeze(1e9)
        elif lasting == "hole":
            world.network.unreachable[server.address] = None
            for link in world.network.links_of(server.address):
                link.drop(True, True)
                world.network.stall(link)
