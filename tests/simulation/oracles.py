"""What must hold in every world, whatever goes wrong."""

import asyncio
from collections import Counter
from typing import Any

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from spark_client.base.errors import ServerUnavailable
from tests.simulation.functions import value_of

__all__ = ["Violation", "check_attempt", "check_calls", "check_leftovers", "check_probe"]

FAULTY = {ErrorCode.SERVER_UNAVAILABLE, ErrorCode.TIMEOUT}
"""Errors that every row may get if servers or networks fail."""


class Violation(AssertionError):
    """An oracle is not content."""


def check_attempt(world: Any, attempt: Any) -> None:
    """The outcomes of one attempt at a task. Raises Violation."""
    name, error = attempt.worker.process.name, attempt.error
    if error is not None and (not isinstance(error, ServerUnavailable) or not may_fail(world)):
        raise Violation(f"{name} failed: {type(error).__name__}: {error}")
    found = [x for x, _ in attempt.outcomes]
    if attempt.plan.ordered and found != list(attempt.xs[: len(found)]):
        raise Violation(f"{name}: the order of rows is {found}")
    twice = [x for x, count in Counter(found).items() if count > 1]
    if twice or set(found) - set(attempt.xs):
        raise Violation(f"{name}: rows {twice or set(found) - set(attempt.xs)} came twice or were never sent")
    if error is None and len(found) != len(attempt.xs):
        raise Violation(f"{name}: rows {sorted(set(attempt.xs) - set(found))} are lost")
    for x, outcomes in attempt.outcomes:
        for outcome in outcomes:
            _check_outcome(world, attempt, x, outcome)
    if error is None:
        _check_counts(name, attempt)
    for stream in attempt.streams:
        if stream.replays and not may_fail(world):
            raise Violation(f"{name}: rows were sent again although nothing failed")
        if stream.unanswered and error is None:
            raise Violation(f"{name}: {stream.unanswered} rows are unanswered at the end")


def may_fail(world: Any) -> bool:
    """Whether servers or networks fail in this world, or servers are full."""
    scenario = world.scenario
    return bool(scenario.faults or scenario.limits) or any(
        each.kind == "crash" for each in world.rows.behaviours.values()
    )


def _check_outcome(world: Any, attempt: Any, x: int, outcome: Any) -> None:
    behaviour, plan = world.rows.behaviours[x], attempt.plan
    where = f"{attempt.worker.process.name}, row {x} ({behaviour.kind})"
    if not isinstance(outcome, RowError):
        if outcome != value_of(x):
            raise Violation(f"{where} has the value {outcome}, not {value_of(x)}")
        if behaviour.kind in ("error", "hang"):
            raise Violation(f"{where} has a value")
        return
    allowed = set(FAULTY) if may_fail(world) else set()
    if behaviour.kind in ("error", "flaky"):
        allowed.add(ErrorCode.FUNCTION_ERROR)
    if behaviour.kind == "hang":
        allowed.add(ErrorCode.TIMEOUT)
    if any(each == "vectorized" for each in plan.functions) or any(
        world.rows.behaviours[other].kind == "hang" for other in attempt.xs
    ):
        # The rows of a vectorized call share its deadline.
        allowed.add(ErrorCode.TIMEOUT)
    if outcome.code not in allowed:
        raise Violation(f"{where} failed with {outcome.code}: {outcome.message}")
    if behaviour.kind == "flaky" and outcome.code is ErrorCode.FUNCTION_ERROR and outcome.attempts < plan.attempts:
        raise Violation(f"{where} failed after {outcome.attempts} of {plan.attempts} attempts")
    if behaviour.kind == "error" and outcome.attempts > 1:
        raise Violation(f"{where} was called {outcome.attempts} times, but its error is final")


def _check_counts(name: str, attempt: Any) -> None:
    for stream in attempt.streams:
        statistics = stream.statistics
        if statistics.rows != statistics.ok + statistics.failed + statistics.skipped:
            raise Violation(f"{name}: the statistics do not add up: {statistics}")


def check_probe(attempt: Any) -> None:
    """A task that begins when a server and the way to it are healthy gets every value. Raises Violation."""
    name = attempt.worker.process.name
    if attempt.error is not None:
        raise Violation(f"{name}: the probe failed: {attempt.error}")
    for x, (outcome,) in attempt.outcomes:
        if isinstance(outcome, RowError):
            raise Violation(f"{name}: row {x} of the probe failed with {outcome.code}: {outcome.message}")


def check_calls(world: Any) -> None:
    """No row is called more often than its attempts and the replays of its streams explain. Raises Violation."""
    allowed: Counter[int] = Counter()
    for attempt in world.attempts:
        if "vectorized" in attempt.plan.functions:
            continue  # a call that fails is repeated on halves
        streams = sum(1 + stream.replays for stream in attempt.streams)
        for x in attempt.xs:
            allowed[x] += streams * attempt.plan.attempts
    for x, most in allowed.items():
        if world.rows.calls[x] > most:
            raise Violation(f"row {x} was called {world.rows.calls[x]} times; attempts and replays explain {most}")


def check_leftovers(world: Any) -> None:
    """Nothing is held after the end. Raises Violation."""
    for worker in world.workers:
        if threads := [thread.name for thread in worker.process.threads]:
            raise Violation(f"{worker.process.name}: threads are left: {threads}")
    for server in world.servers:
        if not server.running or server.process.frozen:
            continue
        service, admission = server.service, server.admission
        if service.streams or server.streams:
            raise Violation(
                f"{server.process.name}: {service.streams} streams are left, {len(server.streams)} handlers"
            )
        held = {function: rows for function, rows in admission._rows.items() if rows}
        if held or admission.bytes:
            raise Violation(f"{server.process.name}: admission holds {admission.bytes} bytes and rows {held}")
        for hosted in server.host.hosted():
            executor = hosted.running_executor
            if executor is not None and (executor.turns._holders or executor.turns._queue.groups):
                raise Violation(f"{server.process.name}: streams that have ended hold turns of {hosted.spec.key}")
        for loop in server.loops:
            if tasks := [task.get_name() for task in asyncio.all_tasks(loop) if not task.done()]:
                raise Violation(f"{server.process.name}: {len(tasks)} tasks are left")
