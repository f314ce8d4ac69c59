"""Fair turns: FairQueue alone, and the places where rows of a function wait for a loop, a thread or a guard."""

import asyncio
import collections
import contextlib
import heapq
import itertools
import threading
import time
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import udf_server as udf
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.fairness import FairQueue, Party, Priority
from udf_server.base.metrics import ServerMetrics
from udf_server.hosting.executors import HostLimits
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.hosting.thread_executor import ThreadExecutor
from udf_server.hosting.turns import Turns
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.security.access import Caller


def drained(queue, cost=1.0):
    """Items in the order they are served in."""
    found = []
    while (next_one := queue.pop(cost)) is not None:
        found.append(next_one[1])
    return found


def test_a_flood_of_streams_counts_as_one_caller():
    queue, neighbour = FairQueue(), Party("neighbour")
    for stream in range(100):
        party = Party("greedy")
        for row in range(10):
            queue.push(party, ("greedy", stream, row))
    for row in range(20):
        queue.push(neighbour, ("neighbour", 0, row))
    served = [item[0] for item in drained(queue)][:40]
    assert served.count("neighbour") == 20


def test_nobody_is_charged_for_items_that_are_gone():
    queue, late, other = FairQueue(), Party("late"), Party("other")
    for row in range(20):
        queue.push(late, ("late", row))
        queue.push(other, ("other", row))
    served = []
    while (found := queue.pop(1.0, lambda item: item[0] == "late" and item[1] < 10)) is not None:
        served.append(found[1][0])
    assert served[:20].count("late") == served[:20].count("other") == 10
    assert len(served) == 30
    assert not len(queue)


def test_an_item_that_was_removed_is_neither_counted_nor_served_nor_charged():
    queue, one, other = FairQueue(), Party("one"), Party("other")
    for row in range(10):
        queue.push(one, ("one", row))
        queue.push(other, ("other", row))
    for row in (3, 0, 9, 3):
        queue.remove(one, ("one", row))
    queue.remove(one, ("other", 1))
    queue.remove(Party("stranger"), ("one", 1))
    assert len(queue) == 17
    served = drained(queue)
    assert [row for name, row in served if name == "one"] == [1, 2, 4, 5, 6, 7, 8]
    assert [name for name, _ in served[:14]].count("one") == 7
    queue.push(one, ("one", 10))
    queue.remove(one, ("one", 10))
    assert queue.pop(1.0) is None


def test_jobs_of_a_caller_take_turns_and_then_their_streams():
    queue = FairQueue()
    large, small = [Party("c", "large") for _ in range(3)], Party("c", "small")
    for party in large:
        for _ in range(4):
            queue.push(party, party)
    for _ in range(4):
        queue.push(small, small)
    first = drained(queue)[:6]
    assert first.count(small) == 3
    assert {*first} == {small, *large}


def test_a_caller_whose_turns_cost_more_gets_fewer_of_them():
    queue, cheap, dear = FairQueue(), Party("cheap"), Party("dear")
    for party in (cheap, dear):
        for _ in range(100):
            queue.push(party, party)
    counts = collections.Counter()
    for _ in range(44):
        party, _ = queue.pop(1.0)
        counts[party.caller] += 1
        queue.charge(party, 9.0 if party is dear else 0.0)
    assert counts == {"cheap": 40, "dear": 4}


def test_who_was_away_has_not_saved_up_turns():
    queue, early, late = FairQueue(), Party("early"), Party("late")
    queue.join(late)
    for _ in range(1000):
        queue.push(early, early)
        queue.pop(1.0)
    for party in (early, late):
        for _ in range(10):
            queue.push(party, party)
    first = drained(queue)[:10]
    assert 4 <= first.count(late) <= 6


parties = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("push"), parties),
    st.tuples(st.just("pop"), st.floats(0.0, 5.0)),
    st.tuples(st.just("charge"), parties),
    st.tuples(st.just("close"), parties),
    st.tuples(st.just("remove"), parties),
)


