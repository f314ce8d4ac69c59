"""Guards of functions: concurrency that adapts, rates, circuit breakers; and a function that blocks its loop."""

import asyncio
import contextlib
import logging
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from limits import RateLimitItemPerSecond

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.streams import eventually
from udf_server.base.errors import InvalidConfig
from udf_server.guards.adaptive import AdaptiveLimit
from udf_server.guards.breaker import Breaker
from udf_server.guards.rates import MovingWindow
from udf_server.guards.settings import GuardSettings
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.server import Server


def guards(**table):
    return {"f": GuardSettings.parse("f", table)}


def answers(target, function, rows, **options):
    call = call_of(function, target, **options)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of(rows))
    found = everything(stream)
    stream.finish()
    return found


# Adaptive concurrency, as arithmetic.


def test_the_limit_rises_by_one_a_round_and_is_halved_once_a_round():
    limit = AdaptiveLimit(100)
    assert limit.limit == 8
    for _ in range(8):
        limit.succeeded(limit.limit)
    assert limit.limit == 8  # 8.94: calls of a round that grows
    limit.succeeded(limit.limit)
    assert limit.limit == 9
    for _ in range(9):
        limit.failed(9)
    assert limit.limit == 4
    limit.failed(4)
    assert limit.limit == 2


def test_a_limit_that_is_not_used_does_not_rise():
    limit = AdaptiveLimit(100)
    for _ in range(1000):
        limit.succeeded(1)
    assert limit.limit == 8


@given(st.integers(1, 50), st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=300))
def test_the_limit_stays_between_one_and_the_most(most, calls):
    limit = AdaptiveLimit(most)
    for went_well, in_use in calls:
        (limit.succeeded if went_well else limit.failed)(in_use)
        assert 1 <= limit.limit <= most


# The breaker, as a state machine.


def test_after_failures_in_a_row_nothing_is_called_and_then_one_call_tries():
    breaker = Breaker(3, 10.0)
    assert [breaker.failed(0.0) for _ in range(3)] == [False, False, True]
    assert breaker.ask(4.0) == 6.0
    assert breaker.ask(10.0) == 0.0
    assert breaker.ask(10.0) == 10.0, "one probe at a time"
    assert breaker.failed(11.0)
    assert breaker.ask(12.0) == 9.0
    assert breaker.ask(21.0) == 0.0
    breaker.succeeded()
    assert breaker.closed
    assert breaker.ask(21.0) == 0.0


def test_a_probe_that_never_ends_is_followed_by_another():
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    assert breaker.ask(10.0) == 0.0
    assert breaker.ask(19.0) == 1.0
    assert breaker.ask(20.0) == 0.0


@given(st.lists(st.tuples(st.sampled_from(["ask", "fail", "succeed"]), st.floats(0.0, 5.0)), max_size=200))
def test_while_it_is_not_closed_there_is_at_most_one_call_per_delay(events):
    breaker, now, allowed = Breaker(2, 10.0), 0.0, None
    for event, passed in events:
        now += passed
        if event == "fail":
            breaker.failed(now)
        elif event == "succeed":
            breaker.succeeded()
            allowed = None
        else:
            was_closed = breaker.closed
            wait = breaker.ask(now)
            assert 0.0 <= wait <= 10.0
            if not was_closed and wait == 0.0:
                assert allowed is None or now - allowed >= 10.0
                allowed = now


# Real servers.


