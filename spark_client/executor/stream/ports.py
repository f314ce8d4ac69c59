"""Ports of a host at which the groups of its server are reached. The server says the number, and never a host.

If a port cannot be reached, the server passes the streams of its groups on, and is not asked for ports for some time.
"""

import functools
import ipaddress
import logging
import socket
import threading

from spark_client.base.transport import Place

__all__ = ["Elsewhere", "Ports", "process_ports"]

log = logging.getLogger(__name__)

RELAYED_SECONDS = 60.0
"""Time for which a server passes streams on once one of its ports could not be reached."""
MOST_SERVERS = 1_000
LAST_PORT = 65_535


class Elsewhere(Exception):
    """The server has the function in another process, which listens on another port of its host."""

    def __init__(self, port: int, route: str) -> None:
        super().__init__(f"port {port}")
        self.port, self.route = port, route

    def place(self, server: str) -> Place | None:
        """Where the stream is opened; None if that may be on another host than this server."""
        scheme, host, own = _parts(server)
        if not host or not 1 <= self.port <= LAST_PORT or self.port == own or not _is_one_host(host):
            return None
        return Place(server, f"{scheme}{host}:{self.port}", self.route)


class Ports:
    """The servers whose ports cannot be reached from this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def may_try(self, server: str, now: float) -> bool:
        """Whether the server may answer with a port."""
        with self._lock:
            return self._until.get(server, now) <= now and bool(_parts(server)[1])

    def failed(self, server: str, now: float, why: str) -> None:
        """Do not try ports of this server for some time. The first time, a warning says why."""
        with self._lock:
            known = server in self._until
            if len(self._until) >= MOST_SERVERS:
                self._until.clear()
            self._until[server] = now + RELAYED_SECONDS
        if not known:
            log.warning(
                "the server at %s passes streams of a group on, which is slower: %s; see docs/groups.md", server, why
            )


def _parts(server: str) -> tuple[str, str, int]:
    """The scheme, host and port of an address. The host is empty if there is none, as with a Unix socket or xds."""
    scheme = next((each for each in ("ipv4:", "ipv6:", "dns:///", "dns:") if server.startswith(each)), "")
    host, _, port = server.removeprefix(scheme).rpartition(":")
    known = port.isdecimal() and "/" not in host and (":" not in host or host.startswith("["))
    return (scheme, host, int(port)) if known else (scheme, "", 0)


def _is_one_host(name: str) -> bool:
    """Whether a name has at most one address of each family, or is this host.

    Otherwise it may be that of several machines, and the next connection reaches another one.
    """
    try:
        found = {(family, str(address[0])) for family, *_, address in socket.getaddrinfo(name.strip("[]"), None)}
    except (OSError, UnicodeError):
        return False
    families = [family for family, _ in found]
    return len(families) == len(set(families)) or all(ipaddress.ip_address(each).is_loopback for _, each in found)


@functools.cache
def process_ports() -> Ports:
    """Those of this process."""
    return Ports()
