"""Ledgers of budgets: what processes lease of the budget of a job. The script of Redis answers as the one in memory."""

import json
import math
import random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.udf_server.redis_process import with_redis
from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import ANYONE
from udf_server.limits.costs import RunningCall
from udf_server.limits.job_budget import JobBudget
from udf_server.limits.queue import ThreadWaiter
from udf_server.limits.sharing.budget_ledger import BudgetLedger
from udf_server.limits.sharing.grants import CoordinationFailed
from udf_server.limits.sharing.ledger import LEASE_SECONDS
from udf_server.limits.sharing.ledgers import RedisLedgers
from udf_server.limits.sharing.redis_script import BUDGET_SCRIPT
from udf_server.limits.terms import Terms


def claim(member="a", turn=1, leave=False, settings="10 usd", rows=0, failed=0, known=False, **units):
    return {
        "kind": "budget", "member": member, "turn": turn, "known": known, "leave": leave, "settings": settings,
        "rows": rows, "failed": failed, "units": units,
    }  # fmt: skip


def part(spent=0.0, held=0.0, take=0.0, least=1.0, ahead=0.0, amount=10.0):
    return {"amount": amount, "spent": spent, "held": held, "take": take, "least": least, "ahead": ahead}


def test_a_member_gets_what_others_have_neither_spent_nor_leased():
    ledger = BudgetLedger()
    assert ledger.exchange(claim("a", usd=part(take=4.0)), 0.0)["units"] == {"usd": [4.0, 0.0, 0.0, 10.0]}
    assert ledger.exchange(claim("b", usd=part(take=9.0)), 0.0)["units"] == {"usd": [6.0, 0.0, 4.0, 6.0]}
    assert ledger.exchange(claim("a", 2, usd=part(spent=3.0, take=1.0)), 0.1)["units"] == {"usd": [1.0, 3.0, 6.0, 1.0]}


def test_a_call_that_does_not_fit_one_unit_gets_nothing_of_another():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", usd=part(take=9.5)), 0.0)
    grant = ledger.exchange(claim("b", calls=part(take=1.0), usd=part(take=1.0)), 0.0)
    assert grant["units"] == {"calls": [0.0, 0.0, 0.0, 10.0], "usd": [0.0, 0.0, 9.5, 0.5]}


def test_a_claim_that_arrives_twice_or_late_counts_once():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", 2, usd=part(spent=3.0)), 0.0)
    assert ledger.exchange(claim("a", 2, usd=part(spent=3.0, take=1.0)), 0.0) == {"stale": True}
    assert ledger.exchange(claim("a", 1, usd=part(spent=1.0, take=1.0)), 0.0) == {"stale": True}
    assert ledger.exchange(claim("b", usd=part()), 0.0)["units"] == {"usd": [0.0, 3.0, 0.0, 7.0]}


def test_what_a_member_held_when_it_crashed_is_spent_and_what_it_held_when_it_left_is_not():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", usd=part(take=4.0)), 0.0)
    later = LEASE_SECONDS + 0.1
    assert ledger.exchange(claim("b", usd=part(take=10.0)), later)["units"] == {"usd": [6.0, 0.0, 0.0, 6.0]}
    ledger.exchange(claim("a", 2, leave=True, usd=part(spent=1.0)), later)
    assert ledger.exchange(claim("b", 2, usd=part(held=6.0, take=10.0)), later)["units"] == {
        "usd": [3.0, 1.0, 0.0, 3.0]
    }


def test_a_ledger_that_has_lost_its_data_learns_what_was_spent_from_its_members():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", 7, known=True, rows=10, failed=1, usd=part(spent=4.0)), 0.0)
    grant = ledger.exchange(claim("b", 5, known=True, rows=10, failed=2, usd=part(spent=5.0, take=3.0)), 0.0)
    assert grant["units"] == {"usd": [0.0, 9.0, 0.0, 1.0]}, "perhaps others have spent the rest"
    again = claim("b", 6, known=True, rows=10, failed=2, usd=part(spent=5.0, take=3.0))
    grant = ledger.exchange(again, LEASE_SECONDS)
    assert grant == {"units": {"usd": [1.0, 9.0, 0.0, 1.0]}, "rows": 20, "failed": 3}


@pytest.mark.parametrize(("run", "up_seconds"), [("second", 100.0), ("first", 0.0)], ids=["older copy", "restarted"])
def test_a_ledger_that_may_lack_what_was_spent_leases_nothing_until_its_members_have_claimed(run, up_seconds):
    ledger = BudgetLedger()
    if run == "second":
        ledger.exchange(claim("a", usd=part()), 0.0, "first")
    ledger.exchange(claim("b", usd=part(take=9.0)), 0.1, run, up_seconds)
    assert ledger.exchange(claim("b", 2, usd=part(take=9.0)), 1.0, run)["units"]["usd"] == [0.0, 0.0, 0.0, 10.0]
    ledger.exchange(claim("a", 9, known=True, usd=part(spent=8.0)), 1.5, run)
    assert ledger.exchange(claim("b", 3, usd=part(take=2.0)), 6.6, run)["units"]["usd"] == [2.0, 8.0, 0.0, 2.0]


