"""Ports for processes whose port must be known before they run, or stays theirs while they do not run."""

import contextlib
import secrets
import socket
from pathlib import Path

__all__ = ["free_port"]

ENTRIES = Path("/proc/sys/net/ipv4/ip_local_port_range")
COUNT = 10_000
"""How many ports there are to draw from."""
_given: set[int] = set()


def free_port() -> int:
    """Returns a free port, at each call another one.

    Nobody else gets it by chance, because it is below the range of which the kernel gives ports to connections and to
    whoever asks for any port.
    """
    end = int(ENTRIES.read_text().split()[0]) if ENTRIES.exists() else 32_768
    while True:
        # Not with `random`: hypothesis gives it the same seed in all processes.
        port = end - COUNT + secrets.randbelow(COUNT)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _given:
                _given.add(port)
                return port
