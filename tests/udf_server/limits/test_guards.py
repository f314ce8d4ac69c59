"""Guards of functions: concurrency that adapts, rates, circuit breakers; and a function that blocks its loop."""

import asyncio
import itertools
import logging
import threading
import time

import grpc
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.aggregate_functions import CountAll
from tests.udf_server.talk import eventually
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.base.errors import InvalidConfig
from udf_server.hosting.registry import Registry
from udf_server.limits.breaker import AdaptiveLimit, Breaker, of_error, of_result
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings, parse_rates
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
    breaker.succeeded(21.0)
    assert breaker.closed
    assert breaker.ask(21.0) == 0.0


def test_a_probe_that_never_ends_is_followed_by_another():
    breaker = Breaker(1, 10.0)
    breaker.failed(0.0)
    assert breaker.ask(10.0) == 0.0
    assert breaker.ask(19.0) == 1.0
    assert breaker.ask(20.0) == 0.0


QUARTERS = st.integers(0, 20).map(lambda number: number / 4)
"""Seconds whose sums and differences are exact."""


@given(st.lists(st.tuples(st.sampled_from(["ask", "fail", "succeed"]), QUARTERS), max_size=200))
def test_while_it_is_not_closed_there_is_at_most_one_call_per_delay(events):
    breaker, now, allowed = Breaker(2, 10.0), 0.0, None
    for event, passed in events:
        now += passed
        if event == "fail":
            breaker.failed(now)
        elif event == "succeed":
            breaker.succeeded(now)
            allowed = None if breaker.closed else allowed
        else:
            was_closed = breaker.closed
            wait = breaker.ask(now)
            assert 0.0 <= wait <= 10.0
            if not was_closed and wait == 0.0:
                assert allowed is None or now - allowed >= 10.0
                allowed = now


# Real servers.


class Counted:
    """Counts the calls that run."""

    def __init__(self):
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error):
        with self._lock:
            self.now -= 1


def counting_functions(counted, seconds=0.002):
    @udf.scalar(name="f", buffer_capacity=50)
    async def as_async(x: int) -> int:
        with counted:
            await asyncio.sleep(seconds)
        return x

    @udf.scalar(name="f", buffer_capacity=50)
    def as_def(x: int) -> int:
        with counted:
            time.sleep(seconds)
        return x

    @udf.scalar(name="f", vectorized=True, batch_rows=5, buffer_capacity=50)
    def as_vectorized(x: pa.Int64Array) -> pa.Int64Array:
        with counted:
            time.sleep(seconds)
        return x

    @udf.scalar(name="f", batched=True, batch_rows=5, buffer_capacity=50)
    async def as_list(x: list[int]) -> list[int]:
        with counted:
            await asyncio.sleep(seconds)
        return x

    return {"async": as_async, "def": as_def, "vectorized": as_vectorized, "list": as_list}


