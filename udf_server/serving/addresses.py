"""Addresses of a server whose processes come and go: ports, of groups too, that are reserved, and Unix sockets."""

import contextlib
import itertools
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig
from udf_server.serving.groups import LAST_PORT

__all__ = ["GroupPorts", "SocketPath", "remove_stale_socket", "reserved_port"]


class GroupPorts:
    """The ports at which clients reach groups. Call `reserve`, then `keep` once these groups serve, `close` at the end.

    A port stays reserved while a group has it, so a reload finds it free, and no other server takes it.
    """

    def __init__(self, host: str, port: int | None) -> None:
        """`port` is that of the server; None if it listens on a Unix socket, and groups have no ports."""
        self._host, self._main = host, port
        self._held: dict[int, socket.socket] = {}
        self._free: dict[str, int] = {}
        """Those of groups for which any port will do."""

    def reserve(self, config: ServerConfig, kept: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
        """The port of each group; 0 if groups have none. Those of groups that are `kept` stay as they are.

        Raises InvalidConfig, which names the group, if a port is taken.
        """
        if self._main is None:
            return dict.fromkeys(config.groups, 0)
        owners = {self._main: "the server", config.metrics_port: "the HTTP server"}
        owners |= {port: f"group {name!r}" for name, port in kept.items()}
        owners.pop(0, None)
        ports = dict(kept)
        for place, (name, group) in enumerate(config.groups.items(), 1):
            if name in kept:
                continue
            port = group.port or (config.port + place if config.port else self._free.get(name, 0))
            if port > LAST_PORT:
                raise InvalidConfig(f"group {name!r}: {port} is no port; set `port` in [groups.{name}]")
            if port in owners:
                raise InvalidConfig(
                    f"group {name!r}: port {port} is that of {owners[port]}; set `port` in [groups.{name}]"
                )
            if port not in self._held:
                try:
                    held = reserved_port(self._host, port, shared=False)
                except InvalidConfig as error:
                    raise InvalidConfig(f"group {name!r}: {error}; set `port` in [groups.{name}]") from None
                port = held.getsockname()[1]
                self._held[port] = held
            if not config.port and group.port is None:
                self._free[name] = port
            owners[port] = f"group {name!r}"
            ports[name] = port
        return ports

    def keep(self, ports: Iterable[int]) -> None:
        """Release all ports but these."""
        for port in self._held.keys() - set(ports):
            self._held.pop(port).close()

    def close(self) -> None:
        """Release all ports."""
        self.keep(())


def reserved_port(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """A socket that reserves a port while the processes that listen on it come and go. It gets no connections.

    Raises InvalidConfig if another server has the port. With `shared`, several processes of one user may have it.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not shared:
            with contextlib.closing(socket.socket(family, kind)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        held = socket.socket(family, kind)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        raise InvalidConfig(f"cannot listen on {host}:{port}: {error}") from error
    return held


class SocketPath:
    """A link at the server's path leads to that of the process which serves. Call `close` at the end."""

    def __init__(self, path: str) -> None:
        """Raises InvalidConfig if another server listens there, or if there is another file."""
        self.path = Path(path).absolute()
        if self.path.exists() and not stat.S_ISSOCK(self.path.stat().st_mode):
            raise InvalidConfig(f"cannot listen on unix:{self.path}: the file is no socket")
        remove_stale_socket(self.path)
        self._numbers = itertools.count(1)

    @property
    def target(self) -> str:
        """The address for clients."""
        return f"unix:{self.path}"

    def next(self) -> str:
        """The path of the next process."""
        return f"{self.path}.{next(self._numbers)}"

    def lead_to(self, process: str) -> None:
        """Lead new connections to the process with this path, which listens already."""
        link = self.path.with_name(f"{self.path.name}.new")
        link.unlink(missing_ok=True)
        link.symlink_to(Path(process).name)
        link.replace(self.path)

    def close(self) -> None:
        """Remove the link. The processes remove their sockets."""
        self.path.unlink(missing_ok=True)


def remove_stale_socket(path: Path) -> None:
    """Removes a socket that a dead server left behind. Raises InvalidConfig if a server listens on it."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
    except FileNotFoundError:
        return
    except (ConnectionRefusedError, TimeoutError):
        # A server that does not accept within a second has stopped or hangs.
        path.unlink(missing_ok=True)
        return
    raise InvalidConfig(f"cannot listen on unix:{path}: another server does")
