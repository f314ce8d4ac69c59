"""Connections: how many the process can afford, so that files and health checks always find a descriptor."""

import contextlib
import logging

try:
    import resource
except ImportError:  # there are no such limits on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["HTTP_CONNECTIONS", "affordable_connections"]

log = logging.getLogger(__name__)

HTTP_CONNECTIONS = 128
"""Connections to the HTTP port at a time."""
RESERVED_FILES = 128
"""For modules, logs, shared memory, and what functions connect to, at least."""


def affordable_connections(wanted: int) -> int:
    """`wanted`, or fewer where the limit of open files is lower. Raises the soft limit as far as it may first."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + HTTP_CONNECTIONS + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    # Of few files, functions and the rest get half.
    affordable = max(soft - HTTP_CONNECTIONS - RESERVED_FILES, soft // 2, 1)
    log.warning("fewer connections than max_connections", extra={"open_files": soft, "connections": affordable})
    return affordable
