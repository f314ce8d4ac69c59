"""Hedge: after what time second calls are sent, and how many."""

import pytest

from udf_server.base.errors import RetryableError
from udf_server.limits.hedge import LEARN_CALLS, Hedge


def test_a_later_sign_of_overload_does_not_shorten_the_pause():
    now = [0.0]
    hedge = Hedge(0.1, 1.0, lambda _: None, bool, lambda: now[0])
    hedge.begun()
    hedge.failed(RetryableError("busy", retry_after=30))
    hedge.failed(RetryableError("busy"))
    now[0] += 29
    assert not hedge.may_send()
    now[0] += 2
    assert hedge.may_send()


def test_at_most_a_share_of_all_calls_is_sent_twice():
    hedge = Hedge(0.1, 0.05, lambda _: None, bool)
    taken = 0
    for _ in range(1_000):
        hedge.begun()
        taken += hedge.may_send()
    assert taken == 50


def test_the_delay_is_learned_from_the_durations_of_calls():
    hedge = Hedge(None, 0.05, lambda _: None, bool)
    for number in range(LEARN_CALLS):
        assert hedge.after is None
        hedge.ended(number / 1000)
    assert hedge.after == pytest.approx(0.046)
