"""What must hold in every world, whatever goes wrong."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from remote_udf.errors import ErrorCode, StreamError
from remote_udf.outcomes import RowError
from spark_client.base.errors import ServerUnavailable
from tests.simulation.functions import MANY_ROWS, value_of

__all__ = [
    "Violation",
    "allowed_codes",
    "check_attempt",
    "check_calls",
    "check_deadline",
    "check_held",
    "check_jobs",
    "check_leftovers",
    "check_probe",
    "check_streams",
    "may_fail",
]

FAULTY = {ErrorCode.SERVER_UNAVAILABLE, ErrorCode.TIMEOUT}
"""Errors that every row may get if servers or networks fail."""


ROW_BYTES = 8
"""An argument."""
MESSAGES = 4
"""Messages that a stream may have in flight."""
END_SECONDS = 2.0
"""A stream ends at once after its last message, unless its client does not read."""
SLACK_SECONDS = 0.5
"""A server looks for deadlines at least this often, or twenty times per timeout."""


class Violation(AssertionError):
    """An oracle is not content."""


def check_attempt(world: Any, attempt: Any) -> None:
    """The outcomes of one attempt at a task. Raises Violation."""
    name, error = attempt.worker.process.name, attempt.error
    if error is not None and not _expected(world, error):
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
        check_streams(world, name, attempt.streams)


def check_streams(world: Any, name: str, streams: Any) -> None:
    """The streams of a task that has ended well. Raises Violation."""
    for stream in streams:
        statistics = stream.statistics
        if statistics.rows != statistics.ok + statistics.failed + statistics.skipped:
            raise Violation(f"{name}: the statistics do not add up: {statistics}")
        if stream.statistics.replays and not may_fail(world):
            raise Violation(f"{name}: rows were sent again although nothing failed")
        if stream.unanswered:
            raise Violation(f"{name}: {stream.unanswered} rows are unanswered at the end")


def _expected(world: Any, error: Exception) -> bool:
    """Whether a task may fail with this error."""
    if isinstance(error, StreamError) and error.code in (ErrorCode.UNKNOWN_VERSION, ErrorCode.UNKNOWN_FUNCTION):
        return any(fault.kind == "deployment" for fault in world.scenario.faults)
    return isinstance(error, ServerUnavailable) and may_fail(world)


def may_fail(world: Any) -> bool:
    """Whether servers or networks fail in this world, or servers are full."""
    scenario = world.scenario
    # A task may run when the lasting faults begin. Three servers that hang may use up a short `connect_seconds`.
    failing = any((scenario.faults, any(scenario.lasting), scenario.limits, scenario.losses, scenario.crashes))
    return failing or any(each.kind == "crash" for each in world.rows.behaviours.values())


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
    guard = world.scenario.guard if "slow" in plan.functions else None
    refused = guard is not None and (guard.breaker_failures is not None or world.scenario.shared)
    if guard is not None:
        allowed.add(ErrorCode.TIMEOUT)  # a call waits for the guard within its deadline
    if attempt.budget is not None:
        allowed |= {ErrorCode.BUDGET_SPENT, ErrorCode.BUDGET_UNAVAILABLE}
    if behaviour.kind in ("error", "flaky") or (refused and _is_refusal(outcome.message)):
        allowed.add(ErrorCode.FUNCTION_ERROR)
    if behaviour.kind == "hang" or (behaviour.kind == "slow-once" and not _always_hedged(world)):
        allowed.add(ErrorCode.TIMEOUT)
    if any(each in MANY_ROWS for each in plan.functions) or any(
        world.rows.behaviours[other].kind == "hang" for other in attempt.xs
    ):
        # The rows of a call share its deadline.
        allowed.add(ErrorCode.TIMEOUT)
    if outcome.code not in allowed:
        raise Violation(f"{where} failed with {outcome.code}: {outcome.message}")
    if behaviour.kind == "flaky" and outcome.code is ErrorCode.FUNCTION_ERROR and outcome.attempts < plan.attempts:
        raise Violation(f"{where} failed after {outcome.attempts} of {plan.attempts} attempts")
    if behaviour.kind == "error" and outcome.attempts > 1 and not refused:
        raise Violation(f"{where} was called {outcome.attempts} times, but its error is final")


def _is_refusal(message: str) -> bool:
    """Whether a guard has refused the call: its circuit is open, or it is shared and its ledger does not answer."""
    return "CircuitOpen" in message or "coordinated" in message


def _always_hedged(world: Any) -> bool:
    """Whether every call that hangs gets a hedge: nothing else in the world would keep a hedge from being sent."""
    hedge, guard = world.scenario.hedge, world.scenario.guard
    kinds = {behaviour.kind for behaviour in world.rows.behaviours.values()}
    return hedge is not None and hedge.share == 1 and guard is None and "flaky" not in kinds and not may_fail(world)


def check_held(attempt: Any, read: int) -> None:
    """What the client of a task holds when it asks for more than these rows. Raises Violation."""
    name, plan = attempt.worker.process.name, attempt.plan
    # With one row less than four messages in flight, one more is sent.
    most = (MESSAGES + 1) * plan.message_rows
    if found := [stream.unanswered for stream in attempt.streams if stream.unanswered > most]:
        raise Violation(f"{name}: {found} rows of streams are in flight; batch-rows {plan.message_rows} allows {most}")
    held = read - len(attempt.outcomes)
    # Batches are merged to messages before they are sent.
    most = plan.held_bytes // ROW_BYTES + plan.message_rows + plan.batch_rows
    if held > most:
        raise Violation(f"{name}: {held} rows are held, and more are read; {plan.held_bytes} bytes allow {most}")


def check_probe(world: Any, attempt: Any) -> None:
    """A task that begins when a server and the way to it are healthy gets every value. Raises Violation."""
    name = attempt.worker.process.name
    if isinstance(attempt.error, ServerUnavailable) and world.servers[0].process is not world.healthy:
        return  # a row has ended the server, perhaps when it was its turn to be tried, while the others hang
    if attempt.error is not None:
        raise Violation(f"{name}: the probe failed: {attempt.error}")
    if world.scenario.guard is not None:
        return  # its rows wait for those of other tasks, and fail with them
    for x, (outcome,) in attempt.outcomes:
        if isinstance(outcome, RowError):
            raise Violation(f"{name}: row {x} of the probe failed with {outcome.code}: {outcome.message}")


def check_deadline(world: Any, x: int, process: Any, began: float, ended: float) -> None:
    """A coroutine ends when its row's deadline has passed, also of a row that was sent again. Raises Violation."""
    attempt = next((each for each in reversed(world.attempts) if x in each.xs), None)
    if attempt is None or attempt.plan.functions != ("slow",) or process.was_frozen:
        return
    timeout = limit = attempt.plan.timeout
    for stream in attempt.streams if attempt.number == 0 else ():
        # Any of these may have brought the row, because messages may arrive late. If the row was called before the
        # first of them, it is not that of the message that was no replay.
        replays = [(at, waited) for at, waited in stream._span.replays if attempt.given[x] <= at <= began]
        if replays and world.rows.first_called[x] < replays[0][0]:
            limit = timeout - min(waited for _, waited in replays)
    if ended - began > limit + timeout / 10 + SLACK_SECONDS:
        name = attempt.worker.process.name
        raise Violation(f"{name}: a call of row {x} took {ended - began:.3f} s; its deadline was {limit:.3f} s away")