def test_other_amounts_hold_once_the_lease_of_the_old_ones_has_ended_although_the_clock_was_set_back():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", usd=part(spent=3.0)), 10_000.0)
    other = {"settings": "20 usd", "usd": part(take=1.0, amount=20.0)}
    ledger.exchange(claim("b", 1, **other), 100.0)
    assert "units" in ledger.exchange(claim("b", 2, **other), 100.0 + 2 * LEASE_SECONDS)


def test_a_ledger_that_was_lost_leases_again_although_the_clock_was_set_back():
    ledger = BudgetLedger()
    ledger.exchange(claim("a", usd=part()), 10_000.0, "one")
    ledger.exchange(claim("a", 2, usd=part()), 10_000.0, "two")
    ledger.exchange(claim("a", 3, usd=part(take=1.0)), 100.0, "two")
    grant = ledger.exchange(claim("a", 4, usd=part(take=1.0)), 100.0 + 2 * LEASE_SECONDS, "two")
    assert grant["units"]["usd"][0] == 1.0


def test_other_amounts_for_one_job_are_a_conflict():
    ledger = BudgetLedger()
    ledger.exchange(claim(), 0.0)
    assert ledger.exchange(claim("b", settings="11 usd"), 0.0) == {"conflict": "10 usd"}


def test_other_amounts_hold_once_no_member_has_the_old_ones_and_what_was_spent_stays():
    """The operator has changed the daily budget of a caller, and restarts the servers."""
    ledger = BudgetLedger()
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
        self.ledger = BudgetLedger()
        terms = Terms((("calls", 40.0), ("usd", 30.0)))
        self.jobs = [
            JobBudget("b", terms, clock=lambda: self.now, new_id=lambda name=f"m{number}": name)
            for number in range(processes)
        ]
        self.functions = [[job.spender("f@1"), job.spender("g@1")] for job in self.jobs]
        self.running = [[] for _ in self.jobs]
        self.waiting = [[] for _ in self.jobs]
        self.calls, self.usd, self.over = 0, 0.0, set()
        self.price = draw.choice([0.1, 0.5, 1.0])
        self.estimate = draw.choice([{}, {"usd": self.price}])

    def step(self):
        self.now += self.draw.random() * 0.02
        place = self.draw.randrange(len(self.jobs))
        job = self.jobs[place]
        if self.draw.random() < 0.5:
            self.call(place, job, self.draw.choice([0, 0, 1]))
        for waiter, function in [each for each in self.waiting[place] if each[0].woken]:
            self.waiting[place].remove((waiter, function))
            try:
                self.began(place, function, job.begun(waiter))
            except BudgetSpent:
                self.over.add(place)
        if self.running[place] and self.draw.random() < 0.5:
            self.end(place, *self.running[place].pop())
        if self.draw.random() < 0.3:
            self.exchange(job)

    def call(self, place, job, function):
        # Calls of the second function cost twice as much.
        estimate = {unit: amount * (1 + function) for unit, amount in self.estimate.items()}
        try:
            taken = job.take(self.functions[place][function], estimate, lambda: ThreadWaiter(()))
        except BudgetSpent:
            self.over.add(place)
            return
        if isinstance(taken, ThreadWaiter):
            self.waiting[place].append((taken, function))
        else:
            self.began(place, function, taken)

    def began(self, place, function, costs):
        self.calls += 1
        self.running[place].append((function, costs))

    def end(self, place, function, costs):
        price, spender = self.price * (1 + function), self.functions[place][function]
        self.usd += price
        self.jobs[place].spent({"usd": price})
        call = RunningCall(spender, costs, ANYONE, 0.0)
        call.spending.add({"usd": price})
        self.jobs[place].ended(call, good=True)

    def exchange(self, job):
        given = {"leave": False, **job.claim()}
        lost = self.lossy and self.draw.random() < 0.3
        if lost and self.draw.random() < 0.5:
            job.failed("lost")
            return
        grant = self.ledger.exchange(json.loads(json.dumps(given)), self.now)
        if lost:
            job.failed("lost")
        else:
            job.granted(grant)


