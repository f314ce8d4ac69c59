"""Many jobs with budgets: one caller's jobs do not keep those of another from beginning."""

import contextlib
import itertools

import pytest

from remote_udf.errors import ErrorCode, StreamError
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.limits.test_budget_ledger import claim, part
from tests.udf_server.talk import eventually
from udf_server.base.fairness import ANYONE
from udf_server.limits.budgets import Budgets
from udf_server.limits.costs import RunningCall
from udf_server.limits.queue import ThreadWaiter
from udf_server.limits.sharing import ledgers as ledgers_module
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers

MOST = 20


@pytest.fixture
async def budgets():
    coordinator = Coordinator(LocalLedgers(), [])
    await coordinator.open()
    yield Budgets(coordinator, "here", most_jobs=MOST)
    await coordinator.close()


def joined(budgets, caller, number):
    return budgets.join(caller, pb.Budget(job=f"{caller}{number}", amounts={"usd": 5.0}))


async def test_jobs_without_streams_give_way_to_those_of_another_caller(budgets):
    for number in range(2 * MOST):
        budgets.leave(joined(budgets, "alice", number))
    assert joined(budgets, "bob", 0).streams == 1


async def test_a_caller_with_streams_of_many_jobs_leaves_room_for_another(budgets):
    for number in range(2 * MOST):
        with contextlib.suppress(StreamError):
            joined(budgets, "alice", number)
    assert joined(budgets, "bob", 0).streams == 1


@pytest.mark.parametrize("callers", [1, 3])
async def test_a_caller_gets_no_more_jobs_than_others_would_have_left(budgets, callers):
    counts = []
    for caller in range(callers):
        try:
            for number in itertools.count():
                joined(budgets, f"caller{caller}", number)
        except StreamError as error:
            assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True)
            counts.append(number)
    assert counts == [10, 5, 3][:callers]
    joined(budgets, "neighbour", 0)


async def test_a_job_that_gave_way_goes_on_with_what_it_had_spent(budgets):
    job = joined(budgets, "etl", 0)
    waiter = job.take(job.spender("f@1"), {"usd": 1.0}, lambda: ThreadWaiter(()))
    await eventually(lambda: waiter.admitted)
    job.spent({"usd": 1.0})
    job.ended(RunningCall(job.spender("f@1"), waiter.costs, ANYONE, 60.0), good=True)
    budgets.leave(job)
    for number in range(MOST):
        budgets.leave(joined(budgets, "flood", number))
    again = joined(budgets, "etl", 0)
    assert again is not job
    await eventually(lambda: again.amounts() == [("usd", 1.0, 5.0)])


async def test_jobs_of_different_callers_share_no_budget(budgets):
    request = pb.Budget(job="the same", amounts={"usd": 5.0})
    mine, same, other = (budgets.join(caller, request) for caller in ("alice", "alice", "bob"))
    assert mine is same and mine.streams == 2
    assert other.name != mine.name and other.streams == 1


def test_budgets_in_memory_are_those_that_were_used_last(monkeypatch):
    monkeypatch.setattr(ledgers_module, "MOST_BUDGETS", 3)
    ledgers = LocalLedgers()
    for name in ("a", "b", "c", "a", "d"):
        ledgers.answer(name, claim(usd=part(spent=3.0)))
    spent = [ledgers.answer(name, claim("new", usd=part()))["units"]["usd"][1] for name in ("a", "d", "b")]
    assert spent == [3.0, 3.0, 0.0]
