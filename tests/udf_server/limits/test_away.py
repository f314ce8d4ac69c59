"""Budgets whose Redis is away: rows wait for it within their timeouts, and what was not called is not counted."""

import threading
import time

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.udf_server.limits.test_budgets import budget, results
from tests.udf_server.lying_redis import LyingRedis, Raw
from udf_server.limits.sharing.ledger import LEASE_SECONDS

AWAY = Raw(b"-ERR away\r\n")


@udf.scalar(max_attempts=3, fixed_delay="1 ms")
async def ask(x: int) -> int:
    return x


@pytest.fixture
def redis():
    redis = LyingRedis()
    yield redis
    redis.close()


@pytest.mark.slow
def test_rows_wait_for_the_redis_of_their_budget_and_are_called_when_it_is_back(serve, redis):
    serving, bound = serve(ask, coordination_url=redis.url), budget(calls=100)
    assert results(serving, ask, [1], bound)[0] == {0: 1}
    since, back = time.monotonic(), threading.Event()

    def away(name, answer):
        if time.monotonic() - since > LEASE_SECONDS + 1.0:
            back.set()
        return answer if back.is_set() or name != b"EVALSHA" else AWAY

    redis.lie = away
    found, _ = results(serving, ask, [2, 3], bound, timeout="60 s")
    assert found == {0: 2, 1: 3} and back.is_set()


@pytest.fixture
def failed(serve, redis):
    """The errors and statistics of rows of a budget whose Redis never answers."""
    redis.lie = lambda name, answer: AWAY if name == b"EVALSHA" else answer
    found, statistics = results(
        serve(ask, coordination_url=redis.url), ask, [1, 2, 3], budget(calls=100), timeout="6 s"
    )
    return [found[row] for row in range(3)], statistics


@pytest.mark.slow
def test_rows_whose_budget_is_not_coordinated_have_not_failed_in_their_function(failed):
    errors, _ = failed
    assert {error.code for error in errors}.isdisjoint({ErrorCode.FUNCTION_ERROR})


@pytest.mark.slow
def test_rows_that_never_got_a_place_in_their_budget_are_no_calls(failed):
    _, statistics = failed
    assert statistics.calls == 0
