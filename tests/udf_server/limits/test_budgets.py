"""Budgets of jobs: what streams of a job may spend together, on one server and on several."""

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.error_budget import ErrorBudget
from remote_udf.errors import ErrorCode, StreamError
from spark_client.base.budget import Budget
from spark_client.base.config import ClientConfig
from spark_client.base.errors import BudgetExceeded, BudgetNotKept
from spark_client.executor.stream.connecting import BudgetLedgers
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of
from tests.spark_client.streams import rows_through
from tests.waiting import wait_until
from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import Party
from udf_server.limits.costs import RunningCall, Spender
from udf_server.limits.job_budget import AWAY_SECONDS, JobBudget
from udf_server.limits.queue import ThreadWaiter
from udf_server.limits.sharing.budget_ledger import BudgetLedger
from udf_server.limits.terms import Terms

SPENT = ErrorCode.BUDGET_SPENT


@udf.scalar
async def ask(x: int, context: udf.CallContext) -> int:
    await asyncio.sleep(0.001)
    context.spend(usd=0.25)
    return x


@udf.scalar
def ask_thread(x: int, context: udf.CallContext) -> int:
    context.spend(usd=0.25)
    return x


@udf.scalar(vectorized=True)
def ask_all(x: pa.Int64Array) -> pa.Int64Array:
    return x


@udf.scalar(batched=True, max_queue_delay="1 ms")
async def ask_list(x: list[int]) -> list[int]:
    return x


@udf.scalar
async def fails(x: int) -> int:
    if x % 2:
        raise ValueError("odd")
    return x


def budget(over="on-error", **amounts):
    return Budget.of(amounts, over)


def results(serving, function, values, bound, chunk=10, **options):
    """The outcomes of the rows by position."""
    call = call_of(function, getattr(serving, "target", serving), **options)
    call = dataclasses.replace(call, config=dataclasses.replace(call.config, budget=bound))
    return rows_through(call, values, chunk)


def refused(found):
    return [row for row, value in found.items() if getattr(value, "code", None) is SPENT]


@pytest.mark.parametrize("function", [ask, ask_thread], ids=["async", "thread"])
def test_streams_of_a_job_make_no_more_calls_than_its_budget_has(serve, function):
    serving, bound, found = serve(function), budget(calls=100), []

    def run():
        found.append(results(serving, function, list(range(50)), bound))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(len(refused(each)) for each, _ in found) == 100
    assert sum(statistics.calls for _, statistics in found) == 100
    message = next(each[refused(each)[0]].message for each, _ in found if refused(each))
    assert message == "the budget of this job is spent: 100 of 100 calls"
    labels = {"function": function.spec.name, "version": "1", "code": "BUDGET_SPENT"}
    assert serving.metric("udf_row_errors_total", **labels) == 100


def test_all_rows_are_called_if_the_budget_is_just_enough(serve):
    found, _ = results(serve(ask), ask, list(range(100)), budget(calls=100, usd=25))
    assert list(found.values()) == list(range(100))


def test_the_query_fails_if_the_session_says_so(serve):
    serving, bound = serve(ask), budget("fail", calls=10)
    for _ in range(2):  # a task that is repeated fails, too
        with pytest.raises(BudgetExceeded, match="function ask@1: the budget of this job is spent: 10 of 10 calls"):
            results(serving, ask, list(range(50)), bound)


def test_functions_of_a_job_share_its_budget_and_other_jobs_do_not(serve):
    serving, bound = serve(ask, ask_thread), budget(calls=60)
    assert refused(results(serving, ask, list(range(40)), bound)[0]) == []
    assert len(refused(results(serving, ask_thread, list(range(40)), bound)[0])) == 20
    assert refused(results(serving, ask, list(range(60)), budget(calls=60))[0]) == []


@pytest.mark.parametrize("function", [ask, ask_thread], ids=["async", "thread"])
def test_what_calls_report_is_bounded_by_what_calls_have_cost_before(serve, function):
    found, statistics = results(serve(function), function, list(range(200)), budget(usd=10))
    assert statistics.spent == {"usd": 10.0}
    assert len(refused(found)) == 160


