"""Second calls of slow calls: the first answer counts, few are sent, and none under overload."""

import asyncio
from typing import Any

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.options import HOSTED_OPTIONS
from tests.udf_server.talk import Talk, batch, eventually
from udf_server.base.errors import DeclarationError
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.limits.hedge import LEARN_CALLS, Hedge
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.streams import opening as opening_of_streams
from udf_server.testing import FunctionEnvironment

HEDGED: dict[str, Any] = {"idempotent": True, "hedge_after": "10 ms", "hedge_share": 1, "max_attempts": 1}


class Service:
    """Answers each row after its seconds, of which there are some for each call of the row."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.calls: dict[int, int] = {}
        self.cancelled = 0

    async def __call__(self, x: int) -> int:
        number = self.calls[x] = self.calls.get(x, 0) + 1
        try:
            await asyncio.sleep(self.seconds[min(number, len(self.seconds)) - 1])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 10 * x + number


def hedges(environment: FunctionEnvironment, name: str = "f") -> dict[str, float]:
    registry = environment.metrics.registry
    return {
        outcome: registry.get_sample_value(
            "udf_hedges_total", {"function": name, "version": "1", "outcome": outcome}
        ) or 0.0
        for outcome in ("sent", "won", "wasted")
    }  # fmt: skip


async def test_a_row_gets_the_answer_of_its_second_call_if_that_is_first(environment):
    service = Service(3600.0, 0.0)

    @udf.scalar(**HEDGED)
    async def f(x: int) -> int:
        return await service(x)

    result = await environment.run(f, range(20))
    assert result.to_pylist() == [10 * x + 2 for x in range(20)]
    assert service.cancelled == 20
    assert (result.counts.calls, result.counts.retries) == (20, 0)
    assert hedges(environment) == {"sent": 20, "won": 20, "wasted": 0}


async def test_an_error_that_a_call_makes_of_its_cancellation_does_not_replace_the_answer(environment):
    @udf.scalar(**HEDGED)
    async def f(x: int) -> int:
        try:
            return await service(x)
        except asyncio.CancelledError:
            raise OSError("connection closed") from None

    service = Service(3600.0, 0.0)
    assert (await environment.run(f, range(5))).to_pylist() == [10 * x + 2 for x in range(5)]
    assert hedges(environment) == {"sent": 5, "won": 5, "wasted": 0}


async def test_a_second_call_that_is_slower_is_cancelled(environment):
    service = Service(0.1, 3600.0)

    @udf.scalar(**HEDGED)
    async def f(x: int) -> int:
        return await service(x)

    assert (await environment.run(f, [1])).to_pylist() == [11]
    assert service.calls == {1: 2}
    assert hedges(environment) == {"sent": 1, "won": 0, "wasted": 1}


async def test_a_fast_call_gets_no_second_one(environment):
    service = Service(0.0)

    @udf.scalar(idempotent=True, hedge_after="1 h", hedge_share=1)
    async def f(x: int) -> int:
        return await service(x)

    await environment.run(f, range(50))
    assert set(service.calls.values()) == {1}


async def test_the_share_bounds_second_calls(environment):
    service = Service(0.03)

    @udf.scalar(**{**HEDGED, "hedge_share": "10%", "buffer_capacity": 10})
    async def f(x: int) -> int:
        return await service(x)

    await environment.run(f, range(100))
    assert 0 < hedges(environment)["sent"] <= 10
    assert sum(service.calls.values()) <= 110


async def test_list_functions_and_common_calls_are_hedged(environment):
    calls = []

    @udf.scalar(batched=True, batch_rows=3, max_queue_delay="5 s", **HEDGED)
    async def f(x: list[int]) -> list[int]:
        calls.append(x)
        await asyncio.sleep(3600 if len(calls) == 1 else 0)
        return x

    results = await environment.run_streams(f, [([1, 2],), ([3],)])
    assert [result.to_pylist() for result in results] == [[1, 2], [3]]
    assert len(calls) == 2


async def test_an_error_of_a_call_is_its_outcome_and_a_failed_second_call_is_none(environment):
    calls: dict[int, int] = {}

    @udf.scalar(**HEDGED)
    async def f(x: int) -> int:
        number = calls[x] = calls.get(x, 0) + 1
        await asyncio.sleep(0.1 if number == 1 else 0.0)
        if x == 1 and number == 1:
            raise ValueError("first")
        if number == 2:
            raise KeyError("second")
        return x

    result = await environment.run(f, [0, 1])
    assert result.values.to_pylist() == [0, None]
    assert result.errors[1].message == "ValueError: first"


async def test_a_deadline_ends_both_calls(environment):
    service = Service(3600.0)

    @udf.scalar(**{**HEDGED, "timeout": "100 ms"})
    async def f(x: int) -> int:
        return await service(x)

    result = await environment.run(f, range(3))
    assert {error.code for error in result.errors.values()} == {ErrorCode.TIMEOUT}
    await eventually(lambda: service.cancelled == 6)


@pytest.mark.slow
async def test_no_second_call_is_sent_after_a_call_that_asks_for_a_retry(environment):
    calls: list[int] = []

    @udf.scalar(**{**HEDGED, "max_attempts": 3, "fixed_delay": "1 ms"})
    async def f(x: int) -> int:
        calls.append(x)
        if calls == [0]:
            raise udf.RetryableError("busy")
        await asyncio.sleep(0.05)
        return x

    assert (await environment.run(f, range(20), buffer_capacity=1)).to_pylist() == list(range(20))
    assert len([x for x in calls if x < 10]) == 11


async def test_no_second_call_is_sent_while_calls_wait_for_the_guard():
    calls: list[int] = []

    @udf.scalar(name="f", **HEDGED)
    async def f(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0 if x < 20 else 0.05)
        return x

    settings = GuardSettings.parse("f", {"max-concurrency": 2})
    metrics = GuardMetrics(ServerMetrics(), "f", "1")
    async with Talk(f, guard=Limiter("f@1", settings, metrics)) as talk:
        await talk.open()
        for number in range(2):  # the first rows are fast, and allow as many hedges
            rows = 20
            talk.send(batch(number, 20 * number, range(20 * number, 20 * number + 20)))
            while rows:
                rows -= (await talk.receive()).result.rows
        # A hedge that waits for the guard too is not called: calls do not show whether it was sent.
        assert talk.metric("udf_hedges_total", function="f", version="1", outcome="sent") <= 2
    assert len(calls) <= 42  # the last two calls wait for nobody


@pytest.mark.parametrize(("share", "sent"), [("25%", 0.0), ("50%", 1.0)])
async def test_calls_that_time_out_while_they_wait_for_the_guard_allow_no_second_call(share, sent):
    calls: list[int] = []

    @udf.scalar(name="f", **{**HEDGED, "hedge_share": share, "buffer_capacity": 4, "timeout": "200 ms"})
    async def f(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(3600)
        return x

    metrics = GuardMetrics(ServerMetrics(), "f", "1")
    guard = Limiter("f@1", GuardSettings.parse("f", {"max-concurrency": 1}), metrics)
    async with Talk(f, guard=guard) as talk:
        await talk.open()
        for first, rows in ((0, 4), (4, 1)):
            talk.send(batch(first // 4, first, range(first, first + rows)))
            while rows:
                rows -= (await talk.receive()).result.rows
        assert calls == [0, 4]
        assert talk.metric("udf_hedges_total", function="f", version="1", outcome="sent") == sent


async def test_the_guard_does_not_count_the_call_that_lost_as_a_failure():
    service = Service(3600.0, 0.0)

    @udf.scalar(name="f", **HEDGED)
    async def f(x: int) -> int:
        return await service(x)

    settings = GuardSettings.parse("f", {"breaker-failures": 2})
    async with Talk(f, guard=Limiter("f@1", settings, GuardMetrics(ServerMetrics(), "f", "1"))) as talk:
        await talk.open()
        talk.send(batch(0, 0, range(20)))
        answers, failed = 0, b""
        while answers < 20:
            result = (await talk.receive()).result
            answers, failed = answers + result.rows, failed + result.errors
    assert failed == b""


async def test_the_guard_does_not_count_a_second_call_as_a_failure_if_the_first_one_raises_an_error():
    calls: list[int] = []

    @udf.scalar(name="f", **HEDGED)
    async def f(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0.05 if len(calls) == 1 else 3600)
        raise ValueError("of the row")

    settings = GuardSettings.parse("f", {"breaker-failures": 1})
    metrics = ServerMetrics()
    guard, hedge = Limiter("f@1", settings, GuardMetrics(metrics, "f", "1")), Hedge(0.01, 1.0, lambda _: None, bool)
    with pytest.raises(ValueError, match="of the row"):
        await limited(f, timeout=60.0, limiter=guard, hedge=hedge).call(1)
    await asyncio.sleep(0)  # the second call ends
    assert len(calls) == 2
    assert metrics.registry.get_sample_value("udf_circuit_open", {"function": "f", "version": "1"}) == 0.0


async def test_the_delay_is_learned(environment):
    slow = set()

    @udf.scalar(idempotent=True, hedge_after="p95", hedge_share=1)
    async def f(x: int) -> int:
        if x >= 2 * LEARN_CALLS and x not in slow:
            slow.add(x)
            await asyncio.sleep(3600)
        await asyncio.sleep(0.001)
        return x

    result = await environment.run(f, range(2 * LEARN_CALLS + 3), buffer_capacity=10, timeout="20 s")
    assert result.to_pylist() == list(range(2 * LEARN_CALLS + 3))


async def plain(x: int) -> int: ...
def threaded(x: int) -> int: ...


@pytest.mark.parametrize(
    ("code", "options", "why"),
    [
        (plain, {"hedge_after": "1 s"}, "declare idempotent=True"),
        (threaded, {"hedge_after": "1 s", "idempotent": True}, "is for `async def` functions"),
        (plain, {"hedge_after": "soon", "idempotent": True}, "option 'hedge-after': "),
        (plain, {"hedge_after": "1 s", "hedge_share": 2, "idempotent": True}, "is not a share"),
    ],
)
def test_a_declaration_that_cannot_be_hedged_is_refused(code, options, why):
    with pytest.raises(DeclarationError) as refused:
        udf.scalar(**options)(code)
    assert why in str(refused.value)


async def test_the_operator_hedges_only_functions_that_are_declared_idempotent():
    once = udf.scalar(name="once")(plain)
    twice = udf.scalar(name="twice", idempotent=True)(plain)
    host = FunctionHost(Registry([("t", once), ("t", twice)]), defaults={"*": {"hedge-after": "p95"}})
    assert host.find("once").options.hedging is None
    hedging = host.find("twice").options.hedging
    assert hedging is not None
    assert (hedging.hedge_after, hedging.hedge_share) == ("p95", 0.05)


def test_options_keep_their_values_as_text():
    option = HOSTED_OPTIONS["hedge-after"]
    assert [option.format(option.parse(value)) for value in ("P95", "2 s", "0.25 s")] == ["p95", "2 s", "250 ms"]


async def test_a_common_call_is_hedged_although_rows_wait_for_the_next_one(environment):
    calls = []

    @udf.scalar(batched=True, max_queue_delay="0 s", **HEDGED)
    async def f(x: list[int]) -> list[int]:
        calls.append(x)
        await asyncio.sleep(3600 if len(calls) == 1 else 0)
        return x

    results = await environment.run_streams(f, [([1],), ([2],), ([3],)])
    assert [result.to_pylist() for result in results] == [[1], [2], [3]]


async def test_what_streams_share_is_read_on_the_loop_however_large_their_open_messages_are(monkeypatch):
    @udf.scalar(name="f", **HEDGED)
    async def f(x: int) -> int:
        return x

    made = []

    class Recorded(Hedge):
        def __init__(self, *arguments):
            made.append(asyncio._get_running_loop())
            super().__init__(*arguments)

    monkeypatch.setattr(opening_of_streams, "SMALL_BYTES", 0)
    monkeypatch.setattr(opening_of_streams, "Hedge", Recorded)
    host = FunctionHost(Registry([("test", f)]))
    async with Talk(host=host) as one, Talk(host=host) as other:
        await asyncio.gather(one.open(), other.open())
    assert made == [asyncio.get_running_loop()]
