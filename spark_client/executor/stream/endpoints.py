"""Endpoints: the servers behind a target, taken in turn; one that failed is skipped for a while.

A target is one address ("host:port", "unix:/path"), several with commas between them, or a name with many
addresses ("dns:///name:port", such as a headless service of Kubernetes), which is resolved again and again,
so that servers that are added get streams and those that are gone get none.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

__all__ = ["Endpoint", "Endpoints", "process_endpoints", "resolved"]

RESOLVE_SECONDS = 10.0
"""How often names are looked up, while streams are opened."""
EJECT_SECONDS = (1.0, 60.0)
"""How long an endpoint is skipped after its first failure, and at most; doubled by each in a row."""


@dataclass(eq=False)
class Endpoint:
    """One address of a server, and how it has been lately."""

    address: str
    """A gRPC target."""
    name: str = ""
    """The name it was found under, for its certificate; empty if the address is the name."""
    failures: int = 0
    """In a row."""
    until: float = field(default=0.0, repr=False)
    """Skipped until then."""

    @property
    def same_host(self) -> bool:
        """Whether the address is one of this host; what answers there may still be elsewhere, by a tunnel."""
        address = self.address.removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:").lstrip("/")
        return address.startswith(("unix:", "unix-abstract:", "127.", "[::1]:", "localhost:"))


class Endpoints:
    """What a target stands for. Safe to use from any thread."""

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
        """Each process begins somewhere else: a thousand tasks do not all go to the first server."""

    def listed(self) -> Sequence[Endpoint]:
        """All endpoints of the target. Raises OSError if nothing is known because the name cannot be resolved."""
        with self._lock:
            self._look_up()
            return list(self._known.values())

    def pick(self, avoid: Container[str] = ()) -> Endpoint:
        """The next endpoint that is not being skipped; if all are, the one skipped longest.

        Addresses to `avoid` are picked only if there is no other.
        Raises OSError if nothing is known because the name cannot be resolved.
        """
        with self._lock:
            self._look_up()
            now, listed = self._clock(), list(self._known.values())
            endpoints = [endpoint for endpoint in listed if endpoint.address not in avoid] or listed
            self._turn += 1
            # In turn among the healthy ones: else the neighbour of one that is skipped would get its share too.
            healthy = [endpoint for endpoint in endpoints if endpoint.until <= now]
            if healthy:
                return healthy[self._turn % len(healthy)]
            return min(endpoints, key=lambda endpoint: endpoint.until)

    def succeeded(self, endpoint: Endpoint) -> None:
        """It has taken a stream."""
        with self._lock:
            endpoint.failures, endpoint.until = 0, 0.0

    def failed(self, endpoint: Endpoint, seconds: float = 0.0) -> None:
        """It was not there, was lost, or sent a stream away for this many seconds."""
        first, longest = EJECT_SECONDS
        with self._lock:
            endpoint.failures += 1
            pause = min(first * 2.0 ** min(endpoint.failures - 1, 16), longest) * self._random.uniform(0.5, 1.0)
            endpoint.until = self._clock() + max(pause, seconds)

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
            return  # a name server that is away is no reason to forget servers
        self._resolved_at = now
        self._known = {address: self._known.get(address) or Endpoint(address, name) for address, name in found}


def resolved(target: str) -> Sequence[tuple[str, str]]:
    """The gRPC targets that a target stands for, each with its name; one at least. Raises OSError."""
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
        return [(target, "")]  # gRPC knows what it means
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(f"[{a[4][0]}]:{port}" if a[0] == socket.AF_INET6 else f"{a[4][0]}:{port}" for a in found)
    return [(address, host) for address in addresses]


_endpoints: dict[tuple[int, str], Endpoints] = {}
_lock = threading.Lock()


def process_endpoints(target: str) -> Endpoints:
    """This process's view of the target, shared by all its streams."""
    with _lock:
        return _endpoints.setdefault((os.getpid(), target), Endpoints(target))