@given(st.lists(steps, max_size=60))
def test_every_item_is_served_once_in_the_order_of_its_stream_unless_its_stream_closes(script):
    queue, open_ones, waiting = FairQueue(), {}, collections.defaultdict(collections.deque)
    for number, (step, value) in enumerate(script):
        if step == "pop":
            found = queue.pop(value)
            if found is None:
                assert not any(waiting.values())
            else:
                assert waiting[found[0]].popleft() == found[1]
            continue
        if value not in open_ones:
            open_ones[value] = Party(f"caller {value[0]}", f"job {value[1]}")
        party = open_ones[value]
        if step == "push":
            queue.push(party, number)
            waiting[party].append(number)
        elif step == "charge":
            queue.charge(party, 1.0)
        elif step == "remove":
            if waiting[party]:
                item = waiting[party][len(waiting[party]) // 2]
                queue.remove(party, item)
                waiting[party].remove(item)
        else:
            party.close()
            waiting.pop(party, None)
            del open_ones[value]
        assert len(queue) == sum(map(len, waiting.values()))
    for party in open_ones.values():
        party.close()
    assert queue.groups == 0
    assert len(queue) == 0
    assert not any(root.children for root in queue._roots.values())


def test_who_has_had_less_overtakes_those_who_wait_until_they_have_had_as_much():
    queue, greedy, neighbour = FairQueue(), Party("greedy"), Party("neighbour")
    queue.join(neighbour)
    for _ in range(100):
        queue.push(greedy, greedy)
    for _ in range(10):
        queue.pop(1.0)
    passed = 0
    while queue.overtake(neighbour, 1.0):
        passed += 1
    assert 1 <= passed <= 10
    assert not queue.overtake(Party("greedy"), 1.0)


def test_what_comes_from_a_stream_that_has_ended_is_dropped():
    queue, party = FairQueue(), Party("c")
    party.close()
    queue.push(party, 1)
    queue.join(party)
    assert queue.pop(1.0) is None
    assert not queue.overtake(party, 1.0)
    assert queue.groups == 0


shares_of_callers = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5)


@given(shares_of_callers, st.lists(st.floats(0.01, 5.0), min_size=20, max_size=300))
def test_what_callers_that_wait_are_served_differs_from_their_shares_by_a_turn_of_each(shares, costs):
    """The bound of start-time fair queueing, with several streams and jobs of each caller, and costs known late."""
    queue, served = FairQueue(), collections.Counter()
    parties = [
        Party(str(caller), f"job {job}", share=share)
        for caller, share in enumerate(shares)
        for job in range(1 + caller % 2)
        for _ in range(1 + caller % 3)
    ]
    for party in parties:
        for _ in costs:
            queue.push(party, party)
    for cost in costs:
        party, _ = queue.pop(0.01)
        queue.charge(party, cost - 0.01)
        served[party.caller] += cost
    most = max(costs)
    turns = [(served[str(caller)] / share, most / share) for caller, share in enumerate(shares)]
    for one, turn in turns:
        for other, other_turn in turns:
            assert abs(one - other) <= turn + other_turn + 1e-6


def test_batch_waits_while_interactive_waits_and_keeps_its_own_shares():
    queue = FairQueue()
    first, one, three = Party("dash", priority=Priority.INTERACTIVE), Party("one"), Party("three", share=3.0)
    for party in (one, three):
        for _ in range(40):
            queue.push(party, party)
    served = []
    for turn in range(60):
        if turn % 3 == 0:
            queue.push(first, first)
            assert not queue.overtake(Party("one"), 1.0)
        served.append(queue.pop(1.0)[0])
    assert served[::3] == [first] * 20
    assert served.count(three) == 30
    assert served.count(one) == 10
    queue.push(first, first)
    late = Party("late")
    queue.join(late)
    assert not queue.overtake(late, 1.0)
    assert queue.groups == 4


class FakeTime:
    """Time that passes while all calls wait for it."""

    def __init__(self):
        self.now, self._ends, self._order = 0.0, [], itertools.count()

    async def sleep(self, seconds):
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (self.now + seconds, next(self._order), future))
        await future

    async def pass_until(self, end):
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if not self._ends or self._ends[0][0] > end:
                return
            self.now, _, future = heapq.heappop(self._ends)
            if not future.done():
                future.set_result(None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["guard", "turns"])
@given(seed=st.integers(0, 10**6), share=st.sampled_from([1.0, 3.0, 5.0]), places=st.integers(1, 12))
@settings(max_examples=5, deadline=None)
def test_calls_of_callers_that_wait_are_made_in_proportion_to_their_shares(kind, seed, share, places):
    """The real guard, and the real turns of a loop, with calls of random length on fake time."""

    async def run():
        random, time_, made = Random(seed), FakeTime(), collections.Counter()

        @udf.scalar
        async def f(x: str) -> str:
            made[x] += 1
            await time_.sleep(random.uniform(0.005, 0.015))
            return x

        guard = Limiter("f@1", GuardSettings(max_concurrency=places), GuardMetrics(ServerMetrics(), "f", "1"), clock)
        turns, guarded = Turns(places, clock, clock), limited(f, guard)

        async def worker(party, number):
            current_scope.set(CallScope(party))
            while True:
                if kind == "guard":
                    await guarded.call(party.caller)
                else:
                    if not turns.enter(number):
                        await turns.turn(party, number)
                    await f.call(party.caller)
                    turns.leave(number)
                    await asyncio.sleep(0)

        parties = [Party("etl", f"job {job}", share=share) for job in range(random.randint(1, 3)) for _ in range(2)]
        parties += [Party("adhoc", f"job {job}") for job in range(random.randint(1, 20))]
        workers = [
            asyncio.ensure_future(worker(party, (party, number))) for party in parties for number in range(places + 2)
        ]
        await time_.pass_until(1.0)
        before = made.copy()
        await time_.pass_until(1.0 + 12.0 / places)
        for task in workers:
            task.cancel()
        await asyncio.wait(workers)
        return {caller: made[caller] - before[caller] for caller in made}

    clock = lambda: 0.0  # noqa: E731
    found = asyncio.run(run())
    assert sum(found.values()) > 900
    assert found["etl"] / found["adhoc"] == pytest.approx(share, rel=0.05)