def check_calls(world: Any) -> None:
    """No row is called more often than its attempts, replays and hedges explain. Raises Violation."""
    allowed: Counter[int] = Counter()
    calls = 1 if world.scenario.hedge is None else 2
    for attempt in world.attempts:
        if not set(MANY_ROWS).isdisjoint(attempt.plan.functions):
            continue  # a call that fails is repeated on halves
        streams = sum(1 + stream.statistics.replays for stream in attempt.streams)
        for x in attempt.xs:
            allowed[x] += streams * attempt.plan.attempts * calls
    for job in world.application.jobs:
        if job.plan.kind == "letters" and set(MANY_ROWS).isdisjoint(job.plan.calls.functions):
            mine = [each for each in world.application.attempts if job.name in each.info.job]
            streams = sum(1 + stream.statistics.replays for attempt in mine for stream in attempt.streams)
            allowed.update(dict.fromkeys(job.xs, streams * job.plan.calls.attempts * calls))
    for x, most in allowed.items():
        if world.rows.calls[x] > most:
            raise Violation(f"row {x} was called {world.rows.calls[x]} times; attempts and replays explain {most}")


def allowed_codes(world: Any, kinds: Iterable[str]) -> list[str]:
    """The codes of errors that a segment may have whose rows are of these kinds."""
    # The rows of a bundle share its deadline.
    codes = [ErrorCode.TIMEOUT, *([ErrorCode.SERVER_UNAVAILABLE] if may_fail(world) else [])]
    if not {"flaky", "error"}.isdisjoint(kinds):
        codes.append(ErrorCode.FUNCTION_ERROR)
    return [code.value for code in codes]


def check_jobs(world: Any) -> None:
    """Every job has its results, each row once. Raises Violation."""
    for job in world.application.jobs:
        if job.error is None:
            job.check()


def check_leftovers(world: Any) -> None:
    """Nothing is held after the end. Raises Violation."""
    for worker in world.workers:
        if worker.process.alive and (threads := [thread.name for thread in worker.process.threads]):
            raise Violation(f"{worker.process.name}: threads are left: {threads}")
        if worker.process.alive and (watched := len(worker.watch._watched)):
            raise Violation(f"{worker.process.name}: {watched} connections are still watched")
    if files := world.files.abandoned():
        raise Violation(f"temporary files are left: {files}")
    if world.redis is not None:
        world.redis.check_left()
    for server in world.servers:
        if server.longest_end > END_SECONDS:
            raise Violation(f"{server.address}: a stream went on for {server.longest_end:g} s after its last message")
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
        if service.open_streams or admission.rooms._waiting:
            counted = len(service.open_streams)
            raise Violation(f"{server.process.name}: {counted} streams are counted, or rooms of ended ones are left")
        for hosted in server.host.hosted():
            if (threads := hosted._thread_executor) is not None and threads.waiting:
                raise Violation(f"{server.process.name}: {threads.waiting} jobs of ended streams are left")
            if hosted.batching is not None and (kept := hosted.batching.kept()):
                raise Violation(f"{server.process.name}: the batcher of {hosted.spec.key} keeps {kept}")
            executor = hosted.running_executor
            if executor is not None and (executor.turns._holders or executor.turns._queue.groups):
                raise Violation(f"{server.process.name}: streams that have ended hold turns of {hosted.spec.key}")
        if server.guarded is not None:
            server.guarded.check_left()
        for loop in server.loops:
            if tasks := [task for task in loop.tasks() if task not in server.claiming]:
                raise Violation(f"{server.process.name}: {len(tasks)} tasks are left")
