"""A simulated Spark application: a driver, the Python workers of its executors, stages with retries and speculation."""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_client.base.errors import DeadLetterFailed, FunctionFailed, ServerUnavailable
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from tests.simulation.oracles import Violation, allowed_codes, check_streams, may_fail
from tests.simulation.scenario import EXECUTORS
from tests.simulation.scheduler import Process
from tests.simulation.spark import SparkWorker
from tests.simulation.threads import SimulatedThreads

__all__ = ["MOST_ATTEMPTS", "Application", "JobFailed", "TaskAttempt"]

MOST_ATTEMPTS = 4
"""Spark's own number of attempts at a task."""
RESTART_SECONDS = (0.5, 5.0)
RESUBMIT_SECONDS = 1.0
"""In mode `liveness` a job that has failed begins again after this time."""
SOON_SECONDS = (0.0, 0.3)
KILLED = 0.7
"""Share of the attempts that are killed once another attempt at their task has succeeded; the others go on."""
Body = Callable[[Runtime, "TaskAttempt"], Any]
"""What a task does. Its result goes to the driver."""


class JobFailed(Exception):
    """A task has failed as often as Spark allows."""


@dataclass(eq=False)
class TaskAttempt:
    """One attempt at a task, in a process that other tasks have used and will use."""

    worker: SparkWorker
    info: TaskInfo
    streams: list[CallStream] = field(default_factory=list)
    passed: list[Any] = field(default_factory=list)
    """The rows of the input that have left the task with a value, as far as its body says so."""
    outcomes: tuple[Any, ...] = ()
    error: Exception | None = None
    ended: bool = False

    @property
    def done(self) -> bool:
        return self.ended and self.error is None


