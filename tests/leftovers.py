"""What a test must not leave behind: streams that go on, with mappings, files and threads; ended processes; a scope."""

import contextlib
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from remote_udf.shared_memory import NAME
from udf_server.base.call_scope import NO_CALL, current_scope

__all__ = ["Leftovers", "mapped", "watch_streams"]

GRACE_SECONDS = 5.0
"""For what ends on a thread of its own, such as a stream whose client has just gone."""
_FILE = f"/memfd:{NAME}"
"""In the name of the file of a mapping. The folder of the checkout may have the name of the project, too."""
_THREADS = re.compile(r"remote-udf-reader|remote-udf-spans|local-requests|Thread-\d+ \(_run\)")
"""Names of threads that belong to a stream; the last are gRPC's, one for each stream of a client."""
_running: set[Any] = set()
_mappings = {"made": 0, "counted": -1, "found": 0}
"""How many mappings this process has made; how many of them there were at the last count, and what it found."""


def _count_mappings(event: str, arguments: object) -> None:
    if event == "mmap.__new__":
        _mappings["made"] += 1


sys.addaudithook(_count_mappings)


def watch_streams() -> None:
    """Has every stream of this process be known from here on."""
    from udf_server.streams.execute_stream import ExecuteStream

    run = ExecuteStream.run

    async def watched(self: Any, *arguments: Any) -> None:
        _running.add(self)
        try:
            await run(self, *arguments)
        finally:
            _running.discard(self)

    ExecuteStream.run = watched  # type: ignore[method-assign]


class Leftovers:
    """What is there before a test, to be compared with what is there after it."""

    def __init__(self) -> None:
        self._before = _present()

    def more(self) -> Counter[str]:
        """What has come since, and does not go by itself. The collector is not asked to help."""
        until = time.monotonic() + GRACE_SECONDS
        while (more := _present() - self._before) and time.monotonic() < until:
            time.sleep(0.01)
        return more


def _present() -> Counter[str]:
    # A test that runs in the scope of an ended stream would wait for calls that nothing begins.
    found = Counter({"stream": len(_running), "scope of a call": int(current_scope.get() is not NO_CALL)})
    found["thread"] = sum(_THREADS.fullmatch(thread.name) is not None for thread in threading.enumerate())
    if sys.platform == "linux":
        found.update(_not_waited_for())
        found["mapping of shared memory"] += _mapped_here()
        # Twice a test: paths as objects would take most of the time.
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):  # the one of the listing itself
                found["file of shared memory"] += _FILE in os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return found


def _mapped_here() -> int:
    """Those of this process. Reading them takes a millisecond, so it is done only if something was or is mapped."""
    if _mappings["found"] or _mappings["made"] != _mappings["counted"]:
        _mappings.update(counted=_mappings["made"], found=mapped())
    return _mappings["found"]


def _not_waited_for() -> list[str]:
    """A process that has ended, if there is one: Python warns when its Popen is collected, and a later test fails."""
    with contextlib.suppress(ChildProcessError):  # there is no process at all
        if ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return [f"process {ended.si_pid}, which has ended and was not waited for"]
    return []


def mapped(process: int | str = "self") -> int:
    """How many streams' shared memory a process has mapped."""
    return sum(_FILE in line for line in Path(f"/proc/{process}/maps").read_text().splitlines())