def test_no_more_calls_at_once_than_the_guard_allows_over_all_streams(serve):
    now, most = [0], [0]

    @udf.scalar(name="f", buffer_capacity=50)
    async def counting(x: int) -> int:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.002)
        now[0] -= 1
        return x

    serving = serve(counting, guards=guards(**{"max-concurrency": 7}))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(answers(serving.target, counting, range(100)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [{row: row for row in range(100)}] * 3
    assert most[0] == 7
    assert serving.metric("udf_concurrency_limit", function="f", version="1") == 7


def test_concurrency_finds_what_a_service_takes_well(serve):
    """A service that fails beyond 20 calls at once: the guard stays about there, and all rows pass."""
    now, refused = [0], [0]

    @udf.scalar(name="f", buffer_capacity=200, max_attempts=100, timeout="60 s", retry_strategy="exponential-delay")
    async def limited(x: int) -> int:
        now[0] += 1
        try:
            await asyncio.sleep(0.001)
            if now[0] > 20:
                refused[0] += 1
                raise udf.RetryableError("too many")
            return x
        finally:
            now[0] -= 1

    serving = serve(limited, guards=guards(adaptive=True))
    assert answers(serving.target, limited, range(3000)) == {row: row for row in range(3000)}
    with_guard, refused[0] = refused[0], 0
    assert with_guard < 300
    assert answers(serve(limited).target, limited, range(3000)) == {row: row for row in range(3000)}
    assert refused[0] > 3 * with_guard


def test_a_rate_holds_and_waiting_is_counted(serve):
    @udf.scalar(name="f")
    async def plain(x: int) -> int:
        return x

    serving = serve(plain, guards=guards(rate="20/second"))
    began = time.monotonic()
    assert answers(serving.target, plain, range(50)) == {row: row for row in range(50)}
    assert 1.5 <= time.monotonic() - began < 20
    assert serving.metric("udf_rate_waits_total", function="f", version="1") > 0


@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.floats(0, 2, allow_nan=False, width=16), min_size=1, max_size=60)
)
def test_no_window_of_a_rate_has_more_calls_and_each_waits_no_longer_than_it_must(amount, seconds, pauses):
    now, allowed = [0.0], []
    window = MovingWindow(RateLimitItemPerSecond(amount, seconds), lambda: now[0])
    for pause in pauses:
        now[0] += pause
        wait = window.hit()
        recent = [each for each in allowed if each + seconds > now[0]]
        if wait:
            assert len(recent) == amount
            assert wait == pytest.approx(recent[0] + seconds - now[0])
        else:
            assert len(recent) < amount
            allowed.append(now[0])