class Application:
    """Runs jobs, each in a thread of the driver. After a crash of the driver it starts again with those left."""

    def __init__(self, world: Any, jobs: Sequence[Any]) -> None:
        self.world = world
        self.jobs = list(jobs)
        self.starts = 0
        self.attempts: list[TaskAttempt] = []
        self._random = world.scheduler.random("application")
        self._running: dict[TaskAttempt, Callable[[], None]] = {}
        """Attempts that run, and what tells the driver that their executor is lost."""
        self._idle: list[SparkWorker] = []
        self._workers = 0
        self._ended = 0

    def start(self) -> None:
        self.starts += 1
        self.process = Process(self.world.scheduler, f"driver#{self.starts}")
        self.threads = SimulatedThreads(self.process)
        self.world.processes.append(self.process)
        for job in self.jobs:
            if not job.ended:
                self.threads.start("job", self._run, job)

    def crash(self) -> None:
        """The driver ends at once, and its executors with it."""
        if not self.process.alive or all(job.ended for job in self.jobs):
            return
        self.world.scheduler.note(self.process.name, "crashes")
        self.process.kill()
        for attempt in list(self._running):
            self._kill(attempt)
        for worker in self._idle:
            worker.process.kill()
        self._idle.clear()
        self.world.network.process.after(self._random.uniform(*RESTART_SECONDS), self.start)

    def _lose(self, attempt: TaskAttempt) -> None:
        """The process in which a task runs ends at once; the driver finds out later."""
        if attempt in self._running:
            self.process.after(self._random.uniform(0.1, 3.0), self._running[attempt])
            self._kill(attempt)

    def run_stage(self, bodies: Sequence[Body], info: TaskInfo, speculates_after: float) -> list[Any]:
        """The result of each task, in order. A task that takes longer than that gets a second attempt.

        Raises JobFailed.
        """
        reports = self.threads.queue()
        results: dict[int, Any] = {}
        failures = [0] * len(bodies)
        running: list[list[TaskAttempt]] = [
            [self._launch(body, replace(info, partition=partition), reports)] for partition, body in enumerate(bodies)
        ]
        while len(results) < len(bodies):
            try:
                attempt, result, error = reports.get(timeout=speculates_after)
            except queue.Empty:
                for partition, body in enumerate(bodies):
                    if partition not in results and len(running[partition]) == 1:
                        running[partition].append(self._launch(body, replace(info, partition=partition), reports))
                continue
            partition = attempt.info.partition
            running[partition].remove(attempt)
            if partition in results:
                continue
            if error is None:
                results[partition] = result
                self._end_others(running[partition])
                continue
            failures[partition] += 1
            if failures[partition] == MOST_ATTEMPTS:
                self._end_others([each for attempts in running for each in attempts])
                raise JobFailed(str(error))
            if not running[partition]:
                running[partition].append(self._launch(bodies[partition], replace(info, partition=partition), reports))
        return [results[partition] for partition in range(len(bodies))]

    def _run(self, job: Any) -> None:
        lives = self.world.scenario.mode == "liveness"
        while not job.ended:
            try:
                job.run(self)
                job.error = None
            except JobFailed as error:
                job.error = error
                self.threads.sleep(RESUBMIT_SECONDS)
            job.ended = job.error is None or not lives
        self.world.scheduler.note(self.process.name, f"job {job.name} ends: {'failed' if job.error else 'well'}")
        self.world.left -= 1

    def _end_others(self, attempts: Sequence[TaskAttempt]) -> None:
        for attempt in attempts:
            if self._random.random() < KILLED:
                self.process.after(self._random.uniform(0.0, 1.0), self._kill, attempt)

    def _kill(self, attempt: TaskAttempt) -> None:
        if self._running.pop(attempt, None) is not None:
            self.world.scheduler.note(attempt.worker.process.name, "is killed")
            attempt.worker.process.kill()
            self.world.network.hang_up(attempt.worker.process.name)

    def _launch(self, body: Body, info: TaskInfo, reports: Any) -> TaskAttempt:
        worker = self._idle.pop() if self._idle else self._new_worker()
        attempt = TaskAttempt(worker, replace(info, task_attempt=len(self.attempts)))
        self.attempts.append(attempt)
        self._running[attempt] = lambda: reports.put((attempt, None, JobFailed("executor lost")))
        note = self.world.scheduler.note
        note(worker.process.name, f"begins attempt {attempt.info.task_attempt} of partition {info.partition}")

        def run() -> None:
            result = None
            try:
                result = body(worker.runtime(attempt.info, attempt.streams), attempt)
            except Exception as error:
                attempt.error = error
                error.__traceback__ = None
            attempt.ended = True
            self._ended += 1
            if self._ended in self.world.scenario.crashes:
                self.world.network.process.after(self._random.uniform(*SOON_SECONDS), self.crash)
            note(worker.process.name, f"task ends: {type(attempt.error).__name__ if attempt.error else 'well'}")
            self._check(attempt)
            worker.process.after(self._random.uniform(0.0005, 0.05), report, result)

        def report(result: Any) -> None:
            if self._running.pop(attempt, None) is not None:
                if attempt.error is None:
                    self._idle.append(worker)
                reports.put((attempt, result, attempt.error))

        worker.threads.start("task", run)
        if attempt.info.task_attempt in self.world.scenario.losses:
            self.world.network.process.after(self._random.uniform(*SOON_SECONDS), self._lose, attempt)
        return attempt

    def _new_worker(self) -> SparkWorker:
        self._workers += 1
        name = f"task{self._workers % EXECUTORS}.{self._workers}"
        worker = SparkWorker(self.world.network, name, self.world.resolve, self.world.files)
        self.world.workers.append(worker)
        return worker

    def _check(self, attempt: TaskAttempt) -> None:
        name, error = attempt.worker.process.name, attempt.error
        if error is None:
            check_streams(self.world, name, attempt.streams)
            return
        expected = isinstance(error, ServerUnavailable) and may_fail(self.world)
        if isinstance(error, DeadLetterFailed):
            # A restart of the query deletes what tasks of earlier runs write.
            runs = [each.info.query_run for each in self.attempts if each.info.query == attempt.info.query]
            expected = attempt.info.query_run != runs[-1]
        if isinstance(error, FunctionFailed):
            kinds = {each.kind for each in self.world.rows.behaviours.values()} - {"error"}
            expected = any(code in str(error) for code in allowed_codes(self.world, kinds))
        if not expected:
            raise Violation(f"{name}: a task failed with {type(error).__name__}: {error}")