# The loop.


async def test_no_more_are_in_flight_than_the_limit_and_the_next_place_is_the_neighbours():
    turns, greedy, neighbour = Turns(limit=2), Party("greedy"), Party("neighbour")
    order = []

    async def work(party, name):
        if not turns.enter(name):
            await turns.turn(party, name)
        order.append(name)

    await asyncio.gather(work(greedy, "g1"), work(greedy, "g2"))
    waiting = [asyncio.ensure_future(work(greedy, f"g{number}")) for number in range(3, 50)]
    await asyncio.sleep(0)
    waiting.append(asyncio.ensure_future(work(neighbour, "n")))
    for _ in range(3):
        await asyncio.sleep(0)
    assert order == ["g1", "g2"]
    turns.leave("g1")
    turns.leave("g2")
    await eventually(lambda: len(order) == 4)
    assert "n" in order
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_place_that_is_given_to_a_worker_that_was_cancelled_goes_to_the_next():
    turns, party = Turns(limit=1), Party("c")
    assert turns.enter("first")
    second = asyncio.ensure_future(turns.turn(party, "second"))
    third = asyncio.ensure_future(turns.turn(party, "third"))
    await asyncio.sleep(0)
    second.cancel()
    turns.leave("first")
    await asyncio.wait_for(third, 10)


async def test_a_turn_for_which_a_worker_has_no_row_is_not_charged():
    turns, idle, busy, served = Turns(limit=1), Party("idle"), Party("busy"), []

    async def worker(party, number):
        await turns.turn(party, (party, number))
        served.append(party.caller)
        if party is idle and number < 10:
            turns.forgo(party, (party, number))
        else:
            turns.leave((party, number))

    await asyncio.gather(*(worker(party, number) for party in (idle, busy) for number in range(20)))
    assert served[:24].count("busy") <= served[:24].count("idle") - 10 + 3


async def test_a_batch_of_a_stream_that_has_ended_leaves_no_job():
    """A function's loop may learn of a batch after the server's loop has closed the party of its stream."""
    turns, party = Turns(limit=1), Party("c")
    party.close()
    turns.join(party)
    assert turns._queue.groups == 0


async def test_small_batches_get_as_many_turns_as_large_ones():
    calls = []

    @udf.scalar(name="f", buffer_capacity=10)
    async def f(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0.001)
        return x

    host = FunctionHost(Registry([("test", f)]), limits=HostLimits(calls=2))
    async with Talk(host=host, caller=Caller("small")) as small, Talk(host=host, caller=Caller("large")) as large:
        await small.open()
        await large.open()
        small.send(*(batch(number, number, [0]) for number in range(200)), finish())
        large.send(batch(0, 0, [1] * 200), finish())
        await eventually(lambda: len(calls) == 400)
    # The first rows are called before both callers wait.
    assert 80 <= sum(calls[20:220]) <= 120


async def test_alone_nobody_asks():
    turns, party = Turns(limit=10), Party("c")
    turns.join(party)
    assert turns.enter("worker")
    assert not turns.busy


async def test_a_loop_that_two_jobs_keep_busy_is_shared_by_turns_and_is_quick_again_for_the_last():
    turns, one, other = Turns(), Party("one"), Party("other")
    turns.join(one)
    turns.join(other)
    done = collections.Counter()
    enough = asyncio.Event()

    async def work(party, name):
        turns.enter((party, name))
        while not enough.is_set():
            deadline = asyncio.get_running_loop().time() + 0.0005
            while asyncio.get_running_loop().time() < deadline:
                pass  # a call that computes
            done[party.caller] += 1
            if turns.busy:
                await turns.turn(party, (party, name), 0.0005)
            else:
                await asyncio.sleep(0)
            if done["one"] >= 200:
                enough.set()
        turns.leave((party, name))

    tasks = [asyncio.ensure_future(work(other, number)) for number in range(50)]
    await asyncio.wait_for(work(one, 0), 60)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    # Without turns it would be one in fifty. Fairness starts only after the loop was found busy.
    assert done["other"] < 4 * done["one"], done
    other.close()
    await eventually(lambda: not turns.busy)


# Threads.


