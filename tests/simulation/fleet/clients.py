"""The clients of a fleet: each is a Python worker of Spark with one stream, which sends a few rows now and then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Chunk
from spark_client.executor.stream.silence import SilenceWatch
from spark_client.executor.stream.task import TaskInfo
from tests.simulation.files import SharedFiles
from tests.simulation.fleet.work import work
from tests.simulation.network import Network
from tests.simulation.spark import SparkWorker

__all__ = ["PAUSE_SECONDS", "ROWS", "Client", "Message"]

ROWS = 4
"""Rows of a message."""
PAUSE_SECONDS = (20.0, 60.0)
"""How long Spark takes for its next rows."""
FREQUENT_SECONDS = (4.0, 12.0)
"""The same of frequent clients."""
BEGIN_SECONDS = 20.0
"""The clients begin within this time."""
AGAIN_SECONDS = 1.0
"""After this time Spark begins a task again that has failed."""
LOOK_SECONDS = 5.0
SCHEMA = pa.schema({"x": pa.int64()})
COLUMN = pa.chunked_array([pa.array(range(ROWS), pa.int64())])


@dataclass(frozen=True)
class Message:
    """A message: when it was sent, how long its last outcome took, and how many of its rows failed."""

    at: float
    seconds: float
    failed: int


class Client:
    """One client, from `begin` to the end of the fleet."""

    def __init__(
        self, network: Network, number: int, resolve: Callable[[], list[str]], until: float, *, frequent: bool
    ) -> None:
        """`frequent` clients send more often than the others."""
        self._pauses = FREQUENT_SECONDS if frequent else PAUSE_SECONDS
        self.worker = SparkWorker(network, f"client{number}", resolve, SharedFiles())
        self.worker.watch = SilenceWatch(LOOK_SECONDS, threads=self.worker.threads)
        self.messages: list[Message] = []
        self.streams: list[CallStream] = []
        self.failed_tasks = 0
        self._scheduler, self._until, self._number = network.scheduler, until, number

    @property
    def reconnects(self) -> int:
        """How often its stream was opened again, with rows in flight or without."""
        return (
            len(self.streams)
            - 1
            + sum(stream.statistics.replays + stream.statistics.reconnects for stream in self.streams)
        )

    def begin(self) -> None:
        self.worker.threads.start("client", self._run)

    def _run(self) -> None:
        self.worker.threads.sleep(self.worker.random.uniform(0.0, BEGIN_SECONDS))
        while self._scheduler.now < self._until:
            try:
                self._task()
            except ServerUnavailable:
                self.failed_tasks += 1
                self.worker.threads.sleep(AGAIN_SECONDS)

    def _task(self) -> None:
        call = ScalarCall(work.spec, 1, {}, "fleet", ClientConfig("fleet", shared_memory=False))
        runtime = self.worker.runtime(TaskInfo(job="fleet", partition=self._number), self.streams)
        stream = runtime.open_stream(call, SCHEMA)
        while self._scheduler.now < self._until:
            self._send(stream)
            self._pause()
        stream.finish()

    def _send(self, stream: CallStream) -> None:
        began = self._scheduler.now
        assert stream.has_room()  # nothing is in flight; this also decides whether the stream moves
        answers: list[Any] = stream.submit(Chunk(None, np.arange(ROWS), (COLUMN,), COLUMN.nbytes))
        while stream.unanswered:
            answers += stream.receive()
        failed = sum(len(answer.errors) for answer in answers)
        self.messages.append(Message(began, self._scheduler.now - began, failed))

    def _pause(self) -> None:
        self.worker.threads.sleep(self.worker.random.uniform(*self._pauses))
