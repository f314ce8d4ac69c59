"""LoopWatch finds functions that block their event loop, logs their stack, and limits threads that compute."""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from udf_server.hosting.blocked_time import LOOK_SECONDS, BlockedTime, read_thread
from udf_server.hosting.function_host import FunctionHost
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.load import LoadMeter
from udf_server.hosting.loop_executor import LoopExecutor

__all__ = ["LoopWatch"]

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 0.5
"""If a loop does not respond for this time, although it could, it is blocked: all other rows of its function wait."""
STACK_LIMIT = 2_000


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
        meter, began = LoadMeter(), time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            late = time.monotonic() - began - LOOK_SECONDS
            load = meter.look(LOOK_SECONDS)
            for hosted in self._host.hosted():
                hosted.adjust(load)
                executor = hosted.running_executor
                if executor is not None:
                    self._look(hosted, executor, late)
            began = time.monotonic()

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