def test_a_thread_that_is_free_goes_to_the_caller_that_had_the_least_of_them():
    executor, order, done = ThreadExecutor("f", 1, 1), [], threading.Event()
    gate, running = threading.Event(), threading.Event()

    def job(name, last=False):
        def run():
            order.append(name)
            if last:
                done.set()
            return True

        return run

    def first():
        running.set()
        return gate.wait(10)

    greedy, neighbour = Party("greedy"), Party("neighbour")
    executor.submit(greedy, first)
    assert running.wait(10)
    for number in range(50):
        executor.submit(greedy, job(f"g{number}", last=number == 49))
    executor.submit(neighbour, job("n"))
    gate.set()
    assert done.wait(10)
    executor.stop()
    assert order.index("n") < 2


@udf.scalar(timeout="10 min")
def row_by_row(x: int) -> int:
    time.sleep(0.005 * x)
    return x


@udf.scalar(vectorized=True, timeout="10 min")
def by_batch(x: pa.Int64Array) -> pa.Int64Array:
    time.sleep(0.005 * x[0].as_py())
    return x


@pytest.mark.parametrize(("function", "batches", "rows"), [(row_by_row, 1, 20_000), (by_batch, 2_000, 1)])
async def test_a_stream_gets_a_thread_though_another_has_work_for_all_of_them(function, batches, rows):
    name = function.spec.name
    host = FunctionHost(Registry([("test", function)]), limits=HostLimits(threads=1))
    async with Talk(host=host, caller=Caller("greedy")) as greedy, Talk(host=host, caller=Caller("nice")) as neighbour:
        await greedy.open(name)
        await neighbour.open(name)
        for number in range(batches):
            greedy.send(batch(number, number * rows, [1] * rows))
        greedy.send(finish())
        await eventually(lambda: not greedy.unread)
        neighbour.send(batch(0, 0, [0] * 10))
        assert (await neighbour.receive()).result.rows == 10
        # The work takes a hundred seconds, nearly all of which is left.
        assert greedy.metric("udf_rows_in_flight", function=name, version="1") > batches * rows * 0.8


# Guards.


async def test_a_guarded_call_of_a_neighbour_does_not_wait_for_all_of_a_flood():
    started, release = [], asyncio.Event()

    @udf.scalar
    async def f(x: int) -> int:
        started.append(x)
        await release.wait()
        return x

    guard = Limiter("f@1", GuardSettings(max_concurrency=2), GuardMetrics(ServerMetrics(), "f", "1"))
    guarded = limited(f, guard)

    async def call(party, x):
        current_scope.set(CallScope(party))
        return await guarded.call(x)

    greedy = [asyncio.create_task(call(Party("greedy"), number)) for number in range(100)]
    await asyncio.sleep(0)
    neighbour = asyncio.create_task(call(Party("neighbour"), -1))
    await asyncio.sleep(0)
    assert len(started) == 2
    release.set()
    await asyncio.gather(neighbour, *greedy)
    assert started.index(-1) <= 4
    assert len(started) == 101


async def test_a_guard_counts_nothing_of_a_loop_that_was_replaced():
    @udf.scalar
    async def f(x: int) -> int:
        await asyncio.sleep(3600 if x else 0)
        return x

    guard = Limiter("f@1", GuardSettings(max_concurrency=1), GuardMetrics(ServerMetrics(), "f", "1"))
    guarded = limited(f, guard)
    stuck = asyncio.new_event_loop()
    held = stuck.create_task(guarded.call(1))
    thread = threading.Thread(target=lambda: stuck.run_until_complete(asyncio.wait([held], timeout=0.05)))
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    assert await asyncio.wait_for(guarded.call(0), 10) == 0
    held.cancel()
    thread = threading.Thread(target=lambda: stuck.run_until_complete(asyncio.wait([held])))
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    stuck.close()
    assert await asyncio.wait_for(guarded.call(0), 10) == 0


@pytest.mark.slow
async def test_every_row_is_answered_where_many_streams_wait_for_turns():
    """The last worker of a batch may have to wait for its turn although no row of the batch is left."""

    @udf.scalar(name="f", buffer_capacity=1_000)
    async def f(a: int) -> int:
        await asyncio.sleep(0.01)
        return a

    host, others = FunctionHost(Registry([("test", f)])), set(threading.enumerate())
    async with contextlib.AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(Talk(host=host)) for _ in range(30)]
        for talk in talks:
            await talk.open()
            talk.send(*(batch(number, number * 200, range(200)) for number in range(10)), finish())
        for talk in talks:
            answers = [await talk.receive()]
            while not answers[-1].HasField("finished"):
                answers.append(await talk.receive())
            assert sum(answer.result.rows for answer in answers) == answers[-1].finished.counts.rows_ok == 2_000
    # Thousands of workers end: the process must survive them.
    await eventually(lambda: not any(thread.name == "loop-f@1" for thread in {*threading.enumerate()} - others))
