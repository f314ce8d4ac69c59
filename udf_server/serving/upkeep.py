"""Upkeep is what a server does at intervals: it ends idle streams, updates metrics, and shows that its loop runs."""

import asyncio
import itertools
import logging
import time

import pyarrow as pa

from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.function_host import FunctionHost
from udf_server.limits.budgets import Budgets
from udf_server.serving.tuning import return_memory
from udf_server.streams.service import UdfService

__all__ = ["Upkeep"]

log = logging.getLogger(__name__)

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
                metrics.crowded(seconds)
            metrics.show("threads_allowed", hosted.threads_allowed)