@pytest.mark.parametrize("kind", ["async", "def", "vectorized", "list"])
def test_no_more_calls_at_once_than_the_guard_allows_over_all_streams(serve, kind):
    counted = Counted()
    counting = counting_functions(counted)[kind]
    limit = 2 if kind == "vectorized" else 7  # a stream has one plain vectorized call at a time
    serving = serve(counting, guards=guards(**{"max-concurrency": limit}))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(answers(serving.target, counting, range(100)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [{row: row for row in range(100)}] * 3
    assert counted.most == limit
    assert serving.metric("udf_concurrency_limit", function="f", version="1") == limit


@pytest.mark.slow
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


def failing_lists():
    """List functions whose service fails: for all rows, or for those that are odd. They say so in different ways."""
    down = udf.Failure("down", retryable=True)

    @udf.scalar(name="f", batched=True, batch_rows=4)
    async def returns_failures(x: list[int]) -> list[int | udf.Failure]:
        return [down] * len(x)

    @udf.scalar(name="f", batched=True, batch_rows=4)
    def returns_failures_on_a_thread(x: list[int]) -> list[int | udf.Failure]:
        return [down] * len(x)

    @udf.scalar(name="f", batched=True, batch_rows=4)
    async def raises_row_errors(x: list[int]) -> list[int]:
        raise udf.RowErrors(dict.fromkeys(range(len(x)), TimeoutError("slow")), [None] * len(x))

    @udf.scalar(name="f", vectorized=True, batch_rows=4)
    def raises_row_errors_of_arrays(x: pa.Int64Array) -> pa.Int64Array:
        raise udf.RowErrors(dict.fromkeys(range(len(x)), ConnectionError("lost")), x)

    @udf.scalar(name="f")
    async def raises_a_failure(x: int) -> int:
        raise down

    return {each.call.__name__: each for each in (
        returns_failures, returns_failures_on_a_thread, raises_row_errors, raises_row_errors_of_arrays, raises_a_failure
    )}  # fmt: skip


@pytest.mark.parametrize("name", failing_lists())
def test_a_call_for_many_rows_has_failed_if_the_service_failed_for_all_of_them(serve, name):
    function = failing_lists()[name]
    serving = serve(function, guards=guards(**{"breaker-failures": 3, "breaker-delay": "100 s"}))
    found = answers(serving.target, function, range(40), **{"max-attempts": 1, "buffer-capacity": 1})
    assert sum("CircuitOpen" in str(each) for each in found.values()) >= 20
    assert serving.metric("udf_circuit_open", function="f", version="1") == 1


@pytest.mark.parametrize("own", [True, False], ids=["rows have errors of their own", "some rows have values"])
def test_a_call_for_many_rows_has_not_failed_if_the_service_answered_for_some_of_them(serve, own):
    @udf.scalar(name="f", batched=True, batch_rows=4)
    async def partly(x: list[int]) -> list[int | udf.Failure]:
        other = udf.Failure("no such row") if own else 1
        return [other, *(udf.Failure("down", retryable=True) for _ in x[1:])]

    serving = serve(partly, guards=guards(**{"breaker-failures": 1, "breaker-delay": "100 s"}))
    found = answers(serving.target, partly, range(40), **{"max-attempts": 1, "buffer-capacity": 1})
    assert not any("CircuitOpen" in str(each) for each in found.values())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), (True, False, 0.0)),
        (udf.Failure("bad row"), (True, False, 0.0)),
        (udf.Failure("down", retryable=True, retry_after=3.0), (False, True, 3.0)),
        (udf.RetryableError(retry_after=2.0), (False, True, 2.0)),
        (udf.RetryableError(retry_after=float("inf")), (False, True, 0.0)),
        (udf.RowErrors({0: ValueError(), 2: TimeoutError()}), (True, True, 0.0)),
        (udf.RowErrors(dict.fromkeys(range(3), udf.RetryableError(retry_after=1.0))), (False, True, 1.0)),
        (udf.RowErrors({}), (True, False, 0.0)),
    ],
    ids=repr,
)  # fmt: skip
def test_what_an_error_tells_about_the_service(error, expected):
    assert of_error(error, 3) == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([1, 2], (True, False, 0.0)),
        ([1, udf.Failure("busy", retryable=True, retry_after=4.0)], (True, True, 4.0)),
        ([udf.Failure("busy", retryable=True)] * 2, (False, True, 0.0)),
        ([udf.Failure("bad")] * 2, (True, False, 0.0)),
        ([], (True, False, 0.0)),
        (pa.array([1, 2]), (True, False, 0.0)),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_result_of_a_call_for_many_rows_tells_about_the_service(result, expected):
    assert of_result(result) == expected


@pytest.mark.parametrize("kind", ["async", "def", "vectorized"])
def test_the_cache_keeps_no_error_of_a_call_that_an_open_circuit_has_refused(serve, tmp_path, kind):
    """Also if the function does not retry CircuitOpen, and has its errors kept."""
    down = [True]
    options = {"name": "f", "cache_ttl": "1 h", "cache_errors": "1 h", "retry_on": [ConnectionError], "max_attempts": 1}

    def ask(value):
        if down:
            raise ConnectionError("down")
        return value

    @udf.scalar(**options)
    async def as_async(x: int) -> int:
        return ask(x)

    @udf.scalar(**options)
    def as_def(x: int) -> int:
        return ask(x)

    @udf.scalar(vectorized=True, batch_rows=1, **options)
    def as_vectorized(x: pa.Int64Array) -> pa.Int64Array:
        return ask(x)

    function = {"async": as_async, "def": as_def, "vectorized": as_vectorized}[kind]
    settings = {"cache_url": f"file://{tmp_path}/cache"}
    refusing = serve(function, guards=guards(**{"breaker-failures": 1, "breaker-delay": "1000 s"}), **settings)
    found = answers(refusing.target, function, range(20), **{"buffer-capacity": 1})
    assert sum("CircuitOpen" in each.message and each.retryable for each in found.values()) == 19
    down.clear()
    found = answers(serve(function, **settings).target, function, range(20))
    assert list(found.values()) == list(range(20))


