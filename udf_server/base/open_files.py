"""The file descriptors that this process has open, against the limit that the system sets (`ulimit -n`)."""

import contextlib
import errno
import logging
import os
from pathlib import Path
from typing import NamedTuple

from remote_udf.errors import ErrorCode, ErrorKind, StreamError

try:
    import resource
except ImportError:  # there are no such limits on Windows
    resource = None  # type: ignore[assignment]

__all__ = [
    "HTTP_CONNECTIONS", "LOOP_FILES", "OpenFiles", "affordable_connections", "are_exhausted", "open_files",
    "out_of_files",
]  # fmt: skip

log = logging.getLogger(__name__)

LOOP_FILES = 5
"""Descriptors of an event loop."""
HTTP_CONNECTIONS = 128
"""Maximum number of open connections to the HTTP port."""
RESERVED_FILES = 128
"""Minimum number of descriptors for modules, logs, shared memory, and connections of functions."""
_FOLDER = Path("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd")  # noqa: PTH110
_RETRY_SECONDS = 1.0


class OpenFiles(NamedTuple):
    """Numbers of descriptors."""

    open: int
    most: int

    @property
    def spare(self) -> int:
        """Descriptors that functions leave free, so that connections, above all of health checks, are accepted."""
        return max(16, min(64, self.most // 8))

    @property
    def for_loops(self) -> int:
        """Number of further event loops."""
        return max(self.most - self.spare - self.open, 0) // LOOP_FILES

    def __str__(self) -> str:
        return f"{self.open} of {self.most} file descriptors are open (ulimit -n), and {self.spare} are kept free"


def open_files() -> OpenFiles | None:
    """The numbers of this process; None if there is no limit, or if the system does not list open descriptors."""
    if resource is None:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return None
    try:
        return OpenFiles(len(os.listdir(_FOLDER)), most)  # noqa: PTH208
    except FileNotFoundError:  # in a root file system without /proc
        return None


def are_exhausted(error: BaseException) -> bool:
    """Whether the error says that the process, or the system, has no descriptor left."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def out_of_files(where: str, found: OpenFiles | None) -> StreamError:
    """What a stream gets if there are too few descriptors for its function. `where` begins the message."""
    numbers = "all file descriptors are open" if found is None else str(found)
    message = f"{where}: {numbers}; raise the limit, serve fewer functions per server, or add servers"
    return StreamError(
        ErrorKind.WORKER, ErrorCode.OVERLOADED, message, retryable=True, retry_after=_RETRY_SECONDS
    )  # fmt: skip


def affordable_connections(wanted: int, loops: int = 0) -> int:
    """`wanted`, or fewer if the limit of open files is lower. First increases the soft limit as far as allowed.

    `loops` is the number of functions that have an event loop while they are used. Their descriptors are counted for
    the soft limit only, because seldom all functions are used.
    """
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = wanted + HTTP_CONNECTIONS + RESERVED_FILES
    needed = required + loops * LOOP_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= required:
        return wanted
    # If the limit is low, half of the descriptors are kept for functions and other files.
    affordable = max(soft - HTTP_CONNECTIONS - RESERVED_FILES, soft // 2, 1)
    log.warning("the limit of open files lowers max_connections", extra={"open_files": soft, "connections": affordable})
    return affordable
