"""A world runs one scenario: servers, tasks and faults on one scheduler, then the oracles."""

import contextlib
import functools
import gc
import hashlib
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.application import MOST_ATTEMPTS, Application
from tests.simulation.bounds import Bounds
from tests.simulation.faults import heal, inject
from tests.simulation.files import SharedFiles
from tests.simulation.functions import SCALAR_FUNCTIONS, Rows, active
from tests.simulation.jobs import AggregateJob, LetterJob, ProcessJob
from tests.simulation.keyed_functions import Counted, Totals
from tests.simulation.network import Network
from tests.simulation.oracles import (
    Violation,
    check_attempt,
    check_calls,
    check_deadline,
    check_jobs,
    check_leftovers,
    check_probe,
)
from tests.simulation.queries import Query
from tests.simulation.scenario import PROBE, Scenario
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.servers import SimulatedServer
from tests.simulation.sharing import SimulatedRedis
from tests.simulation.spark import Attempt, SparkWorker
from tests.simulation.spending import Spending, SpendingObserver
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.hosting.executors import HostLimits
from udf_server.process.declaration import declare_process

__all__ = ["FUNCTIONS", "SETTLE_SECONDS", "Result", "World", "end", "run", "worlds"]

MOST_SECONDS = 6_000.0
MOST_EVENTS = 2_000_000
LIVE_SECONDS = 3_000.0
"""In mode `liveness` everything has ended this long after the last fault."""
FUNCTIONS = (*SCALAR_FUNCTIONS, declare_aggregate(Totals), declare_process(Counted))
KINDS = {"letters": LetterJob, "aggregate": AggregateJob, "process": ProcessJob, "stream": Query}
SETTLE_SECONDS = 100.0
"""Keepalives, abandoned connections and drained servers are over after this time."""
COLLECTED = 10
"""Number of worlds after which what they have left is collected. It takes as long as a tenth of a small world."""

_worlds = itertools.count(1)


@dataclass
class Result:
    """What happened in a world."""

    scenario: Scenario
    problem: str = ""
    virtual_seconds: float = 0.0
    events: int = 0
    replays: int = 0
    rows: int = 0
    trace: list[str] = field(default_factory=list)

    @property
    def hash(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]