def test_a_rate_in_a_unit_that_no_call_costs_is_a_warning(serve, caplog):
    @udf.scalar(name="f", cost=lambda x: {"token": 5})
    async def misspelled(x: int) -> int:
        return x

    serving = serve(misspelled, guards=guards(rate="10 tokens/second"))
    assert answers(serving.target, misspelled, range(3)) == {0: 0, 1: 1, 2: 2}
    [record] = [each for each in caplog.records if "a rate counts a unit" in each.message]
    assert (record.function, record.rate, record.cost) == ("f@1", "tokens", "token")


@pytest.mark.slow
def test_a_rate_holds_and_waiting_is_counted(serve):
    times = []

    @udf.scalar(name="f")
    async def plain(x: int) -> int:
        times.append(time.monotonic())
        return x

    serving = serve(plain, guards=guards(rate="20/second"))
    began = time.monotonic()
    assert answers(serving.target, plain, range(50)) == {row: row for row in range(50)}
    # However slow the machine is, a call of the next second does not begin before.
    assert times[20] - began > 0.95
    assert times[40] - began > 1.95
    assert serving.metric("udf_rate_waits_total", function="f", version="1") > 0


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("100/second", "100/second"),
        ("90000 tokens/minute", "90000 tokens/minute"),
        ("0.5 usd per 10 seconds", "0.5 usd/10 seconds"),
        (["10/second", "90_000 tokens/minute"], "10/second, 90000 tokens/minute"),
        ("1/2 hours", "1/7200 seconds"),
    ],
)
def test_rates_have_units_and_may_be_several(text, spelled):
    rates = parse_rates(text)
    assert ", ".join(map(str, rates)) == spelled
    assert parse_rates(spelled) == rates


@pytest.mark.slow
def test_a_service_that_only_fails_is_left_alone_and_tried_again(serve):
    failures = []

    @udf.scalar(name="f", timeout="60 s", max_attempts=1000, buffer_capacity=4, fixed_delay="10 ms")
    async def broken(x: int) -> int:
        if len(failures) < 11:
            failures.append(time.monotonic())
            raise OSError("away")
        return x

    serving = serve(broken, guards=guards(**{"breaker-failures": 5, "breaker-delay": "300 ms"}))
    options = {"retry_on": "OSError,RetryableError"}
    assert answers(serving.target, broken, range(40), **options) == {row: row for row in range(40)}
    # After five failures and those that were in flight by then, there is a probe per delay.
    assert all(after - before > 0.25 for before, after in itertools.pairwise(failures[8:]))
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


def test_rows_of_a_def_that_wait_for_their_guard_time_out_and_lose_no_thread(serve):
    release = threading.Event()

    @udf.scalar(name="f", timeout="500 ms", buffer_capacity=40)
    def stuck(x: int) -> int:
        if x == 0:
            release.wait(30)
        return x

    serving = serve(stuck, guards=guards(**{"max-concurrency": 1}), lost_calls_per_function=3)
    found = answers(serving.target, stuck, range(30))
    assert {found[row].code for row in range(30) if not isinstance(found[row], int)} == {ErrorCode.TIMEOUT}
    release.set()
    assert answers(serving.target, stuck, [5, 6, 7]) == {0: 5, 1: 6, 2: 7}


