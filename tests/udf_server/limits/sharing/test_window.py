"""The window of a rate: how many units may begin in its time, at its pace, and how long a call waits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.limits.sharing.window import LOCAL_SLOTS, Window

SLOT = 1.0 / LOCAL_SLOTS


def window(amount, seconds=1, burst=None):
    return Window(amount, seconds, burst, LOCAL_SLOTS)


@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.floats(0, 2, allow_nan=False, width=16), min_size=1, max_size=60)
)
def test_no_window_of_a_rate_has_more_calls_and_each_waits_no_longer_than_it_must(amount, seconds, pauses):
    now, allowed = 0.0, []
    rate = window(amount, seconds)
    for pause in pauses:
        now += pause
        recent = [each for each in allowed if each + seconds > now]
        if wait := rate.wait(1.0, now):
            assert len([each for each in allowed if each + seconds * (1 + SLOT) > now]) == amount
            oldest = allowed[-amount] + seconds
            assert oldest <= now + wait <= oldest + seconds * SLOT * 1.001
            assert not rate.take_at_once(1.0, now)
        else:
            assert len(recent) < amount
            assert rate.take_at_once(1.0, now)
            allowed.append(now)


@given(st.lists(st.tuples(st.floats(0, 0.01), st.floats(0.001, 3.0)), min_size=1, max_size=300), st.booleans())
def test_no_window_of_a_rate_of_tokens_has_more_than_its_amount(steps, paced):
    now, spent = 0.0, []
    rate = window(5.0, burst=0.5 if paced else None)
    for pause, cost in steps:
        now += pause
        now += rate.wait(cost, now)
        assert rate.wait(cost, now) < 1e-9
        rate.add(cost, now)
        spent.append((now, cost))
    for begin, _ in spent:
        assert sum(cost for when, cost in spent if begin <= when < begin + 0.999) <= 5.0 + 1e-6


@given(st.randoms(use_true_random=False), st.sampled_from([None, 0.5, 5.0]))
def test_no_window_has_more_than_its_amount_whenever_calls_give_back(draw, burst):
    now, spent, running = 0.0, [], []
    rate = window(5.0, burst=burst)
    for _ in range(60):
        now += draw.choice([0.003, 0.2, 1.0]) * draw.random()
        draw.shuffle(running)
        for began, unspent in running[:1]:
            rate.settle(-unspent, began, now)
        del running[:1]
        cost = draw.uniform(0.1, 3.0)
        if not rate.wait(cost, now):
            unspent = draw.choice([0.0, 0.5, 1.0]) * cost
            rate.take(cost, now)
            rate.begin(cost, now, now)
            spent.append((now, cost - unspent))
            running.append((now, unspent))
    for begin, _ in spent:
        assert sum(cost for when, cost in spent if begin <= when < begin + 0.999) <= 5.0 + 1e-6


def test_what_a_call_gives_back_is_its_own():
    rate = window(10.0)
    for now in (0.0, 0.5):
        rate.add(5.0, now)
    rate.settle(-4.0, 0.5, 0.5)
    assert rate.wait(4.0, 0.5) == 0.0
    assert rate.wait(9.0, 1.001) == 0.0
    rate.settle(-5.0, 0.0, 1.001)
    assert rate.wait(10.0, 1.001) == pytest.approx(0.5), "what the first call took is out of the window"


def test_a_window_of_many_calls_stays_small_and_knows_what_begins_in_it():
    rate, now = window(1e6), 0.0
    for _ in range(100_000):
        now += 1e-5
        assert rate.take_at_once(1.0, now)
    assert rate.used(now) == pytest.approx(100_000, rel=0.01)
    assert rate.wait(1.0, now) == 0.0


# The pace.


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(0.01, 2.0)), min_size=1, max_size=200))
def test_no_time_has_more_than_the_burst_and_the_pace_allow(steps):
    now, spent = 0.0, []
    rate = window(10.0, burst=1.0)
    for pause, cost in steps:
        now += pause
        if not rate.wait(cost, now):
            rate.add(cost, now)
            spent.append((now, cost))
    for place, (begin, _) in enumerate(spent):
        total = 0.0
        for when, cost in spent[place:]:
            total += cost
            # A call of more than the burst begins when nothing is owed.
            assert total <= max(1.0, cost) + 10.0 * (when - begin) + 2.0 + 1e-6


def test_calls_begin_at_once_up_to_the_burst_and_then_at_the_pace_of_the_rate():
    rate, now, begun = window(20.0, burst=3.0), 100.0, []
    while len(begun) < 40:
        now += rate.wait(1.0, now)
        assert not rate.wait(1.0, now)
        rate.take(1.0, now)
        rate.begin(1.0, now, now)
        begun.append(round(now - 100.0, 3))
    assert begun[:5] == [0.0, 0.0, 0.0, 0.05, 0.1]
    assert max(sum(at <= each < at + 0.25 for each in begun) for at in begun) == 3 + 4


def test_a_call_of_more_than_the_burst_begins_when_nothing_is_owed():
    rate = window(10.0, burst=1.0)
    assert rate.wait(4.0, 0.0) == 0.0
    rate.add(4.0, 0.0)
    assert rate.wait(4.0, 0.0) == pytest.approx(0.4)
    assert rate.wait(1.0, 0.3) == pytest.approx(0.1)
    assert rate.room(4.0, 0.0) == pytest.approx(-3.0)
    assert rate.room(4.0, 0.4) == pytest.approx(4.0)


def test_what_comes_back_is_not_owed():
    rate = window(10.0, burst=1.0)
    rate.take(5.0, 0.0)
    rate.begin(5.0, 0.0, 0.0)
    rate.settle(-4.5, 0.0, 0.0)
    assert rate.wait(0.5, 0.0) == pytest.approx(0.0)
    assert rate.wait(1.0, 0.0) == pytest.approx(0.05)


def test_without_a_burst_all_units_begin_at_once():
    rate = window(10.0)
    assert all(rate.take_at_once(1.0, 0.0) for _ in range(10))
    assert not rate.take_at_once(1.0, 0.0)
    assert rate.room(1.0, 0.5) == 0.0 and math.isclose(rate.room(1.0, 1.1), 10.0)
