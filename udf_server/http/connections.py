"""The number of connections that the process can accept while files and health checks still get a descriptor."""

import contextlib
import logging

from udf_server.base.open_files import LOOP_FILES

try:
    import resource
except ImportError:  # there are no such limits on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["HTTP_CONNECTIONS", "affordable_connections"]

log = logging.getLogger(__name__)

HTTP_CONNECTIONS = 128
"""Maximum number of open connections to the HTTP port."""
RESERVED_FILES = 128
"""Minimum number of descriptors for modules, logs, shared memory, and connections of functions."""


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