@pytest.fixture
def redis_url():
    """Runs a Redis server that requires a password. `stop` of the yielded object stops it."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server, a Debian package")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--requirepass", "pa55"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port, password="pa55")
    for _ in range(1000):
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
            break
        time.sleep(0.01)
    client.close()
    yield SimpleNamespace(url=f"redis://:pa55@127.0.0.1:{port}/0", stop=process.kill)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_one_rate_holds_over_two_servers_that_share_a_redis(serve, redis_url, monkeypatch):
    calls = []

    @udf.scalar(name="f", timeout="60 s", max_attempts=2, fixed_delay="1 ms")
    async def plain(x: int) -> int:
        calls.append(time.monotonic())
        return x

    monkeypatch.setenv("RATES", redis_url.url)
    rate = {"rate": "20/second", "rate-storage-variable": "RATES"}
    servers = [serve(plain, guards=guards(**rate)) for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        every = list(threads.map(lambda server: answers(server.target, plain, range(40)), servers))
    assert every == [{row: row for row in range(40)}] * 2
    # Both servers share the limit: 80 calls take three seconds after the first twenty, not one.
    assert max(calls) - min(calls) > 2.5
    redis_url.stop()
    failed = answers(servers[0].target, plain, [1])[0]
    assert failed.retryable
    assert "f@1: the rate storage does not answer: ConnectionError" in failed.message
    assert "pa55" not in failed.message + (failed.traceback or "")


def test_a_service_that_only_fails_is_left_alone_and_tried_again(serve):
    failures, healthy = [], threading.Event()

    @udf.scalar(name="f", timeout="20 s", max_attempts=50, buffer_capacity=4, fixed_delay="10 ms")
    async def broken(x: int) -> int:
        if not healthy.is_set():
            if not failures:
                threading.Timer(1.2, healthy.set).start()
            failures.append(x)
            raise OSError("away")
        return x

    serving = serve(broken, guards=guards(**{"breaker-failures": 5, "breaker-delay": "300 ms"}))
    options = {"retry_on": "OSError,RetryableError"}
    assert answers(serving.target, broken, range(40), **options) == {row: row for row in range(40)}
    # They are five calls, those in flight by then, and a few probes: without the breaker there would be some hundreds.
    assert 5 <= len(failures) <= 15
    assert serving.metric("udf_circuit_open", function="f", version="1") == 0
    assert serving.metric("udf_circuit_refusals_total", function="f", version="1") > 0


def test_rows_fail_as_circuit_open_once_their_attempts_are_used_up(serve):
    @udf.scalar(name="f", max_attempts=1, buffer_capacity=1)
    async def broken(x: int) -> int:
        raise OSError("away")

    serving = serve(broken, guards=guards(**{"breaker-failures": 2}))
    found = answers(serving.target, broken, range(5))
    assert ["CircuitOpen" in found[row].message for row in range(5)] == [False, False, True, True, True]
    assert found[4].retryable


def test_a_row_whose_deadline_passes_while_it_waits_leaves_its_place_to_others(serve):
    release = threading.Event()

    @udf.scalar(name="f", timeout="500 ms", buffer_capacity=3)
    async def stuck(x: int) -> int:
        while x == 0 and not release.is_set():  # noqa: ASYNC110 - the test is on another thread
            await asyncio.sleep(0.005)
        return x

    serving = serve(stuck, guards=guards(**{"max-concurrency": 1}))
    found = answers(serving.target, stuck, range(3))
    assert {found[row].code for row in range(3) if not isinstance(found[row], int)} == {ErrorCode.TIMEOUT}
    release.set()
    assert answers(serving.target, stuck, [5, 6, 7]) == {0: 5, 1: 6, 2: 7}


def test_calls_that_end_because_their_client_is_gone_do_not_open_the_circuit(serve):
    running = set()

    @udf.scalar(name="f", buffer_capacity=5)
    async def waiting(x: int) -> int:
        if x >= 0:
            return x
        running.add(x)
        try:
            await asyncio.sleep(600)
        finally:
            running.discard(x)
        return x

    serving = serve(waiting, guards=guards(**{"breaker-failures": 2, "breaker-delay": "10 min"}))
    call = call_of(waiting, serving.target)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of(range(-5, 0)))
    asyncio.run(eventually(lambda: len(running) == 5))
    stream.close()
    asyncio.run(eventually(lambda: not running))
    assert answers(serving.target, waiting, [7, 8]) == {0: 7, 1: 8}


# Invalid guards.


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (
            {"max_concurency": 5},
            "unknown option 'max_concurency', did you mean 'max-concurrency'.*known: adaptive",
        ),
        ({"max-concurrency": 0}, "'max-concurrency': 0 is not a whole number"),
        ({"rate": "often"}, "'rate': 'often' is not a rate"),
        ({"adaptive": "yes"}, "'yes' is neither true nor false"),
        ({"latency-goal": "1 s"}, "latency-goal needs adaptive"),
        ({"rate-storage-variable": "X"}, "needs a rate"),
        ({"breaker-delay": "0 s"}, "longer than zero"),
    ],
)
def test_a_guard_that_makes_no_sense_is_refused(table, why):
    with pytest.raises(InvalidConfig, match=why):
        GuardSettings.parse("f", table)


def test_guards_are_read_from_the_file(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text('[guards.f]\nmax-concurrency = 5\nrate = "10/minute"\n')
    assert load_config(path).guards["f"].max_concurrency == 5


def test_a_guard_is_for_functions_that_there_are_and_that_are_async():
    @udf.scalar
    def f(x: int) -> int:
        return x

    def start(name):
        settings = {name: GuardSettings.parse(name, {"rate": "1/second"})}
        Server(ServerConfig(guards=settings), Registry([("test", f)]))

    with pytest.raises(InvalidConfig, match="function f@1 is not `async def`"):
        start("f")
    with pytest.raises(InvalidConfig, match="there is no such function"):
        start("g")


def test_the_url_of_a_storage_is_not_shown(monkeypatch):
    monkeypatch.setenv("RATES", "no-such-storage://user:swordfish@host")

    @udf.scalar
    async def f(x: int) -> int:
        return x

    settings = guards(rate="1/second", **{"rate-storage-variable": "RATES"})
    with pytest.raises(InvalidConfig, match="environment variable RATES") as caught:
        Server(ServerConfig(guards=settings), Registry([("test", f)]))
    assert "swordfish" not in str(caught.value)


# A function that blocks.


def test_a_function_that_blocks_its_loop_is_named_and_its_neighbours_and_health_do_not_notice(serve, caplog):
    entered, release = threading.Event(), threading.Event()

    @udf.scalar(timeout="30 s")
    async def blocks(x: int) -> int:
        entered.set()
        release.wait(20)
        return x

    @udf.scalar(timeout="30 s")
    async def neighbour(x: int) -> int:
        return x + 1

    with caplog.at_level(logging.WARNING, "udf_server.hosting.loop_watch"):
        serving = serve(blocks, neighbour)
        thread = threading.Thread(target=lambda: answers(serving.target, blocks, [1]))
        thread.start()
        assert entered.wait(20)
        began = time.monotonic()
        assert len(answers(serving.target, neighbour, range(20_000))) == 20_000
        assert time.monotonic() - began < 5
        with grpc.insecure_channel(serving.target) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5) == b"\x08\x01"
        blocked = {"function": "blocks", "version": "1"}
        asyncio.run(eventually(lambda: serving.metric("udf_function_loop_blocked_total", **blocked) == 1))
        release.set()
        thread.join(20)
    lines = [record for record in caplog.records if record.msg == "event loop blocked"]
    # A suspended machine stops every loop; only the function that blocks must be named.
    assert [line.function for line in lines if "release.wait(20)" in line.stack] == ["blocks@1"]
    of_neighbour = [line for line in lines if line.function == "neighbour@1"]
    assert serving.metric("udf_function_loop_blocked_total", function="neighbour", version="1") == len(of_neighbour)
