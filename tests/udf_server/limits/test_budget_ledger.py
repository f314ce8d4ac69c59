"""Ledgers of budgets: what processes lease of the budget of a job, and what their calls spend of it."""

import json
import math
import random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.udf_server.limits.paying import Calls, exchange
from tests.udf_server.limits.sharing.test_ledgers import claim as ledger_claim
from tests.udf_server.limits.sharing.test_ledgers import part
from tests.udf_server.redis_process import with_redis
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.sharing.claims import CoordinationFailed
from udf_server.limits.sharing.ledger import LEASE_SECONDS, Ledger
from udf_server.limits.sharing.ledgers import RedisLedgers


def claim(member="a", number=1, leave=False, settings="10 usd", rows=0, failed=0, epoch="", **units):
    return ledger_claim(
        member, number=number, leave=leave, settings=settings, rows=rows, failed=failed, epoch=epoch, units=units,
        lasts=True, most=-1,
    )  # fmt: skip


def test_a_member_gets_what_others_have_neither_spent_nor_leased():
    ledger = Ledger()
    assert ledger.exchange(claim("a", usd=part(take=4.0)), 0.0)["units"] == {"usd": [4.0, 0.0, 0.0, 10.0]}
    assert ledger.exchange(claim("b", usd=part(take=9.0)), 0.0)["units"] == {"usd": [6.0, 0.0, 4.0, 6.0]}
    assert ledger.exchange(claim("a", 2, usd=part(spent=3.0, take=1.0)), 0.1)["units"] == {"usd": [1.0, 3.0, 6.0, 1.0]}


def test_a_call_that_does_not_fit_one_unit_gets_nothing_of_another():
    ledger = Ledger()
    ledger.exchange(claim("a", usd=part(take=9.5)), 0.0)
    grant = ledger.exchange(claim("b", calls=part(take=1.0), usd=part(take=1.0)), 0.0)
    assert grant["units"] == {"calls": [0.0, 0.0, 0.0, 10.0], "usd": [0.0, 0.0, 9.5, 0.5]}


def test_a_claim_that_arrives_twice_or_late_counts_once():
    ledger = Ledger()
    ledger.exchange(claim("a", 2, usd=part(spent=3.0)), 0.0)
    assert ledger.exchange(claim("a", 2, usd=part(spent=3.0, take=1.0)), 0.0) == {"stale": True}
    assert ledger.exchange(claim("a", 1, usd=part(spent=1.0, take=1.0)), 0.0) == {"stale": True}
    assert ledger.exchange(claim("b", usd=part()), 0.0)["units"] == {"usd": [0.0, 3.0, 0.0, 7.0]}


def test_what_a_member_held_when_it_crashed_is_spent_and_what_it_held_when_it_left_is_not():
    ledger = Ledger()
    ledger.exchange(claim("a", usd=part(take=4.0)), 0.0)
    later = LEASE_SECONDS + 0.1
    assert ledger.exchange(claim("b", usd=part(take=10.0)), later)["units"] == {"usd": [6.0, 0.0, 0.0, 6.0]}
    ledger.exchange(claim("a", 2, leave=True, usd=part(spent=1.0)), later)
    assert ledger.exchange(claim("b", 2, usd=part(held=6.0, take=10.0)), later)["units"] == {
        "usd": [3.0, 1.0, 0.0, 3.0]
    }


def test_a_ledger_that_has_lost_its_data_learns_what_was_spent_from_its_members():
    ledger = Ledger()
    ledger.exchange(claim("a", 7, epoch="old", rows=10, failed=1, usd=part(spent=4.0)), 0.0)
    grant = ledger.exchange(claim("b", 5, epoch="old", rows=10, failed=2, usd=part(spent=5.0, take=3.0)), 0.0)
    assert grant["units"] == {"usd": [0.0, 9.0, 0.0, 1.0]}, "perhaps others have spent the rest"
    again = claim("b", 6, epoch="old", rows=10, failed=2, usd=part(spent=5.0, take=3.0))
    grant = ledger.exchange(again, LEASE_SECONDS)
    assert (grant["units"], grant["rows"], grant["failed"]) == ({"usd": [1.0, 9.0, 0.0, 1.0]}, 20, 3)


