"""Rows of a slow message go to another server too: the first complete answer counts, each row has one outcome."""

import asyncio
import threading
import time
from collections.abc import Container, Iterator
from random import Random
from types import SimpleNamespace

import pytest

import udf_server as udf
from remote_udf.hedging import LEARN_CALLS, HedgeBudget
from remote_udf.threads import THREADS
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.transport import TransportLost
from spark_client.executor.stream import hedging
from spark_client.executor.stream.hedging import MOST_FUNCTIONS, HedgeBudgets, Hedger
from spark_client.executor.stream.pending import Pending
from spark_client.testing import LocalTransport
from tests.leftovers import Leftovers
from tests.spark_client.scripted import (
    SILENCE,
    Clock,
    Scripted,
    ScriptedServers,
    call_of,
    chunk_of,
    collect,
    everything,
    finished,
    honest,
    numbers,
    opened,
    refused,
    result,
    row_error,
    scattered,
    stream_of,
)
from tests.waiting import wait_until


@udf.scalar(idempotent=True, hedge_elsewhere="10 ms", hedge_share=1)
async def plus_one(x: int) -> int:
    return x + 1


def agreed(seconds: float = 0.001) -> pb.SecondSending:
    second = pb.SecondSending(share=1.0)
    second.after.FromNanoseconds(round(seconds * 1e9))
    return second


def opened_by(requests, ordered=True):
    next(requests)
    return opened(second=agreed(), ordered=ordered)


def silent(requests):
    yield opened_by(requests)
    next(requests)
    yield SILENCE


def usual(requests):
    return honest(requests, second=agreed())


def stream_to(transport, **arguments):
    return stream_of(call_of(plus_one), transport, hedge_budgets=HedgeBudgets(), **arguments)


def test_the_answer_of_another_server_counts_if_the_first_one_is_silent():
    servers = ScriptedServers(slow=silent, fast=usual)
    stream = stream_to(servers)
    stream.submit(chunk_of([1, 2]))
    assert everything(stream) == {0: 2, 1: 3}
    stream.finish()
    slow, fast = servers.streams
    assert slow.cancelled.is_set()
    assert [fast.received[0].open.second, slow.received[0].open.second] == [True, False]
    assert (stream.statistics.hedges, stream.statistics.hedges_won, stream.statistics.replays) == (1, 1, 0)
    assert (stream.statistics.rows, stream.statistics.ok) == (2, 2)


def test_the_other_messages_in_flight_follow_to_that_server():
    stream = stream_to(ScriptedServers(slow=silent, fast=usual))
    for start in range(0, 300, 100):
        stream.submit(chunk_of(range(start, start + 100), start))
    assert everything(stream) == {row: row + 1 for row in range(300)}
    stream.finish()
    assert stream.statistics.rows == 300


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_that_the_first_server_has_answered_keep_that_answer(ordered):
    sent = threading.Event()

    def half(requests):
        yield opened_by(requests, ordered)
        values = [-x for x in numbers(next(requests))][:2]
        yield result(0, values) if ordered else scattered([0, 1], values)
        sent.set()
        yield SILENCE

    def after_that(requests):
        yield opened_by(requests, ordered)
        rows = numbers(next(requests))
        sent.wait(20)
        values = [x + 1 for x in rows]
        yield result(0, values) if ordered else scattered(range(len(rows)), values)
        next(requests)
        yield finished(len(rows))

    stream = stream_to(ScriptedServers(slow=half, fast=after_that))
    stream.submit(chunk_of([1, 2, 3, 4]))
    assert everything(stream) == {0: -1, 1: -2, 2: 4, 3: 5}
    stream.finish()
    assert stream.statistics.rows == 4


def answering_after(wait):
    """A server that answers a message with negated numbers when `wait` returns."""

    def script(requests):
        yield opened_by(requests)
        rows = numbers(next(requests))
        wait()
        yield result(0, [-x for x in rows])
        next(requests)
        yield finished(len(rows))

    return script


