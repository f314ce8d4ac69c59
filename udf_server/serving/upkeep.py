"""What a server looks at all the time: its own event loop, with Upkeep, and those of functions, with LoopWatch."""

import asyncio
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.load import LoadMeter
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.hosting.registry import FunctionHost
from udf_server.limits.budgets import Budgets
from udf_server.serving.process_setup import return_memory
from udf_server.streams.service import UdfService

__all__ = ["LATE_SECONDS", "LOOK_SECONDS", "BlockedTime", "LoopWatch", "ThreadReading", "Upkeep", "read_thread"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
LATE_SECONDS = 0.05
"""If the thread that looks wakes later than this, the process was short of CPU time, or suspended."""
_TICKS = os.sysconf("SC_CLK_TCK")
BLOCKED_SECONDS = 0.5
"""If a loop does not respond for this time, although it could, it is blocked: all other rows of its function wait."""
STACK_LIMIT = 2_000


class ThreadReading(NamedTuple):
    """What the kernel says about a thread."""

    runnable: bool
    """Whether it runs or waits for a core, and does not sleep."""
    cpu: float
    """Seconds that it has run."""


def read_thread(native_id: int) -> ThreadReading | None:
    """Read the state of a thread of this process; None if there is none, or if the system does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb") as file:  # noqa: PTH123 - ten times a second
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ThreadReading(fields[0] == b"R", (int(fields[11]) + int(fields[12])) / _TICKS)


class BlockedTime:
    """The time for which a callback of a loop has blocked it, as far as that is its own doing.

    Time counts in which the thread of the loop computes, and in which it sleeps although the process gets CPU time.
    Time in which it waits for a core or for the interpreter's lock does not: another callback would wait as long.
    """

    def __init__(self, thread: ThreadReading | None) -> None:
        """`thread` is a reading from when the callback was requested."""
        self._first = self._last = thread.cpu if thread else 0.0
        self._slept = 0.0
        self.seconds = 0.0

    def look(self, late: float, thread: ThreadReading | None) -> None:
        """Count the time since the last look.

        Args:
            late: How many seconds later than requested the thread that looks has woken.
            thread: The thread of the loop; None if nothing is known about it.
        """
        sleeps = True
        if thread is not None:
            sleeps = not thread.runnable and thread.cpu == self._last
            self._last = thread.cpu
        if sleeps and late <= LATE_SECONDS:
            self._slept += LOOK_SECONDS
        self.seconds = self._slept + self._last - self._first


class _Ping:
    """One callback posted to a loop, and whether it has run."""

    def __init__(self, executor: LoopExecutor) -> None:
        self.executor = executor
        self.asked = time.monotonic()
        self.blocked = BlockedTime(read_thread(executor.native_id))
        self.answered = False
        self.told = False
        executor.post(self._answer)

    def _answer(self) -> None:
        self.answered = True


class LoopWatch:
    """A thread that checks ten times a second whether the loop of every function responds."""

    def __init__(self, host: FunctionHost, blocked: Callable[[HostedFunction], None]) -> None:
        """`blocked` is called on this thread, once each time a function is found to block its loop."""
        self._host = host
        self._blocked = blocked
        self._pings: dict[str, _Ping] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        meter, began, before = LoadMeter(), time.monotonic(), sys.getswitchinterval()
        while not self._stop.wait(LOOK_SECONDS):
            late = time.monotonic() - began - LOOK_SECONDS
            load = meter.look(self._stop.wait)
            active = 0
            for hosted in self._host.hosted():
                hosted.adjust(load)
                active += hosted.active
                executor = hosted.running_executor
                if executor is not None:
                    self._look(hosted, executor, late)
                else:
                    self._pings.pop(hosted.spec.key, None)
            sys.setswitchinterval(load.turn_seconds(active))
            began = time.monotonic()
        sys.setswitchinterval(before)

    def _look(self, hosted: HostedFunction, executor: LoopExecutor, late: float) -> None:
        key = hosted.spec.key
        ping = self._pings.get(key)
        if ping is None or ping.answered or ping.executor is not executor:
            self._pings[key] = _Ping(executor)
            return
        ping.blocked.look(late, read_thread(executor.native_id))
        if ping.blocked.seconds < BLOCKED_SECONDS or ping.told:
            return
        ping.told, blocked_for = True, time.monotonic() - ping.asked
        # The stack is read first, because it changes. The metric is last, so that the log has the line when it changes.
        frame = sys._current_frames().get(executor.thread_id)  # noqa: SLF001 - there is no other way to see another thread's stack
        stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
        log.warning(
            "event loop blocked",
            extra={"function": key, "seconds": round(blocked_for, 3), "stack": stack[-STACK_LIMIT:]},
        )
        self._blocked(hosted)


HEARTBEAT_SECONDS = 0.25
RELEASE_BEATS = 20
"""After this number of heartbeats, Arrow returns the memory of freed arrays to the system; it takes about 1 ms."""
ALIVE_SECONDS = 10.0
"""If the loop has not run for this time, it is not alive, and the orchestrator may restart the process."""


class Upkeep:
    """The heartbeat of a server. Use it on the server's event loop."""

    def __init__(
        self, host: FunctionHost, service: UdfService, cache: OutcomeCache, budgets: Budgets, metrics: ServerMetrics
    ) -> None:
        self._host, self._service, self._cache, self._budgets, self._metrics = host, service, cache, budgets, metrics
        self._task: asyncio.Task[None] | None = None
        self._beat = time.monotonic()
        self._given_back = False
        """Whether functions have ended threads whose memory the process still has."""

    def start(self) -> None:
        """Begin to beat, until `stop`."""
        self._task = asyncio.create_task(self._beat_on())

    def stop(self) -> None:
        """Safe to call without `start`."""
        if self._task is not None:
            self._task.cancel()

    def is_alive(self) -> bool:
        """Whether the loop has run lately. Safe to call from any thread."""
        return time.monotonic() - self._beat < ALIVE_SECONDS

    async def _beat_on(self) -> None:
        """Run the heartbeat: record that the loop runs and how late it is, and call `_tend`."""
        for beat in itertools.count(1):
            due = time.monotonic() + HEARTBEAT_SECONDS
            await asyncio.sleep(HEARTBEAT_SECONDS)
            before, self._beat = self._beat, time.monotonic()
            self._metrics.loop_lag.observe(max(self._beat - due, 0.0))
            try:
                self._tend(self._beat - before)
            except Exception:
                # Nobody awaits this task: if it ended, /livez would fail after a while, and no log entry would say why.
                log.exception("upkeep failed")
            if not beat % RELEASE_BEATS:
                # Otherwise the process keeps the memory of a very large value until other arrays need it.
                pa.default_memory_pool().release_unused()
                if self._given_back:
                    self._given_back = False
                    await asyncio.get_running_loop().run_in_executor(None, return_memory)

    def _tend(self, seconds: float) -> None:
        """End idle streams and update metrics, after this time since the last beat."""
        self._service.end_idle_streams()
        self._service.observe()
        self._cache.observe()
        self._budgets.sweep()
        self._given_back |= self._host.rest(time.monotonic())
        for caller, unit, part in self._budgets.used():
            self._metrics.caller_budget.labels(caller, unit).set(part)
        for hosted in self._host.hosted():
            metrics = self._metrics.function(hosted.spec.name, hosted.spec.version)
            metrics.show("turns_waiting", hosted.waiting)
            if hosted.crowded:
                metrics.crowded.inc(seconds)
            metrics.show("threads_allowed", hosted.threads_allowed)
