"""Simulated Spark: each task runs in a process of its own, with the real engine, streams, transport and endpoints."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.spans import NoSpan
from spark_client.base.budget import SessionBudget
from spark_client.base.calls import ErrorPolicy, ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.channels import Channels
from spark_client.executor.stream.endpoints import Endpoints
from spark_client.executor.stream.runtime import Listings, Runtime
from spark_client.executor.stream.silence import SilenceWatch
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import GrpcTransport
from tests.simulation.files import Files, SharedFiles
from tests.simulation.functions import SCALAR_FUNCTIONS, TOKENS
from tests.simulation.network import Network, SimulatedChannel
from tests.simulation.oracles import check_held
from tests.simulation.scenario import TaskPlan
from tests.simulation.scheduler import Process
from tests.simulation.threads import SimulatedThreads

__all__ = ["Attempt", "SparkWorker", "config_of", "options_of", "scalar_calls"]

SPECS = {function.spec.name: function.spec for function in SCALAR_FUNCTIONS}


class SparkWorker:
    """A Python worker of Spark: one process with its channels, endpoints and watch, as the client has them."""

    def __init__(self, network: Network, name: str, resolve: Callable[[], list[str]], files: SharedFiles) -> None:
        """`resolve` returns the addresses of the servers, or raises OSError."""
        scheduler = network.scheduler
        self.process = Process(scheduler, name)
        self.threads = threads = SimulatedThreads(self.process)
        self.random = scheduler.random(f"worker {name}")
        self.channels = Channels(
            lambda endpoint, _: cast(grpc.Channel, SimulatedChannel(network, threads, endpoint.address, self.random))
        )
        self.endpoints = Endpoints(
            "simulated", resolve=lambda _: [(address, "") for address in resolve()], clock=scheduler.clock,
            rng=scheduler.random(f"endpoints {name}"),
        )  # fmt: skip
        self.watch = SilenceWatch(threads=threads)
        self.files = Files(files, threads, self.random)
        self.listings = Listings(threads)

    def runtime(self, task: TaskInfo, streams: list[CallStream]) -> Runtime:
        """What a task uses of this process. The streams that it opens are added to `streams`."""
        scheduler, threads = self.process.scheduler, self.threads

        def opened(call: ScalarCall, schema: pa.Schema) -> CallStream:
            transport = GrpcTransport(call.config, endpoints=self.endpoints, channels=self.channels)
            stream = CallStream(
                call, schema, task, transport, clock=scheduler.clock, threads=threads, watch=self.watch,
                uniform=self.random.uniform, span=ReplaySpan(scheduler.clock),
            )  # fmt: skip
            streams.append(stream)
            return stream

        return Runtime(
            opened, task=lambda: task, clock=scheduler.clock, now=scheduler.clock, threads=threads,
            file_system=self.files.open, listings=self.listings,
        )  # fmt: skip


def config_of(plan: TaskPlan, budget: float | None = None) -> ClientConfig:
    """`budget` is the number of tokens that all tasks may spend; rows that it refuses have an error."""
    return ClientConfig(
        "simulated", connect_seconds=plan.connect_seconds, max_stream_seconds=plan.stream_seconds,
        max_replays=plan.max_replays, shared_memory=False,
        budget=None if budget is None else SessionBudget({TOKENS: budget}, None, fails=False, job="job"),
    )  # fmt: skip


def options_of(plan: TaskPlan) -> dict[str, str]:
    """The options that calls of every kind have."""
    return {
        "timeout": f"{plan.timeout}s", "max-attempts": str(plan.attempts), "retry-strategy": "fixed-delay",
        "fixed-delay": "20ms",
    }  # fmt: skip


def scalar_calls(plan: TaskPlan, policy: ErrorPolicy, budget: float | None = None) -> tuple[PlannedCall, ...]:
    """The scalar calls of a task with the first column of its input."""
    options = {
        **options_of(plan), "output-mode": "ordered" if plan.ordered else "unordered",
        "buffer-capacity": str(plan.capacity), "batch-rows": str(plan.message_rows),
    }  # fmt: skip
    return tuple(
        PlannedCall(ScalarCall(SPECS[name], 1, options, f"call{index}", config_of(plan, budget), policy), (0,))
        for index, name in enumerate(plan.functions)
    )


class ReplaySpan(NoSpan):
    """The span of a stream: it notes when rows were sent again, and for how long they had waited then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.replays: list[tuple[float, float]] = []

    def event(self, name: str, **attributes: Any) -> None:
        if name == "replay":
            self.replays.append((self._clock(), attributes["waited"]))


class Attempt:
    """One attempt at a task. `run` is the body of its thread."""

    def __init__(
        self, worker: SparkWorker, plan: TaskPlan, number: int, first_x: int, budget: float | None = None
    ) -> None:
        self.worker, self.plan, self.number, self.budget = worker, plan, number, budget
        self.xs = range(first_x, first_x + len(plan.rows))
        self.streams: list[CallStream] = []
        self.outcomes: list[tuple[int, tuple[Any, ...]]] = []
        """x, and per call its value or RowError, in the order in which Spark got them."""
        self.given: dict[int, float] = {}
        """When Spark gave each row to the client."""
        self.error: Exception | None = None
        self.done = False
        self.ended_at = 0.0

    def run(self) -> None:
        scheduler = self.worker.process.scheduler
        try:
            self._run()
        except Exception as error:
            self.error = error
            error.__traceback__ = None
        self.done = True
        self.ended_at = scheduler.now
        said = f"{type(self.error).__name__}" if self.error else f"{len(self.outcomes)} rows"
        scheduler.note(self.worker.process.name, f"task ends: {said}")

    def _run(self) -> None:
        worker, plan = self.worker, self.plan
        runtime = worker.runtime(TaskInfo(job="job", partition=self.number), self.streams)
        calls = scalar_calls(plan, ErrorPolicy(), self.budget)
        engine = RowEngine(calls, runtime, ordered=plan.ordered, held_bytes=plan.held_bytes)
        for completed in engine.run(self._batches()):
            columns = [values.to_pylist() for values in completed.values]
            for row, x in enumerate(completed.table.column(0).to_pylist()):
                found = tuple(
                    errors.get(row, column[row]) for column, errors in zip(columns, completed.errors, strict=True)
                )
                self.outcomes.append((x, found))
                worker.process.scheduler.note(worker.process.name, f"row {x}: {_shown(found)}")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self.xs), self.plan.batch_rows):
            check_held(self, start)
            if self.plan.pause:
                self.worker.threads.sleep(self.plan.pause)
            xs = self.xs[start : start + self.plan.batch_rows]
            self.given.update(dict.fromkeys(xs, self.worker.process.scheduler.clock()))
            yield pa.record_batch({"x": pa.array(list(xs), pa.int64())})


def _shown(found: tuple[Any, ...]) -> str:
    return ", ".join(each.code.value if isinstance(each, RowError) else str(each) for each in found)