def test_a_hedge_is_cancelled_once_the_first_server_has_answered():
    asked = threading.Event()

    def other(requests):
        yield opened_by(requests)
        next(requests)
        asked.set()
        yield SILENCE

    servers = ScriptedServers(slow=answering_after(lambda: asked.wait(20)), other=other)
    stream = stream_to(servers)
    stream.submit(chunk_of([1, 2]))
    assert everything(stream) == {0: -1, 1: -2}
    stream.finish()
    assert servers.streams[1].cancelled.wait(20)
    assert (stream.statistics.hedges, stream.statistics.hedges_won) == (1, 0)


def test_the_answer_of_another_server_does_not_count_if_a_row_fails_there():
    def given_up():
        return len(servers.streams) == 2 and servers.streams[1].cancelled.is_set()

    def failing(requests):
        yield opened_by(requests)
        next(requests)
        yield result(0, [7, None], {1: row_error()})
        yield SILENCE

    servers = ScriptedServers(slow=answering_after(lambda: wait_until(given_up)), other=failing)
    stream = stream_to(servers)
    stream.submit(chunk_of([1, 2]))
    assert everything(stream) == {0: -1, 1: -2}
    stream.finish()
    assert (stream.statistics.hedges, stream.statistics.hedges_won) == (1, 0)


@pytest.mark.parametrize("sign", ["refusal", "retries", "retryable error"])
def test_nothing_is_sent_twice_after_a_sign_of_overload(sign):
    done = threading.Event()
    clock = Clock()

    def late(requests):
        yield opened_by(requests)
        rows = 0
        for number, message in enumerate(requests):
            if message.envelope.HasField("finish"):
                failed = int(sign == "retryable error")
                yield finished(rows, failed=failed, retries=int(sign == "retries"))
                return
            batch = message.envelope.batch
            rows += batch.rows
            if number == 0 and sign == "retries":
                yield result(batch.first_row, numbers(message), retries=1)
            elif number == 0 and sign == "retryable error":
                yield result(batch.first_row, [None], {0: row_error(retryable=True)})
            else:
                done.wait(0.2 if number else 20)
                yield result(batch.first_row, numbers(message))

    def busy(requests):
        next(requests)
        done.set()
        yield refused("OVERLOADED")

    servers = ScriptedServers(slow=late, other=busy)
    # The clock stands still until the first answer is there: only then is a message late.
    stream = stream_to(servers, clock=clock)
    stream.submit(chunk_of([1]))
    if sign == "refusal":
        clock.now += 0.5
        stream._hedger.submitted(first=True)
    everything(stream)
    done.clear()
    before = len(servers.streams)
    assert before == 1 + (sign == "refusal")
    stream.submit(chunk_of([2]))
    clock.now += 0.5
    stream._hedger.submitted(first=True)
    everything(stream)
    stream.finish()
    assert len(servers.streams) == before


def test_a_message_is_sent_twice_once_the_budget_allows_it():
    clock, released = Clock(), threading.Event()

    def fast(requests):
        released.set()
        return usual(requests)

    servers = ScriptedServers(slow=silent, fast=fast)
    stream = stream_to(servers, clock=clock)
    stream.submit(chunk_of([1]))
    stream._hedger.overloaded()
    clock.now += 0.5
    stream._hedger._changed.set()
    assert not released.wait(0.1)
    clock.now += 1.0
    assert everything(stream) == {0: 2}
    stream.finish()


def test_an_unexpected_error_of_another_server_costs_neither_rows_nor_later_hedges():
    tries, released = [], threading.Event()

    def late(requests):
        yield opened_by(requests)
        next(requests)
        released.wait(20)
        yield result(0, [-1])
        next(requests)
        yield SILENCE

    def broken_once(requests):
        tries.append(None)
        if len(tries) > 1:
            yield from usual(requests)
            return
        yield opened_by(requests)
        next(requests)
        raise ValueError("not foreseen")

    servers = ScriptedServers(slow=late, other=broken_once)
    stream = stream_to(servers)
    stream.submit(chunk_of([1]))
    found = {}
    receiving = threading.Thread(target=lambda: collect(stream.receive(), found))
    receiving.start()
    wait_until(lambda: len(servers.streams) == 2 and servers.streams[1].cancelled.is_set())
    released.set()
    receiving.join(20)
    assert found == {0: -1}
    assert (stream._hedger._second, stream._hedger._chunk) == (None, None)
    stream.submit(chunk_of([2], 1))
    assert everything(stream) == {1: 3}
    stream.finish()


