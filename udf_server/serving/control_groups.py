"""The limits of the control groups that a process is in, such as those of its container."""

from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["limited_memory", "limits_of"]

CGROUPS = Path("sys/fs/cgroup")


def limits_of(controller: str, read: Callable[[Path, int], float], root: Path = Path("/")) -> Iterator[float]:
    """The limits of the group of this process and of the groups that contain it; none if it is not on Linux.

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
    return min(map(int, limits_of("memory", _memory, root)), default=None)


def _memory(folder: Path, version: int) -> float:
    """Without a limit, version 1 has a number that no machine has, and version 2 "max"."""
    return int((folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).read_text())
