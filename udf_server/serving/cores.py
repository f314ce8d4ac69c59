"""How a server is divided among worker processes: their number, by devices or cores, and the part that each gets."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from udf_server.security.callers import CallerSettings
from udf_server.serving.config import AT_LEAST, ServerConfig, settings

__all__ = ["divided_settings", "limited_cores", "part_of", "worker_processes"]

CGROUPS = Path("sys/fs/cgroup")


def worker_processes(config: ServerConfig, root: Path = Path("/")) -> int:
    """The number of worker processes of a server with these settings. A Unix socket has one by default."""
    if config.devices:
        return len(config.devices)
    if config.processes or config.unix_socket:
        return max(config.processes, 1)
    return limited_cores(root) or 1


def limited_cores(root: Path = Path("/")) -> int | None:
    """The whole cores that this process may use, at least one; None if nothing limits them.

    A limit is a quota of a control group (version 1 or 2), or an affinity to some of the machine's cores. A machine of
    many cores is not a limit: a container without one sees all cores of its host, and shares them with others.

    Args:
        root: The folder in which /proc and /sys are read.
    """
    limits = [max(int(cores), 1) for cores in _quotas(root)]
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
        if usable < (os.cpu_count() or 1):
            limits.append(usable)
    return min(limits, default=None)


def _quotas(root: Path) -> Iterator[float]:
    """The quotas in cores of the group of this process and of the groups that contain it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        read = _quota_of_version_1 if controllers else _quota_of_version_2
        # A container often sees its own group as the root, while the path is the one on its host.
        folder = root / CGROUPS / ("cpu" if controllers else "")
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1 if ".." not in parts else 1):
            try:
                cores = read(folder.joinpath(*parts[:depth]))
            except (OSError, ValueError, ZeroDivisionError):
                continue  # there is no such group here, or it has no quota
            if cores > 0:
                yield cores


def _quota_of_version_2(folder: Path) -> float:
    """Raises ValueError if the quota is "max"."""
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota) / int(period)


def _quota_of_version_1(folder: Path) -> float:
    """Negative without a quota."""
    return int((folder / "cpu.cfs_quota_us").read_text()) / int((folder / "cpu.cfs_period_us").read_text())


OF_GROUP = ("max_streams", "max_streams_per_caller", "max_connections")
"""Settings that are divided among the processes of a group, and not of all groups."""
CALLER_LIMITS = ("max_streams", "max_rows_in_flight")


def divided_settings() -> list[str]:
    """The names of the settings that are divided among the worker processes of a server."""
    return [setting.name for setting in settings() if setting.metadata["divided"]]


def part_of(config: ServerConfig, processes: int, group: int | None = None) -> ServerConfig:
    """The settings of one of this many worker processes, of which its group has `group`; all if there are no groups.

    The limits of callers are divided too. No limit is less than its minimum. A cache in a file is not divided, because
    the processes share it. All streams of a server with groups pass the default group, so each group may have all.
    """
    shared = () if config.cache_url == "memory:" else ("cache_max_bytes",)
    numbers = {name: (group or processes) if name in OF_GROUP else processes for name in divided_settings()}
    limits = {
        name: max(getattr(config, name) // number, AT_LEAST[name])
        for name, number in numbers.items()
        if name not in shared
    }
    callers = {name: _part_of_caller(caller, processes, group or processes) for name, caller in config.callers.items()}
    return dataclasses.replace(config, callers=callers, **limits)


def _part_of_caller(caller: CallerSettings, processes: int, group: int) -> CallerSettings:
    limits = {name: getattr(caller, name) for name in CALLER_LIMITS}
    parts = {
        name: max(limit // (group if name in OF_GROUP else processes), 1)
        for name, limit in limits.items()
        if limit is not None
    }
    return dataclasses.replace(caller, **parts)