@pytest.mark.slow
def test_calls_cost_what_they_report_and_otherwise_what_was_estimated(serve):
    asked = []

    @udf.scalar(name="f", cost=lambda size: {"tokens": size}, max_attempts=1, buffer_capacity=10)
    async def complete(context: udf.CallContext, size: int) -> int:
        asked.append(time.monotonic())
        if size == 50:
            context.spend(tokens=0.5)
            context.spend(tokens=0.5, usd=3)
        return size

    serving = serve(complete, guards=guards(rate=["1000/second", "100 tokens/10 minutes"]))
    # More than two estimates of 50 would not fit before 10 minutes.
    assert set(answers(serving.target, complete, [50] * 20, timeout="60 s").values()) == {50}
    too_large = answers(serving.target, complete, [101])[0]
    assert "a call of 101 tokens never fits the rate 100 tokens/600 seconds" in too_large.message
    serving = serve(complete, guards=guards(rate="100 tokens/second"))
    asked.clear()
    began = time.monotonic()
    assert set(answers(serving.target, complete, [49] * 5).values()) == {49}
    assert asked[2] - began > 0.95
    assert asked[4] - began > 1.95


@pytest.mark.parametrize(
    ("cost", "why"),
    [
        (lambda x: {"tokens": -1}, "cost: tokens=-1 is not a number of at least 0"),
        (lambda x: {"tokens": "many"}, "cost: tokens='many' is not a number"),
        (lambda x: 12, "cost: 12 has no units; expected a mapping such as {'tokens': 120}"),
        (lambda x: {"tokens": 1 / x}, "cost raised ZeroDivisionError"),
    ],
)
def test_a_cost_that_is_none_is_the_error_of_its_row(serve, cost, why):
    @udf.scalar(name="f", cost=cost)
    def complete(x: int) -> int:
        return 1

    serving = serve(complete, guards=guards(rate="1000 tokens/second"))
    failed = answers(serving.target, complete, [0])[0]
    assert why in failed.message
    assert not failed.retryable


def test_a_negative_spending_is_the_error_of_its_row(serve):
    @udf.scalar(name="f")
    def complete(x: int, context: udf.CallContext) -> int:
        context.spend(tokens=-x)
        return 1

    assert "f@1: spend: tokens=-5 is not a number" in answers(serve(complete).target, complete, [5])[0].message


def test_a_retry_after_pauses_the_rate_for_all_rows(serve):
    times = []

    @udf.scalar(name="f", buffer_capacity=1, timeout="30 s")
    async def limited(x: int) -> int:
        times.append(time.monotonic())
        if len(times) == 1:
            raise udf.RetryableError("429", retry_after=0.8)
        return x

    serving = serve(limited, guards=guards(rate="1000/second"))
    assert answers(serving.target, limited, range(3)) == {0: 0, 1: 1, 2: 2}
    assert times[1] - times[0] > 0.75
    assert answers(serving.target, limited, [7]) == {0: 7}


@pytest.mark.parametrize(("seconds", "paused"), [(60.0, 60.0), (1e9, 3_600.0)])
def test_a_retry_after_pauses_the_rate_for_at_most_an_hour(seconds, paused):
    now = [0.0]
    limiter = Limiter("f@1", guards(rate="1000/second")["f"], clock=lambda: now[0])
    assert limiter.takes_at_once(limiter.one_call, now[0], None)
    error = of_error(udf.RetryableError("429", retry_after=seconds), 1)
    limiter.leave(error, now[0], limiter.one_call, limiter.account, None, None)
    now[0] = paused - 0.1
    assert not limiter.takes_at_once(limiter.one_call, now[0], None)
    now[0] = paused
    assert limiter.takes_at_once(limiter.one_call, now[0], None)


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
        ({"rate": "-5/second"}, "'-5/second' is not a rate"),
        ({"rate": "0/second"}, "'0/second' is not a rate"),
        ({"rate": "5/0 seconds"}, "'5/0 seconds' is not a rate"),
        ({"rate": "5/00 seconds"}, "'5/00 seconds' is not a rate"),
        ({"cache-ttl": "1 h"}, "unknown option 'cache-ttl'"),
        ({"rate": "5/fortnight"}, "'5/fortnight' is not a rate, such as '100/second' or '90000 tokens/minute'"),
        ({"rate": "5/second, 6/second"}, "two rates of one unit and time"),
        ({"without-coordination": "panic"}, "'panic' is not one of fail-closed, fail-open"),
        ({"adaptive": "yes"}, "'yes' is neither true nor false"),
        ({"latency-goal": "1 s"}, "latency-goal needs adaptive"),
        ({"rate-storage-variable": "X"}, "no longer exists; set coordination_url"),
        ({"breaker-delay": "0 s"}, "longer than zero"),
        ({"rate": "5/second", "burst": "many"}, "'many' is not an amount, such as '50' or '9000 tokens'"),
        ({"rate": "5/second", "burst": "5, 6 calls"}, "two amounts of calls"),
        ({"rate": "5/second", "burst": "5 tokens"}, "burst: tokens: no rate counts them"),
    ],
)
def test_a_guard_that_makes_no_sense_is_refused(table, why):
    with pytest.raises(InvalidConfig, match=why):
        GuardSettings.parse("f", table)


