"""A guard that servers share keeps its limit if its Redis fails over to a replica that lacks the latest claims."""

import dataclasses

import pytest

from tests.simulation.scenario import PROBE, Behaviour, Fault, Scenario
from tests.simulation.world import Result, run, worlds
from udf_server.coordination.ledger import LEASE_SECONDS, Ledger
from udf_server.guards.settings import GuardSettings

SETTLED = LEASE_SECONDS + 1.0
"""From then on a new ledger grants permits."""
GUARD = GuardSettings.parse("slow", {"max-concurrency": 10})


def failed_over(seed: int) -> Result:
    """Tasks on two servers begin one after the other. The Redis answers late, and fails over while they do."""
    tasks = tuple(
        dataclasses.replace(PROBE, rows=(Behaviour(seconds=1.0),) * 40, batch_rows=40, begins=begins, capacity=9)
        for begins in (SETTLED, SETTLED + 1.0, SETTLED + 2.0)
    )
    late = Fault("ledger-late", SETTLED + 1.0, 0, 0, 4.0)
    older = Fault("ledger-older", SETTLED + 1.0 + 0.05 * seed, 0, 0, 1.0)
    return run(Scenario(seed, "safety", 2, tasks, (late, older), SETTLED + 5.0, guard=GUARD, shared=True))


def test_a_shared_guard_keeps_its_limit_when_its_redis_fails_over():
    with worlds():
        results = [failed_over(seed) for seed in range(40)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}


def test_that_it_would_not_if_the_copy_were_taken_for_the_latest(monkeypatch: pytest.MonkeyPatch):
    exchange = Ledger.exchange
    monkeypatch.setattr(Ledger, "exchange", lambda self, claim, now, run="": exchange(self, claim, now))
    with worlds():
        problems = {failed_over(seed).problem for seed in range(40)}
    assert any("calls at once on all servers; max-concurrency is 10" in problem for problem in problems)
