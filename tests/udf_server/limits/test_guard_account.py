"""The account of a guard: what a process does with grants, and with claims that are lost. A test moves the clock."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.limits.guard_account import Demand, GuardAccount
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing.ledger import LEASE_SECONDS, Ledger
from udf_server.limits.sharing.window import SLOTS


class World:
    """A ledger and members that share it."""

    def __init__(self, **settings):
        self.now = 1_000.0
        self.ledger = Ledger()
        self.settings = GuardSettings.parse("f", settings)

    def member(self, name):
        return Member(name, self)


class Member:
    """One process: its limits, and what its calls need."""

    def __init__(self, name, world):
        self.name, self._world = name, world
        self.demand = Demand(0, 0, ())
        self.account = GuardAccount(
            "f@1", world.settings, threading.Lock(), lambda: self.demand, lambda: None, lambda: world.now, shared=True
        )  # fmt: skip

    def take(self, *costs):
        """Take units for a call that need not wait. Returns how long it has to, otherwise."""
        if not (wait := self.account.wait(costs, self._world.now)):
            self.account.take(costs, self._world.now)
        return wait

    def exchange(self, *, lost=False, **given):
        """Send a claim; if it is lost, the ledger does not get it."""
        claim = {**self.account.claim(**given), "member": self.name, "fresh": "e1", "leave": bool(given)}
        if lost:
            self.account.failed("no answer")
        else:
            self.account.granted(self._world.ledger.exchange(claim, self._world.now))
        return claim


# Places.


def test_places_are_gone_when_the_lease_ends_although_no_claim_has_failed():
    world = World(**{"max-concurrency": 8})
    one, other = world.member("a"), world.member("b")
    one.demand = other.demand = Demand(0, 20, ())
    one.exchange()
    assert one.account.places == 8
    world.now += LEASE_SECONDS - 0.1
    assert one.account.places == 8
    world.now += 0.1
    other.exchange()
    assert (one.account.places, other.account.places) == (0, 8)
    one.exchange()
    assert one.account.places + other.account.places <= 8


def test_a_lease_counts_from_the_claim_and_not_from_its_answer():
    world = World(**{"max-concurrency": 8})
    member = world.member("a")
    member.demand = Demand(0, 8, ())
    claim = {**member.account.claim(), "member": "a", "fresh": "e1", "leave": False}
    grant = world.ledger.exchange(claim, world.now)
    world.now += 1.5
    member.account.granted(grant)
    world.now += LEASE_SECONDS - 1.5
    assert member.account.places == 0


def test_without_a_limit_of_concurrency_no_lease_ends():
    world = World(rate="100/second", burst=100)
    member = world.member("a")
    member.exchange()
    world.now += 2 * LEASE_SECONDS
    assert member.account.places == float("inf")


# Claims that are lost.


def test_the_pause_of_a_lost_claim_is_in_the_next_one():
    world = World(rate="10/second", burst=10)
    one, other = world.member("a"), world.member("b")
    one.exchange()
    one.account.pause(5.0)
    one.exchange(lost=True)
    world.now += 1.0
    assert one.exchange()["pause"] == 4.0
    other.exchange()
    assert other.take(1.0) == 4.0


def test_a_claim_that_was_answered_is_not_claimed_again():
    world = World(rate="10/second", burst=10)
    member = world.member("a")
    member.account.pause(5.0)
    member.exchange()
    member.account.failed("a later one was lost")
    assert member.exchange()["pause"] == 0.0


def test_what_was_spent_beyond_an_estimate_is_claimed_until_a_claim_is_answered():
    world = World(rate="10/second", burst=10)
    one, other = world.member("a"), world.member("b")
    one.account.settle((4.0,), world.now, world.now)
    one.exchange(lost=True)
    one.account.settle((2.0,), world.now, world.now)
    assert one.exchange()["rates"][0]["settled"] == [[1, 4.0], [2, 2.0]]
    assert one.exchange()["rates"][0]["settled"] == []
    other.demand = Demand(0, 20, (1.0,))
    other.exchange()
    assert [other.take(1.0) for _ in range(5)] == [0.0] * 4 + [float("inf")]


def test_units_that_are_here_pay_for_what_was_spent_beyond_an_estimate():
    world = World(rate="10/second", burst=10)
    one = world.member("a")
    one.demand = Demand(0, 8, (1.0,))
    one.exchange()
    one.account.settle((5.0,), world.now, world.now)
    assert [one.take(1.0) for _ in range(4)] == [0.0] * 3 + [float("inf")]
    assert one.exchange()["rates"][0]["settled"] == [], "the ledger has counted them when it granted them"


def test_a_claim_that_has_arrived_twice_was_answered():
    world = World(rate="10/second", burst=10, **{"max-concurrency": 8})
    member = world.member("a")
    member.demand = Demand(0, 8, (1.0,))
    member.exchange()
    member.account.settle((100.0,), world.now, world.now)
    world.now += 1.0
    member.account.claim()
    member.account.granted({"stale": True})
    assert member.account.places == 8
    assert member.exchange()["rates"][0]["settled"] == []


# A process that leaves.


def test_a_process_that_leaves_reports_what_a_claim_without_an_answer_did():
    world = World(rate="10/second", burst=10)
    one, other = world.member("a"), world.member("b")
    one.account.settle((4.0,), world.now, world.now)
    one.account.claim()  # its answer never comes
    assert one.exchange(leave=True)["rates"][0]["settled"] == [[1, 4.0]]
    other.demand = Demand(0, 20, (1.0,))
    other.exchange()
    assert [other.take(1.0) for _ in range(7)] == [0.0] * 6 + [float("inf")]


def test_a_process_that_leaves_returns_its_units_and_asks_for_nothing():
    world = World(rate="100/second", burst=100, **{"max-concurrency": 8})
    one, other = world.member("a"), world.member("b")
    one.demand = Demand(0, 8, (1.0,))
    one.exchange()
    for _ in range(3):
        assert one.take(1.0) == 0.0
    claim = one.exchange(leave=True)
    (given,) = claim["rates"]
    assert given.pop("back") == [[1_000 * SLOTS, 5.0]]
    assert given.pop("keep") > 0
    assert given == {"amount": 100.0, "seconds": 1, "burst": 100.0, "settled": [], "take": 0, "least": 0, "ahead": 0}
    assert (claim["wanted"], claim["spare"]) == (0, 0)
    assert one.account.places == 0
    assert one.take(1.0) == float("inf")
    other.demand = Demand(0, 97, (1.0,))
    other.exchange()
    for _ in range(97):
        assert other.take(1.0) == 0.0


# Units that arrive late, and calls that begin late.


def test_units_that_wait_for_a_place_are_returned_and_not_spent_when_they_count_no_more():
    world = World(rate="5/second", burst=5)
    member = world.member("a")
    member.demand = Demand(0, 4, (1.0,))
    member.exchange()
    assert member.take(1.0) == 0.0
    world.now += 0.02
    assert member.take(1.0) == float("inf")
    assert member.exchange()["rates"][0]["back"] == [[1_000 * SLOTS, 3.0]]
    assert member.take(1.0) == 0.0


def test_calls_begin_although_answers_are_slow_and_no_window_has_more():
    world = World(rate="5/second", burst=5)
    members = [world.member(name) for name in "ab"]
    begun = []
    for step in range(40):
        member = members[step % 2]
        member.demand = Demand(0, 9, (1.0,))
        claim = {**member.account.claim(), "member": member.name, "fresh": "e1", "leave": False}
        world.now += 0.3
        grant = world.ledger.exchange(claim, world.now)
        world.now += (0.1, 0.5)[step % 3 == 0]
        member.account.granted(grant)
        while not member.take(1.0):
            member.account.begin((1.0,), world.now, world.now)
            begun.append(world.now)
    assert len(begun) > 20
    assert all(later >= first + 1.0 for first, later in zip(begun, begun[5:], strict=False))


def test_a_call_that_begins_late_is_counted_when_it_begins():
    world = World(rate="5/second", burst=5)
    one, other = world.member("a"), world.member("b")
    one.demand = other.demand = Demand(0, 5, (1.0,))
    one.exchange()
    for _ in range(5):
        assert one.take(1.0) == 0.0
    taken = world.now
    world.now += 0.5  # the loop of the function is busy
    for _ in range(5):
        one.account.begin((1.0,), taken, world.now)
    one.exchange()
    world.now += 0.9
    other.exchange()
    assert other.take(1.0) == float("inf")


def test_units_of_a_ledger_that_was_lost_are_not_spent_after_the_new_one_has_answered():
    world = World(rate="5/second", burst=5)
    member = world.member("a")
    member.demand = Demand(0, 5, (1.0,))
    member.exchange()
    world.ledger = Ledger(may_be_lost=True)
    claim = {**member.account.claim(), "member": "a", "fresh": "e2", "leave": False}
    member.demand = Demand(0, 0, ())
    member.account.granted(world.ledger.exchange(claim, world.now))
    assert member.take(1.0) == float("inf")


# What nearly every call takes.


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=30),
    st.lists(st.floats(0, 0.02), min_size=30, max_size=30),
    st.sampled_from([(), ("40 tokens/second",)]),
)
def test_a_call_that_begins_at_once_takes_what_it_would_take_one_by_one(costs, pauses, second):
    """Both of two members have the same leases. The second one asks for each limit by itself."""
    worlds = [
        World(rate=["20/second", *second], burst=["20", *(["40 tokens"] if second else [])], **{"max-concurrency": 8})
        for _ in range(2)
    ]
    fast, slow = (world.member("a") for world in worlds)
    for cost, pause in zip(costs, pauses, strict=False):
        each = (1.0, cost)[: 1 + len(second)]
        for member in (fast, slow):
            member.demand = Demand(0, 2, (1.0, 5.0)[: 1 + len(second)])
            member.exchange()
        for world in worlds:
            world.now += pause
        if fast.account.take_at_once(each, 0, worlds[0].now):
            assert slow.take(*each) == 0.0
        claims = [member.account.claim() for member in (fast, slow)]
        assert claims[0] == claims[1]
        for member, world, claim in zip((fast, slow), worlds, claims, strict=True):
            claim |= {"member": "a", "fresh": "e1", "leave": False}
            member.account.granted(world.ledger.exchange(claim, world.now))


def test_a_call_that_one_rate_refuses_takes_nothing_of_the_others():
    world = World(rate=["100/second", "10 tokens/second"], burst="100, 10 tokens")
    member = world.member("a")
    member.demand = Demand(0, 4, (1.0, 2.0))
    member.exchange()
    assert member.account.take_at_once((1.0, 2.0), 0, world.now)
    for _ in range(3):
        assert not member.account.take_at_once((1.0, 9.0), 0, world.now)
    assert member.account.take_at_once((1.0, 2.0), 0, world.now)


@pytest.mark.parametrize("in_use", [7, 8])
def test_a_call_begins_at_once_only_if_there_is_a_place_whose_lease_runs(in_use):
    world = World(**{"max-concurrency": 8})
    member = world.member("a")
    member.demand = Demand(0, 8, ())
    member.exchange()
    assert member.account.take_at_once((), in_use, world.now) == (in_use < 8)
    world.now += LEASE_SECONDS
    assert not member.account.take_at_once((), in_use, world.now)


def test_no_call_begins_at_once_after_a_claim_that_has_failed():
    world = World(**{"max-concurrency": 8})
    member = world.member("a")
    member.demand = Demand(0, 8, ())
    member.exchange()
    assert member.account.take_at_once((), 0, world.now)
    member.exchange(lost=True)
    assert not member.account.take_at_once((), 0, world.now)
