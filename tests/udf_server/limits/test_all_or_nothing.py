"""A call takes its place, its units and its parts of budgets together: while it waits for one, it holds none."""

import asyncio
import functools

import pytest

import udf_server as udf
from udf_server.base.call_scope import CallScope, StreamSpending, current_scope, spend
from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import Party
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing.ledgers import LocalLedgers
from udf_server.limits.stream_budget import StreamBudget


class Function:
    """A function whose calls run until the test ends them. `calls` makes those of one stream."""

    def __init__(self, name="f", **settings):
        self.limiter = Limiter(f"{name}@1", GuardSettings.parse(name, settings))
        self.running = []

        @udf.scalar(name=name, cost=lambda who, usd: {"usd": usd})
        async def paid(who: str, usd: float) -> str:
            self.running.append((who, go := asyncio.Event()))
            await go.wait()
            return who

        self._paid = paid

    def calls(self, who, *budgets):
        parts = [StreamBudget(lambda budget=budget: budget, self.limiter.key) for budget in budgets]
        call = limited(self._paid, self.limiter, budgets=parts, timeout=60.0).call
        party, reports = Party(who), {StreamSpending(part.spent): 1.0 for part in parts}

        async def paid(usd):
            current_scope.set(CallScope(party))
            result = await call(who, usd)
            spend("paid", {}, reports)
            return result

        def begin(usd=1.0):
            return asyncio.ensure_future(paid(usd))

        return begin

    @property
    def begun(self):
        return [who for who, _ in self.running]

    def end(self, place=0):
        self.running.pop(place)[1].set()


def budget(usd, name="b"):
    return Budget(name, Terms((("usd", usd),)), answers=functools.partial(LocalLedgers().answer, name))


async def rest():
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_call_that_waits_for_its_budget_holds_no_place_and_keeps_its_turn():
    f, poor = Function(**{"max-concurrency": 2}), budget(5.0)
    job, other = f.calls("poor", poor), f.calls("rich")
    tasks = [job(5.0), job(4.0), job(1.0)]
    await rest()
    assert f.begun == ["poor"], "the others may fit when the first one has cost less"
    tasks += [other(), other()]
    await rest()
    assert f.begun == ["poor", "rich"]
    assert f.limiter.in_use == 2
    f.end(1)
    await rest()
    assert f.begun == ["poor", "rich"], "the second call of the other stream has got the place"
    f.end(0)  # it has reported nothing, so the budget has all again
    await rest()
    assert f.begun == ["rich", "poor"]
    f.end(0)
    await rest()
    assert f.begun == ["poor", "poor"], "in the order in which they came"
    await ended(*tasks)
    assert f.limiter.in_use == 0 and not len(f.limiter.waiting)


async def test_a_call_that_waits_for_a_place_takes_nothing_of_its_budget():
    f, g, shared = Function("f", **{"max-concurrency": 1}), Function("g"), budget(5.0)
    tasks = [f.calls("other")(), f.calls("job", shared)(5.0)]
    await rest()
    assert f.begun == ["other"]
    tasks.append(g.calls("job", shared)(5.0))
    await rest()
    assert g.begun == ["job"], "the call of f holds nothing while it waits for its place"
    f.end()
    await rest()
    assert f.begun == []
    g.end()
    await rest()
    assert f.begun == ["job"]
    await ended(*tasks)


async def test_a_call_that_waits_for_one_budget_holds_nothing_of_another():
    f, g = Function("f"), Function("g")
    caller, job = budget(5.0, "day"), budget(1.0, "job")
    tasks = [f.calls("one", caller, job)(1.0), f.calls("two", caller, job)(1.0)]
    await rest()
    assert f.begun == ["one"]
    tasks.append(g.calls("three", caller)(4.0))
    await rest()
    assert g.begun == ["three"]
    await ended(*tasks)


async def test_calls_of_a_spent_budget_are_refused_although_they_wait_for_a_place():
    f, spent = Function(**{"max-concurrency": 1}), budget(5.0)
    tasks = [f.calls("other")(), f.calls("job", spent)()]
    await rest()
    spent.spent({"usd": 5.0})
    with pytest.raises(BudgetSpent, match="5 of 5 usd"):
        await asyncio.wait_for(tasks[1], 5)
    assert not len(f.limiter.waiting)
    await ended(*tasks)


async def test_a_poor_job_gets_its_turns_when_its_budget_has_something_and_no_more():
    """Both streams wait all the time. The budget has one part for each two calls of the other stream."""
    f, poor = Function(**{"max-concurrency": 1}), budget(1e6)
    job, other = f.calls("poor", poor), f.calls("rich")
    tasks = [call() for call in (job, other) for _ in range(60)]
    served = []
    for _ in range(40):
        await rest()
        served += f.begun
        f.end()
    assert abs(served.count("poor") - served.count("rich")) <= 2
    await ended(*tasks)


async def test_a_call_that_leaves_while_it_waits_for_its_budget_is_asked_for_no_more():
    f, poor = Function(), budget(1.0)
    job = f.calls("poor", poor)
    tasks = [job(), job(), job()]
    await rest()
    assert [number for _, _, number in f.limiter.waiting_for(poor)] == [2]
    tasks[1].cancel()
    await rest()
    assert [number for _, _, number in f.limiter.waiting_for(poor)] == [1]
    await ended(*tasks[2:])
    assert f.limiter.waiting_for(poor) == []
    f.end()
    await tasks[0]