def test_a_single_server_gets_no_row_twice():
    servers = Scripted(usual)
    stream = stream_to(servers)
    assert stream._hedger is None
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    stream.finish()


def test_what_a_hedge_that_wins_has_spent_counts():
    def costly(requests):
        yield opened_by(requests)
        rows = numbers(next(requests))
        found = {"cache_hits": 1, "cache_misses": 2, "cache_shared": 1, "calls": 2, "spent": {"usd": 0.5}}
        yield result(0, [x + 1 for x in rows], **found)
        next(requests)
        yield finished(len(rows), calls=2)

    stream = stream_to(ScriptedServers(slow=silent, fast=costly))
    stream.submit(chunk_of([1, 2, 3, 4]))
    sent = stream.statistics.bytes_out
    assert everything(stream) == {0: 2, 1: 3, 2: 4, 3: 5}
    stream.finish()
    total = stream.statistics
    assert total.spent == {"usd": 0.5}
    assert (total.cache_hits, total.cache_misses, total.cache_shared, total.calls) == (1, 2, 1, 2)
    assert total.bytes_out == 2 * sent
    assert total.bytes_in > 4 * 8


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_messages_that_follow_a_hedge_count_as_sent_twice(share):
    def late(requests):
        next(requests)
        yield opened(second=second)
        for _ in range(8):
            next(requests)
        yield SILENCE

    budgets, clock = HedgeBudgets(), Clock()
    second = agreed()
    second.share = share
    call = call_of(plus_one)
    stream = stream_of(call, ScriptedServers(slow=late, fast=usual), hedge_budgets=budgets, clock=clock)
    for row in range(8):
        stream.submit(chunk_of([row], row))
    clock.now += 0.5
    stream._hedger.submitted(first=False)
    assert everything(stream) == {row: row + 1 for row in range(8)}
    stream.finish()
    assert stream.statistics.hedges_won == 1
    # All 8 messages were sent twice.
    budget = budgets.of(call.config.target, call.spec.key, second)
    more = 0
    while not budget.take():
        budget.begun()
        more += 1
    assert more == 9 / share - 8


def test_of_too_many_functions_the_budgets_used_last_are_kept():
    budgets, second = HedgeBudgets(), agreed()
    often, once = budgets.of("host:1", "often", second), budgets.of("host:1", "once", second)
    for number in range(MOST_FUNCTIONS):
        budgets.of("host:1", f"other-{number}", second)
        assert budgets.of("host:1", "often", second) is often
    assert budgets.of("host:1", "once", second) is not once


def test_messages_that_are_sent_again_after_a_loss_allow_no_more_hedges():
    def lost_once(requests):
        if len(servers.streams) > 1:
            yield from usual(requests)
        next(requests)
        yield opened(second=later)
        next(requests)
        raise TransportLost("gone")

    budgets, later, call = HedgeBudgets(), agreed(60), call_of(plus_one)
    servers = ScriptedServers(first=lost_once, other=usual)
    stream = stream_of(call, servers, hedge_budgets=budgets)
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    stream.finish()
    assert stream.statistics.replays == 1
    budget = budgets.of(call.config.target, call.spec.key, later)
    assert [budget.take(), budget.take()] == [True, False]


def test_a_hedge_that_is_not_opened_leaves_no_descriptor():
    asked = threading.Event()

    def late(requests):
        yield opened_by(requests)
        for message in requests:
            if message.envelope.HasField("finish"):
                yield finished(5)
                return
            asked.wait(20)
            asked.clear()
            yield result(message.envelope.batch.first_row, [-x for x in numbers(message)])

    class OnlyTheFirst(ScriptedServers):
        def execute(self, requests, avoid=()):
            played = super().execute(requests)
            played.same_host = True
            if len(self.streams) > 1:
                asked.set()
            return played

    before = Leftovers()
    servers = OnlyTheFirst(slow=late, other=usual)
    stream = stream_to(servers)
    for row in range(5):
        stream.submit(chunk_of([row], row))
        assert everything(stream) == {row: -row}
    stream.finish()
    assert len(servers.streams) == 6
    assert before.more()["file of shared memory"] == 0