@given(seed=st.integers(0, 10**6), processes=st.integers(1, 4), lossy=st.booleans())
def test_processes_spend_the_whole_budget_and_no_more(seed, processes, lossy):
    world = World(random.Random(seed), processes, lossy)
    for _ in range(3_000):
        world.step()
        if len(world.over) == processes:
            break
    assert len(world.over) == processes, "a process waits for ever"
    for place, running in enumerate(world.running):
        while running:
            world.end(place, *running.pop())
    assert world.calls <= 40
    # A call whose cost nobody knows is made alone: one of each function in each process may begin before it is known.
    assert world.usd <= 30 + 3 * world.price * processes * (not world.estimate) + 1e-6
    # The rest is not enough for a call of one of the functions.
    assert world.calls == 40 or world.usd > 30 - 2 * world.price - 1e-6


def test_no_call_begins_before_its_process_knows_what_others_have_spent():
    ledger = BudgetLedger()
    ledger.exchange(claim("other", settings="10 usd", usd=part(spent=10.0)), 0.0)
    job = JobBudget("b", Terms((("usd", 10.0),)))
    waiter = job.take(job.spender("f@1"), {}, lambda: ThreadWaiter(()))
    assert isinstance(waiter, ThreadWaiter), "what the call costs is not known"
    job.granted(ledger.exchange({"leave": False, **job.claim()}, 0.0))
    with pytest.raises(BudgetSpent, match="10 of 10 usd"):
        job.begun(waiter)


@with_redis
@pytest.mark.parametrize("seed", range(4))
def test_the_script_grants_what_the_ledger_grants(redis_process, seed):
    # The script reads Redis's clock; here the test gives the time, so that both see the same one.
    script = BUDGET_SCRIPT.replace("redis.call('TIME')", "{ARGV[2], ARGV[3]}")
    assert script != BUDGET_SCRIPT
    with_run = script.replace("redis.pcall('INFO', 'server')", "ARGV[4]")
    assert with_run != script
    draw, ledger, now = random.Random(seed), BudgetLedger(), 1_000.0
    with redis.Redis.from_url(redis_process.url) as client:
        for step in range(300):
            now = round(now + draw.choice([0.01, 0.1, 0.4, 3.0]) * draw.random(), 4)
            if step % 53 == 52:  # the clock is set back
                now = round(now - draw.choice([0.3, 2.0, 40.0]), 4)
            given = claim(
                draw.choice("abc"), step - draw.choice([0, 0, 0, 5]), leave=draw.random() < 0.1, rows=step,
                failed=step // 9, known=draw.random() < 0.02, settings="other" if step % 97 == 96 else "10 usd",
                **{
                    unit: part(
                        draw.random() * 2, draw.random(), draw.choice([0.0, draw.random() * 4]), draw.random(),
                        draw.choice([0.0, draw.random()]),
                    )
                    for unit in ("usd", "calls")
                    if seed
                },
            )  # fmt: skip
            seconds = math.floor(now)
            run, up = f"run{step // 130}", seed + step % 130
            about = f"run_id:{run}\r\nuptime_in_seconds:{up}\r\n"
            arguments = [json.dumps(given), 1_700_000_000 + seconds, round((now - seconds) * 1e6), about]
            theirs = json.loads(client.eval(with_run, 1, "ledger", *arguments))
            mine = ledger.exchange(given, now, run, up)
            assert set(theirs) == set(mine), step
            if "units" not in mine:
                assert theirs == mine
                continue
            assert (theirs["rows"], theirs["failed"]) == (mine["rows"], mine["failed"])
            assert set(theirs["units"]) == set(mine["units"])
            for unit, numbers in mine["units"].items():
                assert theirs["units"][unit] == pytest.approx(numbers, abs=1e-6), (step, unit)


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
        assert client.exists("udf:guard:default:budget:old")
        client.zadd("udf:guard:budgets", {"udf:guard:default:budget:old": 0.0})
        grant = await ledgers.exchange("budget:x", claim("b", usd=part(take=1.0, least=1.0)))
        assert grant["units"]["usd"][1] == 8.0
        assert not client.exists("udf:guard:default:budget:old")
        assert client.zrange("udf:guard:budgets", 0, -1) == [b"udf:guard:default:budget:x"]
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
    job = JobBudget("b", Terms((("usd", 10.0),)))
    grant = {"units": {"usd": [4.0, 10.0, 0.0, 0.0]}, "rows": 9, "failed": 9}
    job.claim()
    with pytest.raises(CoordinationFailed, match="the answer is no grant"):
        job.granted({**grant, **wrong} if wrong else {})
    waiter = job.take(job.spender("f@1"), {"usd": 1.0}, lambda: ThreadWaiter(()))
    assert isinstance(waiter, ThreadWaiter), "the budget is neither leased nor spent"
    job.failed("no grant")
    job.granted(BudgetLedger().exchange({"leave": False, **job.claim()}, 0.0))
    assert waiter.admitted
