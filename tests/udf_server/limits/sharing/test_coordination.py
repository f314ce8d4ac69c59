"""Guards that several servers share by a Redis, and the worker processes of one server without it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import udf_server as udf
from tests.udf_server.limits.test_guards import Counted, answers, counting_functions, guards
from tests.udf_server.redis_process import with_redis
from udf_server.base.errors import InvalidConfig
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LedgerServer, RedisLedgers


@pytest.fixture
def ledger_server():
    server = LedgerServer()
    yield server
    server.close()


def all_answers(servers, function, rows, streams=1, **options):
    """What `streams` streams to each server get, all at once."""
    targets = [server.target for server in servers for _ in range(streams)]
    with ThreadPoolExecutor(len(targets)) as threads:
        return list(threads.map(lambda target: answers(target, function, rows, **options), targets))


def check_concurrency(serve, url, kind):
    counted = Counted()
    counting = counting_functions(counted, 0.01)[kind]
    limit = 3 if kind == "vectorized" else 8
    shared = {"guards": guards(**{"max-concurrency": limit}), "coordination_url": url}
    servers = [serve(counting, **shared) for _ in range(3)]
    assert all_answers(servers, counting, range(60), 2) == [{row: row for row in range(60)}] * 6
    assert 1 < counted.most <= limit


@with_redis
@pytest.mark.parametrize("kind", ["async", "def", "vectorized", "list"])
def test_servers_that_share_a_redis_make_no_more_calls_at_once_than_one_guard_allows(serve, redis_process, kind):
    check_concurrency(serve, redis_process.url, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "def"])
def test_workers_that_share_a_parent_make_no_more_calls_at_once_than_one_guard_allows(serve, ledger_server, kind):
    check_concurrency(serve, ledger_server.url, kind)


def most_in_a_window(times, seconds):
    times = sorted(times)
    return max(sum(1 for each in times if begin <= each < begin + seconds) for begin in times)


@with_redis
def test_servers_that_share_a_redis_keep_one_rate(serve, redis_process):
    times = []

    @udf.scalar(name="f", timeout="120 s", buffer_capacity=100)
    async def counted(x: int) -> int:
        times.append(time.monotonic())
        return x

    shared = {"guards": guards(rate="200/second"), "coordination_url": redis_process.url}
    servers = [serve(counted, **shared) for _ in range(4)]
    rows = 200
    assert all_answers(servers, counted, range(rows)) == [{row: row for row in range(rows)}] * 4
    assert len(times) == 4 * rows
    # The threads of this test measure when a call runs, so a busy machine may delay some calls into the next window.
    assert most_in_a_window(times, 0.95) <= 202


@with_redis
def test_tokens_are_counted_over_servers_and_settled(serve, redis_process):
    times = []

    @udf.scalar(name="f", timeout="120 s", cost=lambda x: {"tokens": 10})
    async def complete(context: udf.CallContext, x: int) -> int:
        times.append(time.monotonic())
        context.spend(tokens=x)
        return 1

    shared = {"guards": guards(rate="1000 tokens/2 seconds"), "coordination_url": redis_process.url}
    servers = [serve(complete, **shared) for _ in range(2)]
    # Together they were estimated as 100 tokens and are 2,000, so that nothing is left for the last one.
    all_answers(servers, complete, [200] * 5)
    time.sleep(0.3)
    all_answers(servers[:1], complete, [1])
    assert times[-1] - times[0] > 1.9


@with_redis
def test_each_server_learns_for_itself_that_a_service_fails_and_works_again(serve, redis_process):
    healthy, made = threading.Event(), []

    @udf.scalar(name="f", timeout="60 s", max_attempts=1, buffer_capacity=1)
    async def broken(x: int) -> int:
        made.append(x)
        if not healthy.is_set():
            raise OSError("away")
        return x

    shared = {
        "guards": guards(**{"breaker-failures": 4, "breaker-delay": "2 s", "max-concurrency": 8}),
        "coordination_url": redis_process.url,
    }
    one, other = (serve(broken, **shared) for _ in range(2))
    assert "CircuitOpen" in answers(one.target, broken, range(5))[4].message
    assert len(made) == 4
    assert "away" in answers(other.target, broken, [1])[0].message, "it makes calls until it has seen failures itself"
    assert [each.metric("udf_circuit_open", function="f", version="1") for each in (one, other)] == [1, 0]
    healthy.set()
    assert answers(one.target, broken, [1], max_attempts=100, retry_on="RetryableError")[0] == 1


@with_redis
def test_a_guard_without_anything_to_share_needs_no_redis(serve, redis_process):
    @udf.scalar(name="f", timeout="60 s", max_attempts=1)
    async def f(x: int) -> int:
        return x

    redis_process.stop()
    server = serve(f, guards=guards(**{"breaker-failures": 4, "adaptive": True}), coordination_url=redis_process.url)
    assert answers(server.target, f, [1, 2]) == {0: 1, 1: 2}


@with_redis
def test_while_redis_is_away_calls_fail_or_are_made_as_the_guard_says(serve, redis_process):
    @udf.scalar(name="f", timeout="60 s", max_attempts=1)
    async def plain(x: int) -> int:
        return x

    closed, opened = (
        serve(
            plain,
            guards=guards(**{"max-concurrency": 4, "rate": "1000/second", "without-coordination": choice}),
            coordination_url=redis_process.url,
            coordination_namespace=choice,
        )
        for choice in ("fail-closed", "fail-open")
    )
    assert all_answers([closed, opened], plain, range(20)) == [{row: row for row in range(20)}] * 2
    redis_process.stop()
    deadline = time.monotonic() + 60
    while not hasattr(failed := answers(closed.target, plain, [1])[0], "message"):
        assert time.monotonic() < deadline
    assert failed.retryable
    assert "f@1: its guard is not coordinated: Redis does not answer" in failed.message
    assert "pa55" not in failed.message + (failed.traceback or "")
    assert answers(opened.target, plain, range(20)) == {row: row for row in range(20)}
    redis_process.start()
    again = {"max_attempts": 1_000, "retry_on": "RetryableError"}
    assert all_answers([closed, opened], plain, range(20), **again) == [{row: row for row in range(20)}] * 2


@with_redis
def test_a_server_starts_without_its_redis_and_uses_it_later(serve, redis_process):
    redis_process.stop()

    @udf.scalar(name="f", timeout="60 s", max_attempts=1_000)
    async def plain(x: int) -> int:
        return x

    serving = serve(plain, guards=guards(**{"max-concurrency": 4}), coordination_url=redis_process.url)
    threading.Timer(1.0, redis_process.start).start()
    assert answers(serving.target, plain, range(20)) == {row: row for row in range(20)}


@pytest.mark.slow
def test_a_server_with_other_settings_for_a_guard_is_refused_with_both(serve, ledger_server):
    @udf.scalar(name="f")
    async def plain(x: int) -> int:
        return x

    url = ledger_server.url
    serve(plain, guards=guards(**{"max-concurrency": 8}), coordination_url=url)
    with pytest.raises(InvalidConfig, match=r"f@1: this server has max-concurrency = 9; .* have max-concurrency = 8"):
        serve(plain, guards=guards(**{"max-concurrency": 9}), coordination_url=url)


@pytest.mark.slow
def test_a_server_waits_for_one_with_other_settings_that_is_leaving(serve, ledger_server):
    @udf.scalar(name="f")
    async def plain(x: int) -> int:
        return x

    url = ledger_server.url
    first = serve(plain, guards=guards(**{"max-concurrency": 8}), coordination_url=url)
    threading.Timer(1.0, first.stop).start()
    second = serve(plain, guards=guards(**{"max-concurrency": 9}), coordination_url=url)
    assert answers(second.target, plain, [1]) == {0: 1}


@with_redis
async def test_many_jobs_with_budgets_claim_at_once(redis_process):
    jobs = [Budget(f"job {number}", Terms((("usd", 1.0),))) for number in range(300)]
    claims = []
    coordinator = Coordinator(
        RedisLedgers(redis_process.url, "many"), jobs, observe=lambda seconds, good: claims.append(good)
    )
    await coordinator.open()
    await coordinator.close()
    assert len(claims) >= 2 * len(jobs)
    assert all(claims)
