"""Many jobs with budgets: one caller's jobs do not keep those of another from beginning."""

import contextlib
import itertools

import pytest

from remote_udf.errors import ErrorCode, StreamError
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.limits.paying import Calls
from tests.udf_server.limits.sharing.test_ledgers import part
from tests.udf_server.limits.test_budget_ledger import claim
from tests.udf_server.talk import eventually
from udf_server.limits.budgets import Budgets
from udf_server.limits.sharing import ledgers as ledgers_module
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers

MOST = 20


@pytest.fixture(params=["here", "elsewhere"])
async def budgets(request):
    """Those whose ledger is in this process, and those that send claims."""
    ledgers = LocalLedgers()
    if request.param == "here":
        yield Budgets(ledgers, "here", most_jobs=MOST)
        return
    coordinator = Coordinator(ledgers, [])
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


@pytest.mark.slow
async def test_a_job_that_gave_way_goes_on_with_what_it_had_spent(budgets):
    job = joined(budgets, "etl", 0)
    call = Calls(job).begin(usd=1.0)
    await eventually(lambda: call.began)
    call.end(usd=1.0)
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
