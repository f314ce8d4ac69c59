"""SocketPath is the Unix socket of a server whose processes replace each other."""

import itertools
import socket
import stat
from pathlib import Path

from udf_server.base.errors import InvalidConfig

__all__ = ["SocketPath", "remove_stale_socket"]


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