@pytest.mark.parametrize(("run", "up_seconds"), [("second", 100.0), ("first", 0.0)], ids=["older copy", "restarted"])
def test_a_ledger_that_may_lack_what_was_spent_leases_nothing_until_its_members_have_claimed(run, up_seconds):
    ledger = Ledger(may_be_lost=True)
    if run == "second":
        ledger.exchange(claim("a", usd=part()), 0.0, "first")
    ledger.exchange(claim("b", usd=part(take=9.0)), 0.1, run, up_seconds)
    assert ledger.exchange(claim("b", 2, usd=part(take=9.0)), 1.0, run)["units"]["usd"] == [0.0, 0.0, 0.0, 10.0]
    ledger.exchange(claim("a", 9, epoch="old", usd=part(spent=8.0)), 1.5, run)
    assert ledger.exchange(claim("b", 3, usd=part(take=2.0)), 6.6, run)["units"]["usd"] == [2.0, 8.0, 0.0, 2.0]


def test_other_amounts_hold_once_the_lease_of_the_old_ones_has_ended_although_the_clock_was_set_back():
    ledger = Ledger()
    ledger.exchange(claim("a", usd=part(spent=3.0)), 10_000.0)
    other = {"settings": "20 usd", "usd": part(take=1.0, amount=20.0)}
    ledger.exchange(claim("b", 1, **other), 100.0)
    assert "units" in ledger.exchange(claim("b", 2, **other), 100.0 + 2 * LEASE_SECONDS)


def test_a_ledger_that_was_lost_leases_again_although_the_clock_was_set_back():
    ledger = Ledger()
    ledger.exchange(claim("a", usd=part()), 10_000.0, "one")
    ledger.exchange(claim("a", 2, usd=part()), 10_000.0, "two")
    ledger.exchange(claim("a", 3, usd=part(take=1.0)), 100.0, "two")
    grant = ledger.exchange(claim("a", 4, usd=part(take=1.0)), 100.0 + 2 * LEASE_SECONDS, "two")
    assert grant["units"]["usd"][0] == 1.0


def test_other_amounts_for_one_job_are_a_conflict():
    ledger = Ledger()
    ledger.exchange(claim(), 0.0)
    assert ledger.exchange(claim("b", settings="11 usd"), 0.0) == {"conflict": "10 usd"}


def test_other_amounts_hold_once_no_member_has_the_old_ones_and_what_was_spent_stays():
    """The operator has changed the daily budget of a caller, and restarts the servers."""
    ledger = Ledger()
    ledger.exchange(claim("a", usd=part(spent=4.0)), 0.0)
    ledger.exchange(claim("a", 2, leave=True, usd=part(spent=4.0)), 0.0)
    more = claim("b", settings="11 usd", usd=part(take=20.0, amount=11.0))
    assert ledger.exchange(more, 0.0)["units"] == {"usd": [7.0, 4.0, 0.0, 7.0]}
    assert ledger.exchange(claim("c"), 0.1) == {"conflict": "11 usd"}


# Processes that share a ledger.


class World:
    """Processes with calls that wait, begin, end and report, and a network that loses claims and answers."""

    def __init__(self, draw, processes, lossy):
        self.draw, self.lossy, self.now = draw, lossy, 0.0
        self.ledger = Ledger()
        terms = Terms((("calls", 40.0), ("usd", 30.0)))
        self.budgets = [Budget("b", terms, clock=lambda: self.now) for _ in range(processes)]
        self.functions = [[Calls(budget, "f@1"), Calls(budget, "g@1")] for budget in self.budgets]
        self.begun = [[] for _ in self.budgets]
        """By process, the functions and calls that were begun, or wait, and have not ended."""
        self.calls, self.usd, self.over = 0, 0.0, set()
        self.price = draw.choice([0.1, 0.5, 1.0])
        self.estimate = draw.choice([{}, {"usd": self.price}])

    def step(self):
        self.now += self.draw.random() * 0.02
        place = self.draw.randrange(len(self.budgets))
        if self.draw.random() < 0.5:
            self.call(place, self.draw.choice([0, 0, 1]))
        self.end_some(place, self.draw.random() < 0.5)
        if self.draw.random() < 0.3:
            self.exchange(place)

    def call(self, place, function):
        # Calls of the second function cost twice as much.
        estimate = {unit: amount * (1 + function) for unit, amount in self.estimate.items()}
        self.begun[place].append((function, self.functions[place][function].begin(**estimate)))

    def end_some(self, place, some):
        for function, call in [each for each in self.begun[place] if each[1].refused]:
            self.over.add(place)
            self.begun[place].remove((function, call))
        running = [each for each in self.begun[place] if each[1].began]
        if running and some:
            self.begun[place].remove(running[-1])
            price = self.price * (1 + running[-1][0])
            self.usd, self.calls = self.usd + price, self.calls + 1
            running[-1][1].end(usd=price)

    def exchange(self, place):
        budget = self.budgets[place]
        given = {**budget.claim(), "leave": False, "fresh": "e1"}
        lost = self.lossy and self.draw.random() < 0.3
        if lost and self.draw.random() < 0.5:
            budget.failed("lost")
            return
        grant = self.ledger.exchange(json.loads(json.dumps(given)), self.now)
        if lost:
            budget.failed("lost")
        else:
            budget.granted(grant)


