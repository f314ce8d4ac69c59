"""The scope of a call is left where the call was made, and nowhere else."""

import asyncio
import contextvars
import gc

import pytest

import udf_server as udf
from udf_server.base.call_scope import NO_CALL, CallScope, current_scope
from udf_server.base.fairness import Party
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.hedge import Hedge
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing.ledgers import LocalLedgers
from udf_server.limits.stream_budget import StreamBudget


@udf.scalar(cost=lambda x: {"usd": 1.0}, idempotent=True, hedge_after="1 h")
async def paid(x: int) -> int:
    await asyncio.Event().wait()
    return x


def guarded():
    return limited(paid, Limiter("paid@1", GuardSettings.parse("paid", {"rate": "10 usd/second"})))


def budgeted():
    ledgers = LocalLedgers()
    budget = Budget("job", Terms((("usd", 10.0),)), answers=lambda claim: ledgers.answer("job", claim))
    return limited(paid, Limiter("paid@1"), budgets=[StreamBudget(lambda: budget, "paid@1")], timeout=60.0)


def hedged():
    return limited(paid, hedge=Hedge(3600.0, 1.0, lambda outcome: None, bool))


@pytest.mark.parametrize("function", [guarded, budgeted, hedged])
def test_a_call_that_is_collected_leaves_the_scope_of_other_code_alone(function):
    call = function().call

    async def make():
        current_scope.set(CallScope(Party("of the stream")))
        waiting = call(1)
        waiting.send(None)  # a loop that has ended awaits it no more
        return waiting

    waiting = contextvars.copy_context().run(asyncio.run, make())
    waiting.close()
    del waiting
    gc.collect()
    assert current_scope.get() is NO_CALL


@pytest.mark.parametrize("function", [guarded, budgeted, hedged])
async def test_a_call_that_is_cancelled_leaves_its_scope(function):
    call, outer, found = function().call, CallScope(Party("of the stream")), []

    async def make():
        current_scope.set(outer)
        try:
            await call(1)
        finally:
            found.append(current_scope.get())

    task = asyncio.create_task(make())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert found == [outer]