def test_a_later_sign_of_overload_does_not_shorten_the_pause():
    clock = Clock()
    budget = HedgeBudget(0.1, 1.0, clock)
    budget.begun()
    budget.overloaded(30)
    budget.overloaded()
    clock.now += 29
    assert not budget.take()
    clock.now += 2
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


class TwoServers:
    """Two real servers in this process."""

    def __init__(self, first: LocalTransport, second: LocalTransport) -> None:
        self._servers = {"first": first, "second": second}

    def servers(self):
        return tuple(self._servers)

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = ()):
        name = next((name for name in self._servers if name not in avoid), "first")
        responses = self._servers[name].execute(requests)
        responses.server = name
        return responses


@pytest.mark.parametrize("ordered", [True, False])
def test_every_row_has_one_outcome_whichever_server_is_slow(ordered, request):
    random = Random(8)
    print("seed 8")

    def function():
        @udf.scalar(idempotent=True, hedge_elsewhere="3 ms", hedge_share=1, name="f", buffer_capacity=20)
        async def f(x: int) -> int:
            await asyncio.sleep(0.05 if random.random() < 0.02 else 0.0)
            return x + 1

        return f

    first = function()
    with LocalTransport(first) as one, LocalTransport(function()) as other:
        mode = "ordered" if ordered else "unordered"
        stream = stream_of(call_of(first, output_mode=mode), TwoServers(one, other), hedge_budgets=HedgeBudgets())
        found: dict[int, object] = {}
        for start in range(0, 3_000, 10):
            while not stream.has_room():
                collect(stream.receive(), found)
            stream.submit(chunk_of(range(start, start + 10), start))
        while stream.unanswered:
            collect(stream.receive(), found)
        stream.finish()
    assert found == {row: row + 1 for row in range(3_000)}
    assert (stream.statistics.rows, stream.statistics.ok) == (3_000, 3_000)
    assert 0 < stream.statistics.hedges_won <= stream.statistics.hedges


def hedger_of(budget, new, pending):
    """A hedger of a stream whose first server answers nothing."""
    return Hedger(
        budget, new, threading.Lock(), lambda: pending, lambda: SimpleNamespace(server="first", ordered=True),
        lambda: None, time.monotonic, THREADS,
    )  # fmt: skip


def test_the_last_message_is_sent_again_when_other_streams_have_learned_the_delay(monkeypatch):
    monkeypatch.setattr(hedging, "REFUSED_SECONDS", 0.01)
    budget, pending, tried = HedgeBudget(None, 1.0), Pending(), threading.Event()

    def new(**_):
        tried.set()
        raise TransportLost("no other server")

    chunk = chunk_of([1])
    chunk.sent_last = time.monotonic()
    pending.add(chunk)
    hedger = hedger_of(budget, new, pending)
    hedger.submitted(first=True)
    wait_until(lambda: not hedger._changed.is_set())
    for _ in range(LEARN_CALLS):
        budget.ended(0.001)
    assert tried.wait(20)
    hedger.stop()


def test_a_second_connection_that_opens_after_the_end_of_its_stream_is_closed():
    budget, pending, closed = HedgeBudget(0.001, 1.0), Pending(), threading.Event()

    def open_(seconds):
        # As if `stop` had looked for the connection just before it was there.
        hedger._second, second = None, hedger._second
        hedger.stop()
        hedger._second = second

    def new(**_):
        # Nothing is sent with it: it has no payload.
        return SimpleNamespace(
            server="second", ordered=True, open=open_, close=lambda cancel: closed.set() if cancel else None
        )

    chunk = chunk_of([1])
    chunk.sent_last = time.monotonic()
    pending.add(chunk)
    hedger = hedger_of(budget, new, pending)
    hedger.submitted(first=True)
    assert closed.wait(20)
    wait_until(lambda: hedger._second is None)
