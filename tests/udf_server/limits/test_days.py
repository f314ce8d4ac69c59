"""Budgets of a day over midnight: calls that run then, and rows that wait."""

import asyncio
import collections
import random
import threading
import time

import pytest

import udf_server as udf
from tests.udf_server.limits.paying import exchange
from tests.udf_server.security.test_callers import callers, refused, results
from tests.udf_server.talk import eventually
from udf_server.base.call_scope import StreamSpending, spend
from udf_server.base.errors import BudgetSpent
from udf_server.limits.budget_costs import Terms
from udf_server.limits.budgets import Budgets
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers
from udf_server.limits.stream_budget import StreamBudget
from udf_server.security.callers import parse_callers

__all__ = ["callers"]

DAY, NOON = 86_400, 1_700_000_000 // 86_400 * 86_400 + 43_200
BUDGET = 10.0


class Night:
    """What is there when calls begin, and whether they may end."""

    calls, morning = 0, threading.Event()


@pytest.fixture
def night(monkeypatch):
    monkeypatch.setattr(Night, "calls", 0)
    monkeypatch.setattr(Night, "morning", threading.Event())
    return Night


@udf.scalar(timeout="60 s", buffer_capacity=40, cost=lambda x: {"usd": 1.0})
async def over_night(x: int, context: udf.CallContext) -> int:
    Night.calls += 1
    await asyncio.to_thread(Night.morning.wait)
    context.spend(usd=1.0)
    return x


@udf.scalar(timeout="60 s", buffer_capacity=40, cost=lambda x: {"usd": 1.0})
def over_night_on_a_thread(x: int, context: udf.CallContext) -> int:
    Night.calls += 1
    Night.morning.wait()
    context.spend(usd=1.0)
    return x


@pytest.mark.parametrize("function", [over_night, over_night_on_a_thread], ids=["async", "thread"])
async def test_calls_that_run_at_midnight_take_nothing_of_the_new_day_and_rows_that_wait_do(
    serve, callers, night, function
):
    path, security = callers("etl")
    settings = parse_callers({"etl": {"budget": {"usd": BUDGET}}})
    serving = await asyncio.to_thread(serve, function, access_file=path, callers=settings)
    rows = asyncio.create_task(
        asyncio.to_thread(results, serving.target, security["etl"], list(range(40)), function, chunk=40)
    )
    await eventually(lambda: night.calls == BUDGET)
    serving.server._budgets._wall = lambda: time.time() + DAY
    await eventually(lambda: night.calls == 2 * BUDGET)
    night.morning.set()
    found = await rows
    messages = refused(found)
    assert night.calls == 2 * BUDGET
    assert len(messages) == len(found) - 2 * BUDGET
    tomorrow = time.strftime("%Y-%m-%d", time.gmtime(time.time() + DAY))
    assert set(messages) == {f"the budget of caller 'etl' for {tomorrow} (UTC) is spent: 10 of 10 usd"}


class Claims(Coordinator):
    """Sends claims when a test says so."""

    def __init__(self, ledgers):
        super().__init__(ledgers, [])
        self.ledgers, self._added = ledgers, []

    def add(self, account):
        self._added.append(account)

    def exchange(self):
        for each in self._added:
            exchange(each, Answering(self.ledgers, each.name))


class Answering:
    """One of several ledgers."""

    def __init__(self, ledgers, name):
        self._ledgers, self._name = ledgers, name

    def exchange(self, claim, now):
        return self._ledgers.answer(self._name, claim)


class Clock:
    """A server whose clock a test sets, and the calls of one function there."""

    def __init__(self, ledgers, spent):
        self.wall, self._spent = NOON, spent
        self.coordinator = Claims(ledgers)
        self.budgets = Budgets(self.coordinator, "id", wall=lambda: self.wall)
        daily = self.budgets.daily("etl", Terms((("usd", BUDGET),)))
        self._stream = StreamBudget(lambda: daily.today, "f@1")
        self.running = []

        @udf.scalar(cost=lambda usd, parts: {"usd": usd})
        async def paid(usd: float, parts: int) -> int:
            day, streams = self.wall // DAY, {StreamSpending(self._stream.spent): 1.0}
            for _ in range(parts):
                self.running.append(go := asyncio.Event())
                await go.wait()
                self._spent[day] += usd / parts
                spend("paid", {"usd": usd / parts}, streams)
            return parts

        self.limiter = Limiter("paid@1")
        self.call = limited(paid, self.limiter, budgets=[self._stream], timeout=1e9).call


@pytest.mark.parametrize("seed", range(30))
async def test_no_day_of_any_server_has_more_than_the_budget(seed):
    draw, ledgers, spent = random.Random(seed), LocalLedgers(), collections.Counter()
    clocks, calls = [Clock(ledgers, spent) for _ in range(2)], []

    async def rest():
        for clock in clocks:
            clock.coordinator.exchange()
        for _ in range(10):
            await asyncio.sleep(0)

    for _ in range(150):
        clock = draw.choice(clocks)
        match draw.choice(("call",) * 12 + ("go",) * 8 + ("midnight", "back")):
            case "call":
                calls.append(asyncio.create_task(clock.call(draw.choice((0.5, 1.0, 3.0)), draw.choice((1, 2)))))
            case "go" if clock.running:
                clock.running.pop(draw.randrange(len(clock.running))).set()
            case "midnight":
                clock.wall += DAY
            case "back" if clock.wall > NOON:
                clock.wall -= DAY
        clock.budgets.sweep()
        await rest()
    while any(not call.done() for call in calls):
        for clock in clocks:
            while clock.running:
                clock.running.pop().set()
        await rest()
    for day, usd in spent.items():
        assert usd <= BUDGET, day
    for call in calls:
        assert call.exception() is None or isinstance(call.exception(), BudgetSpent)
