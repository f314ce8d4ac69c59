"""Endpoints are the servers of a target, used in turn or by load. One that failed is skipped for some time.

A target is one address ("host:port", "unix:/path"), several addresses separated by commas, or a name with many
addresses ("dns:///name:port", such as a headless service of Kubernetes). A name is resolved at intervals,
so that added servers get streams and removed ones get none.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Place, TransportLost

__all__ = ["Endpoint", "Endpoints", "process_endpoints", "resolved"]

RESOLVE_SECONDS = 10.0
"""Interval at which names are resolved while streams are opened."""
LOAD_SECONDS = 10.0
"""A load that was told longer ago is not used."""
EJECT_SECONDS = (1.0, 60.0)
"""Time for which an endpoint is skipped after its first failure, and the maximum. Each further failure doubles it."""


@dataclass(eq=False)
class Endpoint:
    """One address of a server, and its recent failures."""

    address: str
    """A gRPC target."""
    name: str = ""
    """The name that was resolved to it, for its certificate; empty if the address is the name."""
    failures: int = 0
    """Number of consecutive failures."""
    until: float = field(default=0.0, repr=False)
    """The endpoint is skipped until this time."""
    load: ServerLoad | None = field(default=None, repr=False)
    """The last load that its server has told."""
    loaded_at: float = field(default=0.0, repr=False)

    def at(self, place: Place | None) -> "Endpoint":
        """The port of this host at which the place is, if it has one."""
        return Endpoint(place.address, self.name) if place is not None and place.address else self

    @property
    def same_host(self) -> bool:
        """Whether the address is local. The server may still be on another host, behind a tunnel."""
        address = self.address.removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:").lstrip("/")
        return address.startswith(("unix:", "unix-abstract:", "127.", "[::1]:", "localhost:"))


class Endpoints:
    """The endpoints of a target. Safe to use from any thread."""

    def __init__(
        self,
        target: str,
        *,
        resolve: Callable[[str], Sequence[tuple[str, str]]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._target = target
        self._resolve = resolve or resolved
        self._clock = clock
        self._random = rng or random.Random()
        self._lock = threading.Lock()
        self._known: dict[str, Endpoint] = {}
        self._resolved_at: float | None = None
        self._turn = self._random.randrange(1 << 16)
        """The start is random, so that a thousand tasks do not all use the first server."""

    def listed(self) -> Sequence[Endpoint]:
        """All endpoints of the target. Raises OSError if nothing is known because the name cannot be resolved."""
        with self._lock:
            self._look_up()
            return list(self._known.values())

    def pick(self, avoid: Container[str] = (), place: Place | None = None) -> Endpoint:
        """The server of the place, or the next endpoint that is not being skipped; if all are, the one skipped longest.

        If the load of the next one and that of another one at random are known, it is the better of the two.

        Addresses to `avoid` are picked only if there is no other.
        Raises OSError if nothing is known because the name cannot be resolved, TransportLost if the server of the place
        is no longer listed.
        """
        with self._lock:
            self._look_up()
            if place is not None:
                if place.server not in self._known:
                    raise TransportLost(f"{place.server} is no longer a server of this target")
                return self._known[place.server]
            now, listed = self._clock(), list(self._known.values())
            endpoints = [endpoint for endpoint in listed if endpoint.address not in avoid] or listed
            self._turn += 1
            # The turn is among the healthy ones only: else the one after a skipped endpoint would get a double share.
            healthy = [endpoint for endpoint in endpoints if endpoint.until <= now]
            if healthy:
                return self._better_of_two(healthy[self._turn % len(healthy)], healthy)
            return min(endpoints, key=lambda endpoint: endpoint.until)

    def other(self, address: str) -> Endpoint | None:
        """Another endpoint that is not being skipped, at random; None if there is none. Raises OSError as `pick`."""
        with self._lock:
            self._look_up()
            now = self._clock()
            others = [each for each in self._known.values() if each.address != address and each.until <= now]
            return self._random.choice(others) if others else None

    def heard(self, address: str, load: ServerLoad) -> None:
        """Remember what a server has to do."""
        with self._lock:
            if (endpoint := self._known.get(address)) is not None:
                endpoint.load, endpoint.loaded_at = load, self._clock()

    def succeeded(self, endpoint: Endpoint) -> None:
        """Reset the failures of an endpoint that has accepted a stream."""
        with self._lock:
            endpoint.failures, endpoint.until = 0, 0.0

    def failed(self, endpoint: Endpoint, seconds: float = 0.0) -> None:
        """Skip an endpoint that could not be reached, was lost, or refused a stream for this many seconds."""
        first, longest = EJECT_SECONDS
        with self._lock:
            endpoint.failures += 1
            pause = min(first * 2.0 ** min(endpoint.failures - 1, 16), longest) * self._random.uniform(0.5, 1.0)
            endpoint.until = self._clock() + max(pause, seconds)

    def _better_of_two(self, first: Endpoint, healthy: Sequence[Endpoint]) -> Endpoint:
        recent = self._clock() - LOAD_SECONDS
        if first.load is None or first.loaded_at < recent:
            return first
        others = [each for each in healthy if each is not first and each.load is not None and each.loaded_at >= recent]
        if not others:
            return first
        other = self._random.choice(others)
        assert other.load is not None
        return other if first.load.exceeds(other.load) else first

    def _look_up(self) -> None:
        now = self._clock()
        due = self._resolved_at is None or now - self._resolved_at >= RESOLVE_SECONDS
        if not due and any(endpoint.until <= now for endpoint in self._known.values()):
            return
        try:
            found = self._resolve(self._target)
        except OSError:
            if not self._known:
                raise
            return  # the known servers are kept while the name server cannot be reached
        self._resolved_at = now
        self._known = {address: self._known.get(address) or Endpoint(address, name) for address, name in found}


def resolved(target: str) -> Sequence[tuple[str, str]]:
    """The gRPC targets of a target, each with its name; at least one. Raises OSError."""
    if target.startswith(("ipv4:", "ipv6:")):
        scheme, _, addresses = target.partition(":")
        return [(f"{scheme}:{address.strip()}", "") for address in addresses.split(",")]
    found: dict[str, str] = {}
    for part in target.split(","):
        for address, name in _addresses(part.strip()):
            found.setdefault(address, name)
    return list(found.items())


def _addresses(target: str) -> Sequence[tuple[str, str]]:
    plain = target.removeprefix("dns:").removeprefix("///") if target.startswith("dns:") else ""
    host, _, port = plain.rpartition(":")
    if not host or not port.isdigit() or "/" in plain:
        return [(target, "")]  # gRPC itself resolves it
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(f"[{a[4][0]}]:{port}" if a[0] == socket.AF_INET6 else f"{a[4][0]}:{port}" for a in found)
    return [(address, host) for address in addresses]


_endpoints: dict[tuple[int, str], Endpoints] = {}
_lock = threading.Lock()


def process_endpoints(target: str) -> Endpoints:
    """The endpoints of the target in this process, shared by all its streams."""
    with _lock:
        return _endpoints.setdefault((os.getpid(), target), Endpoints(target))
