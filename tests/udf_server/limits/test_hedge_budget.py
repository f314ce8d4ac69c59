"""HedgeBudget: after what time second calls are sent, and how many."""

import pytest

from udf_server.limits.hedge import LEARN_CALLS, HedgeBudget


def test_a_later_sign_of_overload_does_not_shorten_the_pause():
    now = [0.0]
    budget = HedgeBudget(0.1, 1.0, lambda: now[0])
    budget.begun()
    budget.overloaded(30)
    budget.overloaded()
    now[0] += 29
    assert not budget.take()
    now[0] += 2
    assert budget.take()


def test_at_most_a_share_of_all_calls_is_sent_twice():
    budget = HedgeBudget(0.1, 0.05)
    taken = 0
    for _ in range(1_000):
        budget.begun()
        taken += budget.take()
    assert taken == 50


def test_the_delay_is_learned_from_the_durations_of_calls():
    budget = HedgeBudget(None, 0.05)
    for number in range(LEARN_CALLS):
        assert budget.after is None
        budget.ended(number / 1000)
    assert budget.after == pytest.approx(0.046)