class World:
    """The servers, the tasks and the network of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler(scenario.seed)
        self.network = Network(self.scheduler)
        self.network.callers = self._caller
        self.rows = Rows(self._crash, self._began, self._ended, self._spent)
        self.spending = Spending(scenario.guard, scenario.budget, shared=scenario.shared)
        self.redis = self._redis()
        self.addresses = [f"server{index}" for index in range(scenario.servers)]
        self.servers = [self._server(address) for address in self.addresses]
        self.workers: list[SparkWorker] = []
        self.attempts: list[Attempt] = []
        self.left = len(scenario.tasks) + len(scenario.jobs)
        """Number of tasks and jobs that have not ended."""
        self.files = SharedFiles()
        self.processes: list[Process] = []
        """Processes that are neither servers nor workers."""
        self.application = Application(
            self, [KINDS[plan.kind](self, plan, number) for number, plan in enumerate(scenario.jobs)]
        )
        self._restarts: dict[int, Any] = {}

    def resolve(self) -> list[str]:
        return self.addresses

    def _redis(self) -> SimulatedRedis | None:
        """Where the servers share their guard."""
        guard, scheduler = self.scenario.guard, self.scheduler
        shared = guard is not None and self.scenario.shared
        random = scheduler.random("redis")
        return SimulatedRedis(guard, self.network.process, random, self.spending) if guard and shared else None

    def _server(self, address: str) -> SimulatedServer:
        tasks, guard = self.scenario.tasks, self.scenario.guard
        if (limits := self.scenario.limits) is None:
            return SimulatedServer(
                self.network, address, FUNCTIONS, guard=guard, hedge=self.scenario.hedge, redis=self.redis,
                spends=self._spends if guard is not None else None,
            )  # fmt: skip
        bounds = Bounds(limits, max(task.capacity for task in tasks)) if tasks else None
        return SimulatedServer(
            self.network, address, FUNCTIONS, limits=limits.streams, admission=limits.admission,
            host=HostLimits(calls=limits.calls), bounds=bounds, guard=guard,
        )  # fmt: skip

    def _spends(self, server: SimulatedServer) -> SpendingObserver:
        """What looks at the tokens of the calls in the process of a server that starts."""
        return SpendingObserver(
            self.spending, server.process, lambda x: self.rows.behaviours[x].tokens, server.is_alone, server.taken
        )

    def _caller(self, process: str) -> str:
        """Who a process of Spark belongs to: tasks are named task0.0, then task0.1 if they run again."""
        if not self.scenario.callers:
            return process
        return f"caller{int(process.removeprefix('task').split('.')[0]) % self.scenario.callers}"

    def begin(self) -> None:
        for server in self.servers:
            server.start()
        for index, plan in enumerate(self.scenario.tasks):
            first_x = 1_000 * (index + 1)
            for offset, behaviour in enumerate(plan.rows):
                self.rows.behaviours[first_x + offset] = behaviour
            self.network.process.after(plan.begins, self._start_task, index, 0)
        if self.scenario.jobs:
            self.application.start()
        for fault in self.scenario.faults:
            self.network.process.after(fault.at, inject, self, fault)
        if self.scenario.mode == "liveness":
            self.left += 2
            self.network.process.after(self.scenario.quiet, self._become_quiet)

    def _become_quiet(self) -> None:
        """From now on the first server and the way to it are healthy. A new process and an old one must get on."""
        heal(self)
        self.healthy = self.servers[0].process
        workers = [SparkWorker(self.network, "probe", self.resolve, self.files), *self._old_workers()]
        self.left -= 2 - len(workers)
        for number, worker in enumerate(workers):
            first_x = 100_000 * (number + 1)
            for offset, behaviour in enumerate(PROBE.rows):
                self.rows.behaviours[first_x + offset] = behaviour
            attempt = Attempt(worker, PROBE, number, first_x)
            self.attempts.append(attempt)
            self.workers.append(worker)
            worker.threads.start("probe", self._probe, attempt)

    def _old_workers(self) -> list[SparkWorker]:
        # An application may kill its workers at any time.
        return [] if self.scenario.jobs else self.workers[:1]

    def _probe(self, attempt: Attempt) -> None:
        attempt.run()
        check_attempt(self, attempt)
        check_probe(self, attempt)
        self.left -= 1

    def _start_task(self, index: int, number: int) -> None:
        worker = SparkWorker(self.network, f"task{index}.{number}", self.resolve, self.files)
        plan = self.scenario.tasks[index]
        # Waiting for a budget blocks a thread, which simulated threads cannot. Servers share budgets with a guard.
        keeps = plan.functions == ("slow",) and self.redis is not None and self.scenario.limits is None
        budget = self.scenario.budget if keeps else None
        attempt = Attempt(worker, plan, number, 1_000 * (index + 1), budget)
        self.workers.append(worker)
        self.attempts.append(attempt)

        def body() -> None:
            attempt.run()
            check_attempt(self, attempt)
            if attempt.error is not None and number + 1 < MOST_ATTEMPTS:
                self.network.process.after(0.1, self._start_task, index, number + 1)
            else:
                self.left -= 1

        worker.threads.start("task", body)

    @functools.cached_property
    def letters(self) -> list[dict[str, Any]]:
        """The dead letters at the end."""
        return self.files.letters()

    def _began(self, x: int, loop: Any, party: Any) -> None:
        """A call of `slow` has begun."""
        for observer in loop.process.observers:
            try:
                observer.began(x, loop.time(), loop, party)
            except Violation as violation:
                self.scheduler.fail(violation)

    def _ended(self, x: int, loop: Any, party: Any, began: float, went_well: bool | None) -> None:
        """A call of `slow` for a row has ended."""
        if not loop.process.alive:
            return
        for observer in loop.process.observers:
            observer.ended(x, loop.time(), loop, party, went_well)
        try:
            check_deadline(self, x, loop.process, began, loop.time())
        except Violation as violation:
            self.scheduler.fail(violation)

    def _spent(self, loop: Any, tokens: float) -> None:
        """A call of `slow` reports tokens."""
        for observer in loop.process.observers:
            if isinstance(observer, SpendingObserver):
                observer.spent(loop.time(), loop, tokens)

    def restart_later(self, server: SimulatedServer, seconds: float) -> None:
        def restart() -> None:
            if not server.running:
                server.start()
            elif server.ending:  # it was frozen meanwhile
                self.restart_later(server, 1.0)

        self.network.process.after(seconds, restart)

    def _crash(self, process: Any) -> None:
        """A row ends the server of this process."""
        for server in self.servers:
            if server.running and server.process is process:
                server.crash()
                self.restart_later(server, 0.5)


def run(scenario: Scenario, make: Callable[[Scenario], World] = World) -> Result:
    """Run a scenario to its end, within `worlds`. `Result.problem` is empty if every oracle is content."""
    if not next(_worlds) % COLLECTED:
        gc.collect()  # what is left of the worlds before
    world, result = make(scenario), Result(scenario)
    active.append(world.rows)
    try:
        world.begin()
        until = scenario.quiet + LIVE_SECONDS if scenario.mode == "liveness" else MOST_SECONDS
        if not world.scheduler.run(lambda: world.left == 0, until, MOST_EVENTS):
            raise Violation(f"{world.left} tasks have not ended after {world.scheduler.now:.0f} s")
        world.scheduler.run(lambda: False, world.scheduler.now + SETTLE_SECONDS, MOST_EVENTS)
        check_leftovers(world)
        check_calls(world)
        check_jobs(world)
    except Exception as error:
        result.problem = _described(error)
    finally:
        active.pop()
        result.virtual_seconds = world.scheduler.now
        result.events = world.scheduler.events
        result.trace = world.scheduler.trace
        attempts: list[Any] = [*world.attempts, *world.application.attempts]
        result.replays = sum(stream.statistics.replays for attempt in attempts for stream in attempt.streams)
        result.rows = sum(len(attempt.outcomes) for attempt in world.attempts)
        end(world)
    return result


def _described(error: BaseException) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    where = ""
    if not isinstance(error, Violation):
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = f" at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else ""
    return f"{type(error).__name__}: {error}{where} {notes}".strip()


@contextlib.contextmanager
def worlds() -> Iterator[None]:
    """Within this block worlds run: without logs, and without a collector that ends what crashed processes hold.

    It would do so at a time that depends on everything before. What coroutines of processes that have
    ended say when they are destroyed concerns nobody.
    """
    level, hook, collecting = logging.root.manager.disable, sys.unraisablehook, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that no loop runs any more
            yield
            gc.collect()
    finally:
        gc.unfreeze()
        sys.unraisablehook = hook
        logging.disable(level)
        if collecting:
            gc.enable()


def end(world: Any) -> None:
    """Stop every process, and unwind its threads: the collector does not see what their stacks hold."""
    processes = [world.network.process, *world.processes, *(worker.process for worker in world.workers)]
    for server in world.servers:
        server.crash()
        for process, host, loops in server.ended:
            processes.append(process)
            for task in [task for loop in loops for task in loop.tasks()]:
                # It would like to wait for something, or was in a task group.
                with contextlib.suppress(RuntimeError, BaseExceptionGroup):
                    task.get_coro().close()
            for hosted in host.hosted():
                if hosted.running_executor is not None:
                    hosted.running_executor.stop()  # otherwise its thread goes on, whatever is raised in it
    for process in processes:
        process.kill()
    for process in processes:
        for thread in list(process.threads):
            thread.throw()
