"""Ports for processes whose port must be known before they run, or stays theirs while they do not run."""

import contextlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = ["Ports", "free_port"]

ENTRIES = Path("/proc/sys/net/ipv4/ip_local_port_range")
COUNT = 10_000
"""How many ports there are to draw from."""


def _drawn() -> int:
    """A port below the range of which the kernel gives ports to connections and to whoever asks for any port."""
    end = int(ENTRIES.read_text().split()[0]) if ENTRIES.exists() else 32_768
    # Not with `random`: hypothesis gives it the same seed in all processes.
    return end - COUNT + secrets.randbelow(COUNT)


class Ports:
    """Gives ports that `draw` draws, each one once."""

    def __init__(self, draw: Callable[[], int] = _drawn) -> None:
        self._draw = draw
        self._given: set[int] = set()

    def free(self) -> int:
        """Returns a free port, at each call another one."""
        while True:
            port = self._draw()
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                if port not in self._given:
                    self._given.add(port)
                    return port


free_port = Ports().free
"""A free port, which nobody else gets by chance, at each call of the process another one."""
