"""Limits that servers share hold if their Redis is late or fails over to a replica that lacks the latest claims."""

import dataclasses

import pytest

from tests.simulation import sharing
from tests.simulation.scenario import PROBE, Behaviour, Fault, Scenario
from tests.simulation.world import Result, run, worlds
from udf_server.limits.lease import Lease
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing.ledger import LEASE_SECONDS, Ledger

SETTLED = LEASE_SECONDS + 1.0
"""From then on a new ledger grants permits."""
GUARD = GuardSettings.parse("slow", {"max-concurrency": 10})


def failed_over(seed: int) -> Result:
    """Calls that run on one server have nearly all places, and calls on another one wait, when the Redis fails over.

    The copy that takes over is from before these calls began, and claims are late: often that of the calls that wait
    arrives before that of the calls that run.
    """
    tasks = tuple(
        dataclasses.replace(
            PROBE, rows=(Behaviour(seconds=4.0),) * 9, batch_rows=9, begins=begins, capacity=9, timeout=60.0
        )
        for begins in (SETTLED + 2.0, SETTLED + 2.5, SETTLED + 2.5, SETTLED + 2.5)
    )  # fmt: skip
    late = Fault("ledger-late", SETTLED + 3.15, 0, 0, 3.0)
    older = Fault("ledger-older", SETTLED + 3.2, 0, 0, 1.5)
    return run(Scenario(seed, "safety", 2, tasks, (late, older), SETTLED + 5.0, guard=GUARD, shared=True))


def test_a_shared_guard_keeps_its_limit_when_its_redis_fails_over():
    with worlds():
        results = [failed_over(seed) for seed in range(20)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}


def test_that_it_would_not_if_the_copy_were_taken_for_the_latest(monkeypatch: pytest.MonkeyPatch):
    exchange = Ledger.exchange
    monkeypatch.setattr(Ledger, "exchange", lambda self, claim, now, *_: exchange(self, claim, now))
    with worlds():
        problems = [failed_over(seed).problem for seed in range(20)]
    found = ["calls at once on all servers; max-concurrency is 10" in problem for problem in problems]
    assert sum(found) > len(found) / 2


# Calls that spend more or less than was expected, and report it late.


def settled_late(seed: int) -> Result:
    """A few calls spend far more than expected. Claims arrive late, twice, in any order, and a server crashes."""
    rows = tuple(
        Behaviour(seconds=0.1 + 0.05 * (row % 5), tokens=1.0, spends=((200.0,) if row % 7 == 0 else (0.25, 0.25)))
        for row in range(60)
    )
    tasks = tuple(
        dataclasses.replace(PROBE, rows=rows, batch_rows=20, begins=SETTLED + 0.3 * task, capacity=9, timeout=60.0)
        for task in range(3)
    )
    late = Fault("ledger-late", SETTLED + 0.5 + 0.1 * (seed % 10), 0, 0, 8.0)
    crash = Fault("crash", SETTLED + 3.0, seed % 3, 0, 1.0)
    guard = GuardSettings.parse("slow", {"rate": "600 tokens/10 second", "max-concurrency": 8})
    return run(Scenario(seed, "safety", 3, tasks, (late, crash), SETTLED + 20.0, guard=guard, shared=True))


@pytest.fixture
def _claims_arrive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "AGAIN", 0.3)


@pytest.mark.long
@pytest.mark.usefixtures("_claims_arrive_again")
def test_what_calls_spend_beyond_their_estimates_counts_once_however_late_and_often_it_arrives():
    with worlds():
        results = [settled_late(seed) for seed in range(24)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}


@pytest.mark.usefixtures("_claims_arrive_again")
@pytest.mark.long  # that the oracle would notice
def test_that_it_would_count_twice_if_claims_did_not_say_which_they_are(monkeypatch: pytest.MonkeyPatch):
    exchange, numbers = Ledger.exchange, iter(range(1, 1_000_000))

    def any_claim(self: Ledger, claim: dict, now: float, run: str = "", up_seconds: float = 0.0) -> dict:
        number = next(numbers)
        rates = [{**rate, "settled": [[number, amount] for _, amount in rate["settled"]]} for rate in claim["rates"]]
        return exchange(self, {**claim, "number": number, "rates": rates}, now, run, up_seconds)

    monkeypatch.setattr(Ledger, "exchange", any_claim)
    with worlds():
        problems = {settled_late(seed).problem for seed in range(24)}
    assert any("tokens were settled, but calls spent" in problem for problem in problems)


def test_that_calls_would_take_too_much_if_what_they_spend_were_not_settled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Lease, "settle", lambda self, amount, began, now: None)
    with worlds():
        problems = {settled_late(seed).problem for seed in range(5)}
    assert any("tokens in 10 s" in problem for problem in problems)


def budget_failed_over(seed: int) -> Result:
    """Two tasks have spent most of the budget and are idle when the Redis loses data. Then a third one begins."""
    row = Behaviour(seconds=0.3, tokens=1.0, spends=(1.0,))
    tasks = tuple(
        dataclasses.replace(
            PROBE, rows=(row,) * rows, batch_rows=rows, begins=begins, capacity=rows, timeout=60.0, pause=0.0
        )
        for rows, begins in ((40, SETTLED), (40, SETTLED + 0.05), (90, SETTLED + 3.8 + 0.02 * seed))
    )  # fmt: skip
    loss = Fault("ledger-older" if seed % 2 else "ledger-lost", SETTLED + 3.2, 0, 0, 3.0)
    guard = GuardSettings.parse("slow", {"rate": "100000/second"})
    return run(
        Scenario(seed, "safety", 3, tasks, (loss,), SETTLED + 20.0, guard=guard, shared=True, budget=100.0)
    )  # fmt: skip


def test_a_budget_holds_when_its_redis_fails_over():
    with worlds():
        results = [budget_failed_over(seed) for seed in range(20)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}


@pytest.mark.long  # that the oracle would notice
def test_that_it_would_not_if_a_ledger_without_its_members_leased_the_rest(monkeypatch: pytest.MonkeyPatch):
    exchange = Ledger.exchange
    monkeypatch.setattr(Ledger, "exchange", lambda self, claim, now, *_: exchange(self, {**claim, "epoch": ""}, now))
    with worlds():
        problems = {budget_failed_over(seed).problem for seed in range(20)}
    assert any("; budget 100" in problem for problem in problems)