def test_an_estimate_of_the_function_is_held_for_its_calls(serve):
    @udf.scalar(cost=lambda x: {"tokens": x})
    async def generate(x: int, context: udf.CallContext) -> int:
        await asyncio.sleep(0.01)
        context.spend(tokens=x)
        return x

    found, statistics = results(serve(generate), generate, [10] * 30, budget(tokens=95))
    assert statistics.spent == {"tokens": 90.0}
    assert len(refused(found)) == 21
    assert "90 of 95 tokens, and a call costs 10" in found[refused(found)[0]].message


def test_calls_that_spend_less_than_estimated_leave_the_rest_to_others(serve):
    @udf.scalar(cost=lambda x: {"tokens": 10})
    async def generate(x: int, context: udf.CallContext) -> int:
        await asyncio.sleep(0.01)
        context.spend(tokens=1)
        return x

    found, statistics = results(serve(generate), generate, [1] * 40, budget(tokens=60))
    assert statistics.spent == {"tokens": 40.0}
    assert refused(found) == []


def test_the_first_call_of_unknown_cost_is_made_alone(serve):
    running, most = 0, []

    @udf.scalar
    async def dear(x: int, context: udf.CallContext) -> int:
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(0.01)
        running -= 1
        context.spend(usd=6)
        return x

    found, statistics = results(serve(dear), dear, list(range(20)), budget(usd=10))
    assert most == [1]
    assert statistics.spent == {"usd": 6.0}
    assert len(refused(found)) == 19


@pytest.mark.parametrize("free", [1, 3])
@pytest.mark.parametrize("fail", [False, True], ids=["free", "failed"])
def test_calls_that_spend_nothing_do_not_remove_the_bound(serve, free, fail):
    free = free * 10 if fail else free

    @udf.scalar
    async def later(x: int, context: udf.CallContext) -> int:
        await asyncio.sleep(0.005)
        if x < free:
            if fail:
                raise ValueError("no service")
            return x
        context.spend(usd=1)
        return x

    found, statistics = results(serve(later), later, list(range(300)), budget(usd=10), chunk=300)
    assert statistics.spent == {"usd": 10.0}
    assert len(refused(found)) == 300 - 10 - free


