"""Budgets of jobs: what streams of a job may spend together, on one server and on several."""

import asyncio
import dataclasses
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from remote_udf.outcomes import ErrorBudget
from spark_client.base.budget import SessionBudget
from spark_client.base.config import ClientConfig
from spark_client.base.errors import BudgetExceeded, BudgetNotKept
from spark_client.executor.stream.connecting import BudgetLedgers
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of
from tests.spark_client.streams import rows_through
from tests.udf_server.limits.paying import Calls, exchange
from tests.udf_server.limits.sharing.test_ledgers import part
from tests.udf_server.limits.test_budget_ledger import claim
from tests.waiting import wait_until
from udf_server.base.call_scope import Spending
from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import Party
from udf_server.limits.budget import Budget as JobBudget
from udf_server.limits.budget_costs import Spender, Terms
from udf_server.limits.sharing.account import AWAY_SECONDS
from udf_server.limits.sharing.ledger import Ledger
from udf_server.limits.sharing.ledgers import LocalLedgers
from udf_server.limits.stream_budget import Bill, take_all

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
    return SessionBudget.of(amounts, over)


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
    assert found == {row: row for row in range(100)}


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        results(serve(ask), ask, [1], SessionBudget(amounts, share, fails=False))


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
    now, party, ledger = [0.0], Party(), Ledger()
    job = JobBudget("b", Terms((("usd", 10.0),)), clock=lambda: now[0])
    calls = Calls(job)

    def later(seconds):
        for _ in range(seconds // 2):
            now[0] += 2.0
            exchange(job, ledger, now[0])

    def spent():
        return exchange(job, ledger, now[0])["units"]["usd"]["spent"]

    exchange(job, ledger)
    first = calls.begin(party, 5.0)
    second = calls.begin(timeout=1.0)
    assert first.began and not second.began
    party.closed = ends == "stream"
    later(4 if ends == "stream" else 8)
    assert second.began
    second.end(usd=4.0)
    # A call whose cost is known: what it took is spent when it is written off, until it ends.
    third = calls.begin(party, 5.0)
    exchange(job, ledger, now[0])
    assert third.bill.costs == [4.0]
    later(8)
    assert spent() == 8.0
    third.end(usd=1.0)
    first.end()
    assert spent() == 5.0


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("function", [ask, ask_thread, ask_list], ids=["async", "thread", "list"])
def test_rows_whose_deadline_passes_while_the_redis_is_away_are_neither_called_nor_counted(serve, function):
    serving = serve(function, coordination_url="redis://127.0.0.1:1")
    found, statistics = results(serving, function, list(range(30)), budget(calls=1_000, errors=3), timeout="4 s")
    assert {(error.code, error.attempts) for error in found.values()} == {("BUDGET_UNAVAILABLE", 0)}
    assert (statistics.calls, statistics.uncalled, statistics.spent) == (0, 30, {})


# A process whose claims are not answered.


@pytest.mark.parametrize("fail_open", [False, True])
def test_without_coordination_calls_wait_or_this_process_takes_the_rest(fail_open):
    now = [0.0]
    job = JobBudget("b", Terms((("calls", 3.0),)), fail_open=fail_open, clock=lambda: now[0])
    calls = Calls(job)
    first = calls.begin()
    assert not first.began
    job.claim()
    job.failed("Redis does not answer")
    now[0] = AWAY_SECONDS + 1
    job.claim()
    job.failed("Redis does not answer")
    assert first.began == fail_open
    if not fail_open:
        assert "the budget of this job is not coordinated: Redis does not answer" in job.unavailable
        exchange(job, Ledger())
        assert (job.unavailable, first.began, job.amounts()) == ("", True, [("calls", 1.0, 3.0)])
        return
    assert [calls.begin().began for _ in range(2)] == [True, True]
    assert "3 of 3 calls" in calls.begin().refused


def test_a_process_that_is_alone_leaves_to_others_what_they_have_spent_and_shares_again_when_the_ledger_is_back():
    now, ledger, terms = [0.0], Ledger(), Terms((("calls", 10.0),))
    one, other = (JobBudget("b", terms, fail_open=True, clock=lambda: now[0]) for _ in range(2))
    for job, number in ((other, 6), (one, 1)):
        exchange(job, ledger)
        begun = [Calls(job).begin() for _ in range(number)]
        for _ in range(2):
            exchange(job, ledger)
        assert all(call.began for call in begun)
    exchange(one, ledger)
    now[0] = AWAY_SECONDS + 1
    one.failed("Redis does not answer")
    assert [Calls(one).begin().began for _ in range(2)] == [True, True]
    exchange(one, ledger, now[0])
    exchange(other, ledger, now[0])
    assert one.amounts() == other.amounts() == [("calls", 9.0, 10.0)]
    last = Calls(other).begin()
    for _ in range(30):  # what the first one has leased ahead comes back
        now[0] += 0.1
        exchange(one, ledger, now[0])
        exchange(other, ledger, now[0])
    assert last.began
    exchange(one, ledger, now[0])
    assert "10 of 10 calls" in Calls(one).begin().refused


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.parametrize("why", ["not made", "written off"])
def test_a_budget_goes_on_if_what_was_counted_as_spent_comes_back(why, where):
    """A call that its guard did not let begin is no call; one that was written off counts until it ends."""
    now, ledger = [0.0], Ledger()
    terms = Terms((("calls", 2.0), ("usd", 10.0)))
    one, other = (JobBudget("b", terms, clock=lambda: now[0]) for _ in range(2))
    usd = 10.0 if why == "written off" else 1.0

    def exchange_all():
        for job in (one, other):
            exchange(job, ledger, now[0])

    def begin(job):
        call = Calls(job).begin(timeout=1.0, usd=usd)
        for _ in range(0 if call.began or call.refused else 10):  # what the other one has leased ahead comes back
            now[0] += 0.05
            exchange_all()
        return call

    calls = [begin(one) for _ in range(1 if why == "written off" else 2)]
    assert all(call.began for call in calls)
    now[0] += 3.0
    exchange_all()
    exchange_all()
    for job in (one, other):
        assert "is spent" in begin(job).refused
    calls[-1].end(good=False, called=why == "written off")
    exchange_all()
    last = one if where == "here" else other
    begin(last).end()
    exchange_all()
    assert "2 of 2 calls" in begin(last).refused


def test_a_budget_of_errors_stays_exceeded_although_later_rows_are_good():
    job = JobBudget("b", Terms((("calls", 1_000.0),), errors=ErrorBudget(share=0.5)))
    calls = Calls(job)
    exchange(job, Ledger())
    begun = [calls.begin() for _ in range(2)]
    job.answered(100, 60)
    assert "60 of 100 rows of this job have failed" in calls.begin().refused
    job.answered(100, 0)
    for call in begun:
        call.end(good=False, called=False)
    assert "60 of 100 rows of this job have failed" in calls.begin().refused


def test_nothing_is_asked_for_calls_that_have_left():
    job, ledger = JobBudget("b", Terms((("calls", 10.0),))), Ledger(may_be_lost=True)
    ledger.exchange(claim(settings=str(job.terms), calls=part()), 0.0, up_seconds=0.0)  # it leases nothing for 5 s
    calls = Calls(job)
    waiting = [calls.begin() for _ in range(3)]
    for left in (waiting[2], waiting[0]):
        left.leave()
    assert exchange(job, ledger)["units"]["calls"]["take"] == 1.0
    waiting[1].leave()
    assert exchange(job, ledger)["units"]["calls"]["take"] == 0.0
    assert job.due() > 0.01, "it is idle"


# Several budgets.


class Paying:
    """Calls that take of two budgets, whose ledgers are in this process."""

    def __init__(self, **amounts):
        self.budgets = [
            JobBudget(name, Terms((("usd", amount),)), answers=functools.partial(LocalLedgers().answer, name))
            for name, amount in amounts.items()
        ]
        self.calls = [Calls(budget) for budget in self.budgets]

    def bills(self, **estimate):
        return [Bill(calls, estimate, Party(), 60.0, Spending()) for calls in self.calls]


def test_a_call_takes_of_all_its_budgets_or_of_none():
    paying = Paying(caller=10.0, job=5.0)
    caller, job = paying.budgets
    first, second = paying.bills(usd=4.0), paying.bills(usd=4.0)
    assert take_all(first, paying.calls[0]) is None
    assert take_all(second, paying.calls[0]) is job
    assert [bill.spender is None for bill in second] == [True, True]
    others = Calls(caller).begin(usd=6.0)
    assert others.began, "who waits for one budget holds nothing of the other"
    others.end(usd=0.0)
    for bill in first:
        bill.end(good=True)
    assert take_all(second, paying.calls[0]) is None


def test_a_budget_that_is_spent_refuses_a_call_before_it_takes_of_another():
    paying = Paying(caller=10.0, job=1.0)
    paying.budgets[1].spent({"usd": 1.0})
    with pytest.raises(BudgetSpent, match="1 of 1 usd"):
        take_all(paying.bills(usd=1.0), paying.calls[0])
    assert Calls(paying.budgets[0]).begin(usd=10.0).began


def test_a_ledger_in_this_process_answers_at_once():
    [budget] = Paying(job=3.0).budgets
    calls = Calls(budget)
    assert [calls.begin(usd=1.0).began for _ in range(3)] == [True] * 3
    assert not calls.begin(usd=1.0).began, "calls that run may cost less"
