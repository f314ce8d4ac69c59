"""The cores and the memory that a server may use, and what part each of its worker processes gets of its limits."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path

from udf_server.security.callers import CallerSettings
from udf_server.serving.config import AT_LEAST, ServerConfig, settings
from udf_server.serving.groups import DEFAULT_GROUP

__all__ = ["divided_settings", "limited_cores", "limited_memory", "part_of", "worker_processes"]

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
    limits = [max(int(cores), 1) for cores in _limits_of("cpu", _quota, root)]
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
        if usable < (os.cpu_count() or 1):
            limits.append(usable)
    return min(limits, default=None)


def _quota(folder: Path, version: int) -> float:
    """In cores. Raises OSError or ValueError if there is none."""
    if version == 2:
        quota, period = (folder / "cpu.max").read_text().split()
    else:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota) / int(period)


def _limits_of(controller: str, read: Callable[[Path, int], float], root: Path) -> Iterator[float]:
    """The limits of the control group of this process, such as that of its container, and of those that contain it.

    There are none if it is not on Linux.

    Args:
        controller: What is limited, such as `cpu`.
        read: The limit in the folder of a group, of version 1 or 2. Raises OSError or ValueError if there is none;
            neither is one that is not positive.
        root: The folder in which /proc and /sys are read.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # A container often sees its own group as the root, while the path is the one on its host.
        folder = root / CGROUPS / (controller if controllers else "")
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1 if ".." not in parts else 1):
            try:
                limit = read(folder.joinpath(*parts[:depth]), 1 if controllers else 2)
            except (OSError, ValueError, ZeroDivisionError):
                continue
            if limit > 0:
                yield limit


def limited_memory(root: Path = Path("/")) -> int | None:
    """The bytes that the processes of this container may have together; None if nothing limits them."""
    return min(map(int, _limits_of("memory", _memory, root)), default=None)


def _memory(folder: Path, version: int) -> float:
    """Without a limit, version 1 has a number that no machine has, and version 2 "max"."""
    return int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text())


OF_GROUP = ("max_connections",)
"""Settings that are divided among the processes of a group, and not of all groups."""
BY_MEMORY = ("max_server_bytes", "cache_max_bytes")
"""Settings that are divided in proportion to the memory of groups, which may have their own."""


def divided_settings() -> list[str]:
    """The names of the settings that are divided among the worker processes of a server."""
    return [setting.name for setting in settings() if setting.metadata["divided"]]


def part_of(config: ServerConfig, number: int, group: str = DEFAULT_GROUP) -> ServerConfig:
    """The settings of one of the worker processes of a group.

    The rows of callers are divided too. No limit is less than its minimum. A cache in a file is not divided, because
    the processes share it. Connections are those of a group: each group has a port.

    Args:
        config: The settings of the server.
        number: The processes of the default group.
        group: The name of the group.
    """
    processes = {DEFAULT_GROUP: number, **{name: each.processes for name, each in config.groups.items()}}
    shared = () if config.cache_url == "memory:" else ("cache_max_bytes",)
    limits = {
        name: max(_part(config, name, processes, group), AT_LEAST[name])
        for name in divided_settings()
        if name not in shared
    }
    callers = {name: _part_of_caller(caller, sum(processes.values())) for name, caller in config.callers.items()}
    return ServerConfig(**vars(config) | limits | {"callers": callers})


def _part(config: ServerConfig, name: str, processes: Mapping[str, int], group: str) -> int:
    """What a process of the group has of a setting."""
    whole: int = getattr(config, name)
    if name in OF_GROUP:
        return whole // processes[group]
    if name not in BY_MEMORY:
        return whole // sum(processes.values())
    own = {each: size for each, table in config.groups.items() if (size := getattr(table, name)) is not None}
    if group in own:
        return int(own[group] // processes[group])
    memory = {each: Fraction(table.memory, table.processes) for each, table in config.groups.items() if table.memory}
    # A process without a limit of memory counts like the average one that has one.
    average = sum(memory[each] * processes[each] for each in memory) / (sum(processes[each] for each in memory) or 1)
    parts = {each: memory.get(each, average or Fraction(1)) for each in processes if each not in own}
    return int(whole * parts[group] / sum(parts[each] * processes[each] for each in parts))


def _part_of_caller(caller: CallerSettings, processes: int) -> CallerSettings:
    rows = caller.max_rows_in_flight
    return caller if rows is None else dataclasses.replace(caller, max_rows_in_flight=max(rows // processes, 1))
