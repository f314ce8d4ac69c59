"""Draws the scenario of a seed: tasks or jobs with their rows, servers with their limits and guards, and faults."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.simulation.crowds import crowded
from tests.simulation.functions import Behaviour, drawn_behaviour
from tests.simulation.scenario import (
    EXECUTORS,
    LEDGER_FAULTS,
    SERVER_FAULTS,
    Fault,
    HedgePlan,
    JobPlan,
    Limits,
    Scenario,
    TaskPlan,
)
from udf_server.limits.settings import GuardSettings
from udf_server.streams.services import AdmissionLimits, StreamLimits

__all__ = ["drawn"]

NAMES = ("slow", "threaded", "vectorized")
SHARED = ("merged", "listed")
"""Functions whose calls several streams share."""
LINK_FAULTS = (
    "cut", "half-client", "half-server", "doubled", "hole", "hole-to-server", "hole-to-client", "slow-link", "late",
)  # fmt: skip
LIMITED = 0.2
"""Share of the worlds of mode `safety` whose servers have small limits."""
FEW_CALLS, MOST_CALLS = 10, 10_000
"""With fewer calls in flight than the first, several tasks wait for one function of one server."""
RESTART_SECONDS = (0.05, 8.0)
MERGED = 0.2
"""Share of the worlds whose tasks share calls of one function."""
GUARDED = 0.15
"""Share of the worlds whose servers guard the function `slow`."""
SPENDING = 0.4
"""Share of the worlds with a guard whose calls spend tokens."""
HEDGED = 0.15
"""Share of the worlds whose servers send second calls for slow calls of `slow`."""
APPLICATIONS = 0.25
"""Share of the worlds with an application instead of tasks."""
JOB_ROWS = 20
"""The most rows of a job."""
JOBS = ("letters", "aggregate", "process", "stream", "stream")


def drawn(seed: int, mode: str) -> Scenario:
    """The scenario of a seed. In mode `liveness` every fault ends, and the world is then healthy."""
    random = Random(f"scenario {mode} {seed}")
    servers = random.choice((1, 2, 2, 3, 4))
    tasks = tuple(_task(random) for _ in range(random.choice((1, 1, 2, 3, 4))))
    horizon = random.choice((0.5, 5.0, 30.0))
    faults = tuple(_fault(random, horizon, servers, len(tasks)) for _ in range(random.choice((0, 1, 2, 4, 8, 16))))
    faults = tuple(sorted(faults, key=lambda fault: fault.at))
    quiet = max((fault.at + fault.seconds for fault in faults), default=0.0)
    lasting: tuple[str, ...] = ()
    if mode == "liveness":
        lasting = tuple(random.choice(("", "", "crash", "freeze", "hole")) for _ in range(servers - 1))
    limits = _limits(random) if mode == "safety" and random.random() < LIMITED else None
    scenario = Scenario(seed, mode, servers, tasks, faults, quiet, lasting, limits=limits)
    scenario = _merged(Random(f"merged {mode} {seed}"), scenario)
    scenario = _application(Random(f"jobs {mode} {seed}"), scenario)
    if limits is not None and scenario.tasks:
        return crowded(random, scenario) if limits.calls < FEW_CALLS else scenario
    scenario = _guarded(Random(f"guard {mode} {seed}"), scenario)
    return scenario if scenario.limits else _hedged(Random(f"hedge {mode} {seed}"), scenario)


def _merged(random: Random, scenario: Scenario) -> Scenario:
    """The same scenario, perhaps with tasks whose rows meet in common calls."""
    if random.random() >= MERGED:
        return scenario
    name = random.choice(SHARED)
    plan = scenario.tasks[0]
    more = tuple(
        replace(task, functions=(name,), timeout=plan.timeout, attempts=plan.attempts)
        for task in (*scenario.tasks, *(_task(random) for _ in range(random.choice((0, 1, 3)))))
    )
    return replace(scenario, tasks=more)


def _application(random: Random, scenario: Scenario) -> Scenario:
    """The same scenario, perhaps with jobs in place of its tasks."""
    if random.random() >= APPLICATIONS:
        return scenario
    jobs = tuple(_job(random, task) for task in scenario.tasks[:2])
    numbers = [tuple(random.sample(range(12), random.choice((0, 0, 1, 2)))) for _ in range(2)]
    faults = tuple(replace(fault, client=fault.client % EXECUTORS) for fault in scenario.faults)
    limits = replace(scenario.limits, streams=StreamLimits(), calls=MOST_CALLS) if scenario.limits else None
    return replace(
        scenario, tasks=(), jobs=jobs, faults=faults, losses=numbers[0], crashes=numbers[1], limits=limits
    )  # fmt: skip


def _job(random: Random, calls: TaskPlan) -> JobPlan:
    kind = random.choice(JOBS)
    keeps_errors = kind == "aggregate" and random.random() < 0.5
    # A job has several tasks, each of them several attempts.
    calls = replace(calls, rows=calls.rows[:JOB_ROWS], pause=min(calls.pause, 0.05), begins=min(calls.begins, 1.0))
    rows = list(calls.rows)
    if kind != "letters":
        # The rows of a bundle share its deadline.
        most = calls.timeout / 4 / len(rows)
        rows = [replace(row, seconds=min(row.seconds, most)) for row in rows]
    if kind == "process" or (kind == "aggregate" and not keeps_errors):
        # A row that always fails would fail the job.
        rows = [replace(row, kind="flaky") if row.kind in ("error", "hang") else row for row in rows]
    else:
        place = random.randrange(len(rows))
        rows[place] = replace(rows[place], kind="error")
    if kind == "aggregate":
        # A row that hangs would fail every key of its bundle.
        rows = [replace(row, kind="flaky") if row.kind == "hang" else row for row in rows]
    calls = replace(calls, rows=tuple(rows))
    return JobPlan(
        kind, calls, partitions=random.choice((1, 2)), reducers=random.choice((1, 2)),
        keys=random.choice((1, 3, 10)), bundle_rows=random.choice((2, 10, 100)),
        speculates_after=random.choice((0.1, 2.0, 1e6)), micro_batches=random.choice((1, 2, 3)),
        keeps_errors=keeps_errors,
    )  # fmt: skip


def _guarded(random: Random, scenario: Scenario) -> Scenario:
    """The same scenario, perhaps with a guard, and then with more calls and failures of the function that has it."""
    if random.random() >= GUARDED or _shares_calls(scenario):
        return scenario
    tasks = tuple(replace(task, functions=("slow",)) if random.random() < 0.7 else task for task in scenario.tasks)
    places = random.choice((None, 1, 3, 10))
    table: dict[str, str | float | Sequence[str]] = (
        {} if places is None else {"max-concurrency": places, "adaptive": random.random() < 0.3}
    )
    if random.random() < 0.5:
        table["rate"] = random.choice(("5/second", "20/second", "10/5 second"))
    if random.random() < 0.5:
        table |= {"breaker-failures": random.choice((1, 3, 10)), "breaker-delay": random.choice(("0.3 s", "3 s"))}
        tasks = tuple(replace(task, rows=tuple(_flaky(random, row) for row in task.rows)) for task in tasks)
    if random.random() >= 0.5:
        return _spending(replace(scenario, tasks=tasks), table)
    table["without-coordination"] = random.choice(("fail-closed", "fail-open"))
    faults = [_ledger_fault(random, scenario.quiet + 5.0) for _ in range(random.choice((0, 0, 1, 3)))]
    faults = sorted((*scenario.faults, *faults), key=lambda fault: fault.at)
    quiet = max((fault.at + fault.seconds for fault in faults), default=0.0)
    return _spending(replace(scenario, tasks=tasks, shared=True, faults=tuple(faults), quiet=quiet), table)


def _spending(scenario: Scenario, table: dict[str, str | float | Sequence[str]]) -> Scenario:
    """The same scenario with this guard, perhaps with calls that spend tokens."""
    random = Random(f"spending {scenario.mode} {scenario.seed}")
    if random.random() >= SPENDING or not scenario.tasks:
        return replace(scenario, guard=_paced(scenario, table))
    mean = random.choice((1.0, 10.0))
    if random.random() < 0.7:
        rate = f"{mean * random.choice((3, 10, 50)):g} tokens/{random.choice((2, 10, 30))} second"
        table = {**table, "rate": f"{table['rate']}, {rate}" if "rate" in table else rate}
    # Some calls go on after their lease, or the time of the rate.
    longest = random.choice((0.0, 0.0, 4.0, 12.0))
    share = random.choice((0.0, 0.3, 1.0))
    tasks = tuple(
        replace(
            task,
            rows=tuple(
                _spends(random, row, mean, min(longest, task.timeout / 3 / task.attempts), share) for row in task.rows
            ),
        )
        if task.functions == ("slow",)
        else task
        for task in scenario.tasks
    )  # fmt: skip
    rows = sum(len(task.rows) for task in tasks)
    budget = mean * rows * random.choice((0.2, 0.5, 2.0)) if scenario.shared and random.random() < 0.5 else None
    return replace(scenario, tasks=tasks, guard=_paced(scenario, table), budget=budget)


def _paced(scenario: Scenario, table: dict[str, str | float | Sequence[str]]) -> GuardSettings:
    """The settings of a guard, perhaps with another burst than the default: up to the whole rate."""
    random = Random(f"burst {scenario.mode} {scenario.seed}")
    settings = GuardSettings.parse("slow", table)
    if not settings.rate or random.random() < 0.5:
        return settings
    share = random.choice((0.3, 1.0))
    bursts = {rate.unit: rate.amount * share for rate in settings.rate}
    return GuardSettings.parse("slow", {**table, "burst": [f"{most:f} {unit}" for unit, most in bursts.items()]})


def _spends(random: Random, row: Behaviour, mean: float, longest: float, odd: float) -> Behaviour:
    """The same call with tokens. With probability `odd` its estimate is wrong, perhaps by far."""
    tokens = random.uniform(0.5, 1.5) * mean
    factor = random.choice((0.0, 0.3, 1.5, 5.0, 40.0)) if random.random() < odd else 1.0
    reports = random.choice((1, 1, 3))
    seconds = max(row.seconds, random.uniform(0, longest))
    return replace(row, tokens=tokens, spends=(tokens * factor / reports,) * reports, seconds=seconds)


def _ledger_fault(random: Random, horizon: float) -> Fault:
    return Fault(random.choice(LEDGER_FAULTS), random.uniform(0, horizon), 0, 0, random.uniform(0.1, 12.0))


def _shares_calls(scenario: Scenario) -> bool:
    return any(set(task.functions) & set(SHARED) for task in scenario.tasks)


def _hedged(random: Random, scenario: Scenario) -> Scenario:
    """The same scenario, perhaps with hedges, and then with more calls of their function, some of which hang once."""
    if random.random() >= HEDGED or not scenario.tasks or _shares_calls(scenario):
        return scenario
    hedge = HedgePlan(random.choice((0.02, 0.2)), random.choice((0.1, 0.5, 1.0)))
    tasks = scenario.tasks
    if random.random() < 0.5:
        # Nothing but slow calls: every row has a value.
        scenario = replace(scenario, faults=(), quiet=0.0, lasting=("",) * len(scenario.lasting), guard=None)
        tasks = tuple(replace(task, rows=tuple(replace(row, kind="value") for row in task.rows)) for task in tasks)
    tasks = tuple(
        replace(
            task, functions=("slow",),
            rows=tuple(replace(row, kind="slow-once") if random.random() < 0.1 else row for row in task.rows),
        )
        for task in tasks
    )  # fmt: skip
    return replace(scenario, tasks=tasks, hedge=hedge)


def _flaky(random: Random, row: Behaviour) -> Behaviour:
    return replace(row, kind="flaky", times=random.choice((1, 5))) if random.random() < 0.4 else row


def _limits(random: Random) -> Limits:
    admission = AdmissionLimits(
        function_rows=random.choice((1, 5, 50)), server_bytes=random.choice((1_000, 10_000, 2 << 30)),
        streams=random.choice((1, 2, 4_000)),
    )  # fmt: skip
    calls = random.choice((2, 5, MOST_CALLS))
    if calls < FEW_CALLS:
        admission = AdmissionLimits()  # otherwise the rows of one stream would wait, not those of several
    streams = StreamLimits(
        unanswered_rows=random.choice((5, 20, 1_000_000)), unanswered_bytes=random.choice((1_000, 128 << 20)),
        result_bytes=random.choice((100, 16 << 20)),
    )  # fmt: skip
    return Limits(admission, streams, calls)


def _task(random: Random) -> TaskPlan:
    timeout = random.choice((1.0, 3.0, 10.0, 30.0))
    odd = random.choice((0.0, 0.0, 0.05, 0.3))
    pace = random.choice((0.0, 0.001, 0.02, timeout / 20))
    rows = tuple(drawn_behaviour(random, odd, 0, 2 * pace) for _ in range(random.choice((1, 7, 20, 50))))
    return TaskPlan(
        functions=tuple(random.choice(NAMES) for _ in range(random.choice((1, 1, 1, 2)))),
        ordered=random.random() < 0.6,
        rows=rows,
        batch_rows=random.choice((1, 5, 20, 100)),
        begins=random.choice((0.0, random.uniform(0, 5))),
        pause=random.choice((0.0, 0.0, 0.05, 1.0)),
        timeout=timeout,
        attempts=random.choice((1, 2, 4)),
        capacity=random.choice((1, 3, 20)),
        connect_seconds=random.choice((2.0, 10.0)),
        stream_seconds=random.choice((0.5, 5.0, 300.0)),
        max_replays=random.choice((1, 50, 50)),
        message_rows=random.choice((5, 40, 65_536)),
        held_bytes=random.choice((100, 64 << 20, 64 << 20)),
    )


def _fault(random: Random, horizon: float, servers: int, clients: int) -> Fault:
    kind = random.choice((*LINK_FAULTS, *SERVER_FAULTS))
    seconds = random.uniform(*RESTART_SECONDS) if random.random() < 0.7 else random.uniform(0, 60)
    return Fault(kind, random.uniform(0, horizon), random.randrange(servers), random.randrange(clients), seconds)