def test_calls_that_never_spend_a_unit_do_not_stay_alone(serve):
    running = most = 0

    @udf.scalar
    async def free(x: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return x

    found, _ = results(serve(free), free, list(range(300)), budget(usd=10), chunk=300)
    assert refused(found) == []
    assert most > 16


def test_a_function_that_spends_seldom_is_bounded_by_its_calls_that_did():
    spender = Spender(["usd"])
    for amount in [2.0, *[0.0] * 500]:
        assert spender.costs({}) is not None
        spender.ended({"usd": amount}, good=True)
    spender.running = 1
    assert spender.costs({}) == [10.0]  # one call says little about the next


def test_a_call_of_a_vectorized_function_is_one_call_and_is_not_halved(serve):
    found, statistics = results(serve(ask_all), ask_all, list(range(40)), budget(calls=2))
    assert sorted(refused(found)) == list(range(20, 40))
    assert statistics.calls == 2


def test_rows_of_a_job_with_a_budget_do_not_join_common_calls(serve):
    found, statistics = results(serve(ask_list), ask_list, list(range(40)), budget(calls=2))
    assert sorted(refused(found)) == list(range(20, 40))
    assert statistics.calls == 2


@pytest.mark.parametrize(("errors", "why"), [(5, "its budget allows 5"), ("10 %", "its budget allows 10 %")])
def test_a_job_whose_rows_fail_too_often_stops(serve, errors, why):
    found, _ = results(serve(fails), fails, list(range(2_000)), budget(errors=errors), buffer_capacity=10)
    rows = refused(found)
    assert 1_000 < len(rows) < 2_000
    assert why in found[rows[0]].message
    assert "rows of this job have failed" in found[rows[0]].message


def test_a_share_of_errors_that_is_allowed_stops_nothing(serve):
    found, _ = results(serve(fails), fails, list(range(500)), budget(errors="50 %"))
    assert refused(found) == []


def test_equal_rows_of_another_job_are_called_although_the_first_has_spent_its_budget(serve):
    serving = serve(ask)
    assert len(refused(results(serving, ask, [1] * 5, budget(usd=0.25), cache_ttl="1 min")[0])) == 0
    assert len(refused(results(serving, ask, [2, 3], budget(usd=0.25), cache_ttl="1 min")[0])) == 1
    assert refused(results(serving, ask, [2, 3, 4], budget(usd=9), cache_ttl="1 min")[0]) == []


def test_equal_rows_of_another_job_are_called_if_the_budget_of_the_first_is_not_coordinated(serve):
    """Nothing listens at the port: the first job's call waits until its deadline, and fails."""
    serving = serve(ask, coordination_url="redis://127.0.0.1:1")
    jobs = [budget(calls=5), None, budget(calls=5)]
    with ThreadPoolExecutor() as threads:
        running = []
        for bound, timeout in zip(jobs, ("4 s", "60 s", "60 s"), strict=True):
            running.append(threads.submit(results, serving, ask, [7], bound, cache_ttl="1 min", timeout=timeout))
            wait_until(lambda: serving.metric("udf_rows_in_flight", function="ask", version="1") == len(running))
        first, without, other = (each.result()[0][0] for each in running)
    assert (first.code, first.attempts, first.retryable) == ("BUDGET_UNAVAILABLE", 0, True)
    assert "the budget of this job is not coordinated" in first.message
    assert [without, other] == [7, 7], "the last one gets the value from the cache"


def test_a_second_budget_for_one_job_is_refused(serve):
    serving, bound = serve(ask), budget(calls=5)
    results(serving, ask, [1], bound)
    with pytest.raises(StreamError, match="the job has the budget 5 calls; this stream has 7 calls"):
        results(serving, ask, [1], dataclasses.replace(bound, amounts={"calls": 7.0}))


@pytest.mark.parametrize(
    ("amounts", "share", "why"),
    [
        ({"usd": -1.0}, 0.0, "usd=-1.0 is not a number of at least 0"),
        ({"usd": 0.0}, 0.0, "usd=0 is not a number of more than 0"),
        ({"usd": float("nan")}, 0.0, "usd=nan"),
        ({"usd": float("inf")}, 0.0, "usd=inf"),
        ({"u" * 200: 1.0}, 0.0, "is no unit"),
        ({f"u{n}": 1.0 for n in range(50)}, 0.0, "50 units"),
        ({}, 1.5, "1.5 is not a share"),
        ({}, float("nan"), "nan is not a share"),
    ],
)
def test_a_server_refuses_terms_that_are_none(serve, amounts, share, why):
    with pytest.raises(StreamError, match=why):
        results(serve(ask), ask, [1], Budget(amounts, share, fails=False))


def test_servers_that_count_apart_are_refused(serve):
    targets = f"{serve(ask).target},{serve(ask).target}"
    with pytest.raises(BudgetNotKept, match="2 servers are listed, and each would keep a budget of its own"):
        results(targets, ask, [1], budget(calls=5))


def test_a_server_that_has_forgotten_what_was_spent_is_refused():
    ledgers = BudgetLedgers()
    assert ledgers.problem("a", "one", 1) == ""
    assert ledgers.problem("a", "one", 1) == ""
    assert "has restarted" in ledgers.problem("a", "two", 1)
    assert ledgers.problem("b", "two", 1) == ledgers.problem("b", "shared", 3) == ""
    assert "too old" in ledgers.problem("b", "", 1)


def test_a_process_that_has_met_no_server_knows_which_one_the_driver_has_met():
    """Spark ends a process whose task has failed, and repeats the task in a new one."""
    assert "has restarted" in BudgetLedgers().problem("a", "two", 1, first="one")
    assert "has restarted" in BudgetLedgers().problem("a", "two", 1, first="shared")
    assert BudgetLedgers().problem("a", "one", 1, first="one") == ""
    assert BudgetLedgers().problem("a", "shared", 3, first="shared") == ""


def test_a_task_that_meets_another_server_than_the_driver_is_refused(serve):
    met, other = serve(ask).target, serve(ask).target
    known = dataclasses.replace(budget(calls=5), ledger=list_functions(ClientConfig(met)).ledger)
    with pytest.raises(BudgetNotKept, match="another server has counted the budget so far"):
        results(other, ask, [1], known)
    found, _ = results(met, ask, [1], dataclasses.replace(known, job="another"))
    assert found == {0: 1}


# Calls that never end.


@pytest.mark.parametrize("ends", ["row", "stream"])
def test_no_call_waits_for_one_that_may_never_end_and_what_it_took_is_spent_until_it_ends(ends):
    now, party = [0.0], Party()
    ledger = BudgetLedger()
    job = JobBudget("b", Terms((("usd", 10.0),)), clock=lambda: now[0])

    def exchange():
        job.granted(ledger.exchange({"leave": False, **job.claim()}, now[0]))

    def begin():
        taken = job.take(spender, {}, waiting)
        if isinstance(taken, ThreadWaiter):
            exchange()
            if not taken.admitted:
                return taken
            taken = job.begun(taken)
        call = RunningCall(spender, taken, party, timeout=5.0)
        job.runs(call)
        return call

    def spend(call, usd):
        call.spending.add({"usd": usd})
        job.spent({"usd": usd})

    spender = job.spender("f@1")
    first = begin()
    second = begin()
    assert isinstance(second, ThreadWaiter)
    party.closed = ends == "stream"
    for _ in range(2 if ends == "stream" else 4):
        now[0] += 2.0
        exchange()
    assert second.admitted
    # A call whose cost is known: what it took is spent when it is written off, until it ends.
    second = RunningCall(spender, job.begun(second), Party(), timeout=1.0)
    job.runs(second)
    spend(second, 4.0)
    job.ended(second, good=True)
    third = begin()
    assert third.costs == [4.0]
    for _ in range(4):
        now[0] += 2.0
        exchange()
    assert job.claim()["units"]["usd"]["spent"] == 8.0
    spend(third, 1.0)
    job.ended(third, good=True)
    job.ended(first, good=True)
    assert job.claim()["units"]["usd"]["spent"] == 5.0


def test_a_thread_that_was_written_off_does_not_stop_its_function_for_the_job(serve):
    release = threading.Event()

    @udf.scalar
    def hangs(x: int, context: udf.CallContext) -> int:
        if x < 0:
            release.wait(60)
        context.spend(usd=1)
        return x

    serving, bound = serve(hangs), budget(usd=10)
    try:
        found, _ = results(serving, hangs, [-1], bound, timeout="300 ms")
        assert found[0].code is ErrorCode.TIMEOUT
        assert results(serving, hangs, [1, 2], bound, timeout="30 s")[0] == {0: 1, 1: 2}
    finally:
        release.set()


@pytest.mark.parametrize("function", [ask, ask_thread, ask_list], ids=["async", "thread", "list"])
def test_rows_whose_deadline_passes_while_the_redis_is_away_are_neither_called_nor_counted(serve, function):
    serving = serve(function, coordination_url="redis://127.0.0.1:1")
    found, statistics = results(serving, function, list(range(30)), budget(calls=1_000, errors=3), timeout="4 s")
    assert {(error.code, error.attempts) for error in found.values()} == {("BUDGET_UNAVAILABLE", 0)}
    assert (statistics.calls, statistics.uncalled, statistics.spent) == (0, 30, {})


# A process whose claims are not answered.


def waiting():
    return ThreadWaiter(())


@pytest.mark.parametrize("fail_open", [False, True])
def test_without_coordination_calls_wait_or_this_process_takes_the_rest(fail_open):
    now = [0.0]
    job = JobBudget("b", Terms((("calls", 3.0),)), fail_open=fail_open, clock=lambda: now[0])
    spender = job.spender("f@1")
    waiter = job.take(spender, {}, waiting)
    assert isinstance(waiter, ThreadWaiter)
    job.claim()
    job.failed("Redis does not answer")
    assert not waiter.woken
    now[0] = AWAY_SECONDS + 1
    job.claim()
    job.failed("Redis does not answer")
    assert waiter.woken == fail_open
    if not fail_open:
        assert "the budget of this job is not coordinated: Redis does not answer" in job.unavailable
        job.granted(BudgetLedger().exchange({"leave": False, **job.claim()}, 0.0))
        assert (job.unavailable, waiter.admitted, job.amounts()) == ("", True, [("calls", 1.0, 3.0)])
        return
    assert job.begun(waiter) == [1.0]
    assert [job.take(spender, {}, waiting) for _ in range(2)] == [[1.0]] * 2
    with pytest.raises(BudgetSpent, match="3 of 3 calls"):
        job.take(spender, {}, waiting)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("why", ["not made", "written off"])
def test_a_budget_goes_on_if_what_was_counted_as_spent_comes_back(why, where):
    """A call that its guard did not let begin is no call; one that was written off counts until it ends."""
    now, ledger = [0.0], BudgetLedger()
    terms = Terms((("calls", 2.0), ("usd", 10.0)))
    one, other = (JobBudget("b", terms, clock=lambda: now[0]) for _ in range(2))
    estimate = {"usd": 10.0 if why == "written off" else 1.0}

    def exchange():
        for job in (one, other):
            job.granted(ledger.exchange({"leave": False, **job.claim()}, now[0]))

    def begin(job):
        taken = job.take(job.spender("f@1"), estimate, waiting)
        if isinstance(taken, ThreadWaiter):
            for _ in range(10):  # what the other one has leased ahead comes back
                now[0] += 0.05
                exchange()
            taken = job.begun(taken)
        job.runs(call := RunningCall(job.spender("f@1"), taken, Party(), timeout=1.0))
        return call

    calls = [begin(one) for _ in range(1 if why == "written off" else 2)]
    now[0] += 3.0
    exchange()
    exchange()
    for job in (one, other):
        with pytest.raises(BudgetSpent):
            begin(job)
    one.ended(calls[-1], good=False, called=why == "written off")
    exchange()
    last = one if where == "here" else other
    last.ended(begin(last), good=True)
    exchange()
    with pytest.raises(BudgetSpent, match="2 of 2 calls"):
        begin(last)


def test_a_budget_of_errors_stays_exceeded_although_later_rows_are_good():
    ledger = BudgetLedger()
    job = JobBudget("b", Terms((("calls", 1_000.0),), errors=ErrorBudget(share=0.5)))
    spender = job.spender("f@1")
    calls = [job.take(spender, {}, waiting) for _ in range(2)]
    job.granted(ledger.exchange({"leave": False, **job.claim()}, 0.0))
    job.answered(100, 60)
    with pytest.raises(BudgetSpent, match="60 of 100 rows of this job have failed"):
        job.take(spender, {}, waiting)
    job.answered(100, 0)
    for call in calls:
        job.forget(spender, call)
    with pytest.raises(BudgetSpent, match="60 of 100 rows of this job have failed"):
        job.take(spender, {}, waiting)


def test_nothing_is_asked_for_calls_that_have_left():
    job = JobBudget("b", Terms((("calls", 10.0),)))
    spender = job.spender("f@1")
    waiting = [job.take(spender, {}, lambda: ThreadWaiter(())) for _ in range(3)]
    for left in (waiting[2], waiting[0]):
        job.forget(spender, left)
    assert job.claim()["units"]["calls"]["take"] == 1.0
    job.forget(spender, waiting[1])
    assert job.claim()["units"]["calls"]["take"] == 0.0
    assert job.due() > 0.01, "it is idle"