def test_a_tenth_of_a_rate_and_at_least_a_call_may_begin_at_once_unless_burst_says_otherwise():
    def bursts(**table):
        return [rate.burst for rate in GuardSettings.parse("f", table).rate]

    assert bursts(rate="5/second, 100 tokens/minute, 1000/hour, 9/2 minutes") == [1.0, 10.0, None, None]
    settings = {"rate": ["500/minute", "90_000 tokens/minute", "10_000/day"], "burst": [20, "9_000 tokens"]}
    assert bursts(**settings) == [20.0, 9_000.0, 20.0]
    assert bursts(rate="5/second", burst=50) == [5.0], "no more than the rate"
    assert "burst = 20, 9000 tokens" in str(GuardSettings.parse("f", settings))


def test_guards_are_read_from_the_file(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text('[guards.f]\nmax-concurrency = 5\nrate = "10/minute"\n')
    assert load_config(path).guards["f"].max_concurrency == 5


def test_a_guard_is_for_scalar_functions_that_there_are_with_the_units_that_they_cost():
    @udf.scalar
    def f(x: int) -> int:
        return x

    def start(name, rate="1/second"):
        settings = {name: GuardSettings.parse(name, {"rate": rate})}
        Server(ServerConfig(guards=settings), Registry([("test", f), ("test", declare_aggregate(CountAll))]))

    start("f")
    with pytest.raises(InvalidConfig, match="count_all@1 is an aggregate function; guards are for scalar functions"):
        start("count_all")
    with pytest.raises(InvalidConfig, match="there is no such function"):
        start("g")
    with pytest.raises(InvalidConfig, match="rate counts tokens, but the function is declared without `cost`"):
        start("f", "5 tokens/second")


def test_the_url_of_a_coordination_is_not_shown():
    @udf.scalar
    async def f(x: int) -> int:
        return x

    config = ServerConfig(guards=guards(rate="1/second"), coordination_url="no-such-storage://user:swordfish@host")
    with pytest.raises(InvalidConfig, match="coordination_url") as caught:
        Server(config, Registry([("test", f)]))
    assert "swordfish" not in str(caught.value) + repr(config)


# A function that blocks.


def test_a_function_that_blocks_its_loop_is_named_and_its_neighbours_and_health_do_not_notice(serve, caplog):
    entered, release = threading.Event(), threading.Event()

    @udf.scalar(timeout="30 s")
    async def blocks(x: int) -> int:
        entered.set()
        release.wait(300)
        return x

    @udf.scalar(timeout="30 s")
    async def neighbour(x: int) -> int:
        return x + 1

    with caplog.at_level(logging.WARNING, "udf_server.serving.upkeep"):
        serving = serve(blocks, neighbour)
        thread = threading.Thread(target=lambda: answers(serving.target, blocks, [1]))
        thread.start()
        assert entered.wait(20)
        assert len(answers(serving.target, neighbour, range(20_000))) == 20_000
        with grpc.insecure_channel(serving.target) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5) == b"\x08\x01"
        blocked = {"function": "blocks", "version": "1"}
        asyncio.run(eventually(lambda: serving.metric("udf_function_loop_blocked_total", **blocked) == 1))
        assert thread.is_alive(), "it still blocks"
        release.set()
        thread.join(20)
    lines = [record for record in caplog.records if record.msg == "event loop blocked"]
    # A suspended machine stops every loop; only the function that blocks must be named.
    assert [line.function for line in lines if "release.wait(300)" in line.stack] == ["blocks@1"]
    of_neighbour = [line for line in lines if line.function == "neighbour@1"]
    assert serving.metric("udf_function_loop_blocked_total", function="neighbour", version="1") == len(of_neighbour)
