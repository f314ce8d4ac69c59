"""The file descriptors that this process has open, against the limit that the system sets (`ulimit -n`)."""

import errno
import os
from pathlib import Path
from typing import NamedTuple

from remote_udf.errors import ErrorCode, ErrorKind, StreamError

try:
    import resource
except ImportError:  # there are no such limits on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["LOOP_FILES", "OpenFiles", "are_exhausted", "open_files", "out_of_files"]

LOOP_FILES = 5
"""Descriptors of an event loop."""
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
