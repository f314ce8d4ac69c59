"""MemoryWatch keeps the processes of groups within the memory of their tables: they are replaced, or killed."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from udf_server.serving.process_group import ProcessGroup

__all__ = ["MemoryWatch", "resident_bytes"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
NEAR = 0.9
"""Part of its memory with which a process is replaced."""
RENEW_SECONDS = 60.0
"""A group is not replaced again before this time has passed: it may need more than its memory from the start."""


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 if there is none, or if the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class MemoryWatch:
    """Run it on a thread."""

    def __init__(
        self, groups: Callable[[], Sequence[ProcessGroup]], renew: Callable[[ProcessGroup], None],
        registry: CollectorRegistry, *, resident: Callable[[int], int] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`groups` are those with processes, `renew` replaces one, and `resident` is the memory of a process."""
        self._groups, self._renew, self._resident, self._clock = groups, renew, resident, clock
        self._renewed: dict[str | None, float] = {}
        self._exceeded = Counter(
            "udf_memory_exceeded_total",
            "Processes of a group that came near its memory and were replaced, or exceeded it and were killed.",
            ["group", "action"],
            registry=registry,
        )

    def run(self, stopping: threading.Event) -> None:
        """Look each second, until the server stops."""
        while not stopping.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Kill each process that exceeds its part of the memory of its group, and replace groups of those near it."""
        for group in self._groups():
            if group.memory is not None:
                self._look_at(group, group.memory)

    def _look_at(self, group: ProcessGroup, memory: int) -> None:
        replaced, killed = (self._exceeded.labels(group.name, action) for action in ("replaced", "killed"))
        for worker in group.workers:
            part, used = memory // len(group.workers), self._resident(worker.process.pid)
            facts = {**worker.named, "bytes": used, "limit": part}
            if used > part:
                log.error("worker exceeds the memory of its group and is killed", extra=facts)
                killed.inc()
                worker.process.kill()
            elif used > NEAR * part and not group.retired and self._may_renew(group.name):
                log.warning("worker comes near the memory of its group, which is replaced", extra=facts)
                replaced.inc()
                self._renew(group)

    def _may_renew(self, group: str | None) -> bool:
        now = self._clock()
        if now - self._renewed.get(group, -RENEW_SECONDS) < RENEW_SECONDS:
            return False
        self._renewed[group] = now
        return True