@given(seed=st.integers(0, 10**6), processes=st.integers(1, 4), lossy=st.booleans())
def test_processes_spend_the_whole_budget_and_no_more(seed, processes, lossy):
    world = World(random.Random(seed), processes, lossy)
    for _ in range(3_000):
        world.step()
        if len(world.over) == processes:
            break
    assert len(world.over) == processes, "a process waits for ever"
    for place, begun in enumerate(world.begun):
        while any(call.began for _, call in begun):
            world.end_some(place, True)
    assert world.calls <= 40
    # A call whose cost nobody knows is made alone: one of each function in each process may begin before it is known.
    assert world.usd <= 30 + 3 * world.price * processes * (not world.estimate) + 1e-6
    # The rest is not enough for a call of one of the functions.
    assert world.calls == 40 or world.usd > 30 - 2 * world.price - 1e-6


def test_no_call_begins_before_its_process_knows_what_others_have_spent():
    ledger = Ledger()
    ledger.exchange(claim("other", settings="10 usd", usd=part(spent=10.0)), 0.0)
    budget = Budget("b", Terms((("usd", 10.0),)))
    call = Calls(budget).begin()
    assert not call.began, "what the call costs is not known"
    exchange(budget, ledger)
    assert "10 of 10 usd" in call.refused


@with_redis
async def test_a_redis_that_evicts_what_expires_keeps_budgets_until_they_are_old(redis_process):
    ledgers = RedisLedgers(redis_process.url, "default")
    for job in ("x", "old"):
        await ledgers.exchange(f"budget:{job}", claim(leave=True, usd=part(spent=8.0)))
    with redis.Redis.from_url(redis_process.url) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + (1 << 20))
        while client.info("stats")["evicted_keys"] < 1_000:
            for _ in range(1_000):
                client.set(f"value {client.incr('number')}", bytes(1_000), px=3_600_000)
        assert client.exists("udf:limits:default:budget:old")
        client.zadd("udf:limits:budgets", {"udf:limits:default:budget:old": 0.0})
        grant = await ledgers.exchange("budget:x", claim("b", usd=part(take=1.0, least=1.0)))
        assert grant["units"]["usd"][1] == 8.0
        assert not client.exists("udf:limits:default:budget:old")
        assert client.zrange("udf:limits:budgets", 0, -1) == [b"udf:limits:default:budget:x"]
    await ledgers.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"units": []}, {"units": {}}, {"units": {"usd": [0.0, 1.0, 0.0]}}, {"units": {"usd": [0.0, "1", 0.0, 1.0]}},
        {"units": {"usd": [-1.0, 1.0, 0.0, 1.0]}}, {"units": {"usd": [0.0, 1.0, 0.0, math.nan]}}, {"rows": None},
        {"rows": -1}, {"failed": math.inf}, {"failed": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_is_no_grant_changes_nothing(wrong):
    budget = Budget("b", Terms((("usd", 10.0),)))
    grant = {"epoch": "e1", "now": 0.0, "places": -1, "paused": 0.0, "rows": 9, "failed": 9}
    grant["units"] = {"usd": [4.0, 10.0, 0.0, 0.0]}
    budget.claim()
    with pytest.raises(CoordinationFailed, match="the answer is no grant"):
        budget.granted({**grant, **wrong} if wrong else {})
    call = Calls(budget).begin(usd=1.0)
    assert not call.began and not call.refused, "the budget is neither leased nor spent"
    budget.failed("no grant")
    exchange(budget, Ledger())
    assert call.began
