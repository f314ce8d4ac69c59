"""The coordinator: how a process joins the ledgers of its limits, and leaves them."""

import asyncio

import pytest

from tests.udf_server.talk import eventually
from udf_server.base.errors import InvalidConfig
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing import coordinator
from udf_server.limits.sharing.claims import CoordinationFailed
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers


class RecordedLedgers(LocalLedgers):
    """Ledgers that keep the claims, and may hang for one limit."""

    def __init__(self):
        super().__init__()
        self.claims = []
        self.hanging = set()

    async def exchange(self, name, claim):
        self.claims.append((name, claim))
        if name in self.hanging:
            await asyncio.sleep(0.2)
            raise CoordinationFailed("no answer")
        return await super().exchange(name, claim)

    def left(self):
        return sorted(name for name, claim in self.claims if claim["leave"])


def sharing(*names, **settings):
    metrics = ServerMetrics()
    parsed = GuardSettings.parse("f", settings)
    return [Limiter(name, parsed, GuardMetrics(metrics, name, "1"), shared=True).sharing for name in names]


async def test_limits_join_at_once_although_one_ledger_does_not_answer():
    ledgers = RecordedLedgers()
    ledgers.hanging = {"f@1"}
    joining = Coordinator(ledgers, sharing("f@1", "g@1", **{"max-concurrency": 8}))
    opened = asyncio.ensure_future(joining.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [name for name, _ in ledgers.claims] == ["f@1", "g@1"]
    await opened
    await joining.close()


async def test_a_server_that_is_refused_for_one_limit_leaves_the_others(monkeypatch):
    monkeypatch.setattr(coordinator, "CONFLICT_SECONDS", 0.1)
    ledgers = RecordedLedgers()
    first = Coordinator(ledgers, sharing("g@1", **{"max-concurrency": 8}))
    await first.open()
    with pytest.raises(InvalidConfig, match=r"g@1: this server has max-concurrency = 9; .* have max-concurrency = 8"):
        await Coordinator(ledgers, sharing("f@1", "g@1", "h@1", **{"max-concurrency": 9})).open()
    assert ledgers.left() == ["f@1", "h@1"]
    # So a server with the first settings may join them at once.
    third = Coordinator(ledgers, sharing("f@1", "g@1", "h@1", **{"max-concurrency": 8}))
    await third.open()
    for each in (third, first):
        await each.close()


async def test_a_claim_that_is_refused_is_observed_as_failed(monkeypatch):
    monkeypatch.setattr(coordinator, "CONFLICT_SECONDS", 0.1)
    ledgers, observed = RecordedLedgers(), []
    first = Coordinator(ledgers, sharing("g@1", **{"max-concurrency": 8}))
    await first.open()
    refused = sharing("g@1", **{"max-concurrency": 9})
    with pytest.raises(InvalidConfig):
        await Coordinator(ledgers, refused, observe=lambda seconds, good: observed.append(good)).open()
    assert set(observed) == {False}
    await first.close()


async def test_limits_that_have_joined_are_kept_while_another_one_waits_for_a_conflict_to_end():
    ledgers = RecordedLedgers()
    first = Coordinator(ledgers, sharing("g@1", **{"max-concurrency": 8}))
    await first.open()
    second = Coordinator(ledgers, sharing("f@1", "g@1", **{"max-concurrency": 9}))
    opened = asyncio.ensure_future(second.open())
    await eventually(lambda: sum(name == "f@1" for name, _ in ledgers.claims) > 1)
    assert not opened.done()
    await first.close()
    await opened
    await second.close()
    assert ledgers.left() == ["f@1", "g@1", "g@1"]


async def test_a_start_that_is_cancelled_leaves_what_it_has_joined():
    ledgers = RecordedLedgers()
    first = Coordinator(ledgers, sharing("g@1", **{"max-concurrency": 8}))
    await first.open()
    opened = asyncio.ensure_future(Coordinator(ledgers, sharing("f@1", "g@1", **{"max-concurrency": 9})).open())
    await eventually(lambda: len(ledgers.claims) > 2)
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    assert ledgers.left() == ["f@1"]
    await first.close()


class ConvertingLedgers(RecordedLedgers):
    """Ledgers whose library raises an error of its own in place of a cancellation, or returns, as redis-py does."""

    def __init__(self, raises):
        super().__init__()
        self._raises = raises

    async def exchange(self, name, claim):
        grant = await super().exchange(name, claim)
        if not claim["leave"] and len(self.claims) > 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self._raises:
                    raise CoordinationFailed("Redis does not answer: ConnectionError") from None
        return grant


@pytest.mark.parametrize("raises", [True, False], ids=["an error", "a grant"])
@pytest.mark.parametrize("whole", [True, False], ids=["the server stops", "the limit is removed"])
async def test_a_limit_that_leaves_while_its_claim_is_sent_is_not_reported_and_sends_none_afterwards(
    whole, raises, caplog
):
    ledgers, observed = ConvertingLedgers(raises), []
    joining = Coordinator(ledgers, [], observe=lambda seconds, good: observed.append(good))
    await joining.open()
    [shared] = sharing("f@1", **{"max-concurrency": 8})
    joining.add(shared)
    await eventually(lambda: shared.call_back() or len(ledgers.claims) > 1)
    await asyncio.wait_for(joining.close() if whole else joining.remove(shared), 10)
    assert ([claim["leave"] for _, claim in ledgers.claims], observed) == ([False, False, True], [True, True])
    assert not caplog.records
    await joining.close()


async def test_the_log_names_a_budget_by_its_caller_and_day_and_a_guard_by_its_function(caplog):
    ledgers = RecordedLedgers()
    ledgers.hanging = {"f@1", "day:0123"}
    [guard] = sharing("f@1", **{"max-concurrency": 8})
    budget = Budget("day:0123", Terms.of({"usd": 1.0}, "test"), caller="etl", title="2026-01-31 (UTC)")
    joining = Coordinator(ledgers, [guard, budget])
    await joining.open()
    await joining.close()
    said = {record.message: vars(record) for record in caplog.records}
    assert said["guard is not coordinated"]["guard"] == "f@1"
    assert said["budget is not coordinated"]["budget"] == "etl, 2026-01-31 (UTC)"


GRANTS = [
    {}, {"epoch": 1}, {"places": None}, {"places": "8"}, {"places": 9}, {"places": -2}, {"places": 1.5},
    {"places": float("nan")}, {"now": float("inf")}, {"now": 10**400}, {"paused": -1.0},
    {"rates": [[1.0, 0.0], [1.0, 0.0]]}, {"rates": [[-1.0, 0.0]]}, {"rates": [[1.0]]}, {"rates": [[99.0, 0.0]]},
    {"rates": 3},
]  # fmt: skip


@pytest.mark.parametrize("wrong", GRANTS, ids=str)
async def test_an_answer_that_is_no_grant_is_a_claim_that_failed_and_the_limit_recovers(wrong, caplog):
    class Foreign(RecordedLedgers):
        wrong = None

        async def exchange(self, name, claim):
            grant = await super().exchange(name, claim)
            return grant if self.wrong is None else {**grant, **self.wrong} if self.wrong else {}

    ledgers, observed = Foreign(), []
    [shared] = sharing("f@1", **{"max-concurrency": 8, "rate": "10/second"})
    joining = Coordinator(ledgers, [shared], observe=lambda seconds, good: observed.append(good))
    await joining.open()
    with caplog.at_level("INFO", logger=coordinator.__name__):
        ledgers.wrong, observed[:] = wrong, []
        await eventually(lambda: shared.call_back() or observed.count(False) > 2)
        assert set(observed) == {False}
        ledgers.wrong = None
        await eventually(lambda: shared.call_back() or True in observed)
    await joining.close()
    assert [record.message for record in caplog.records] == ["guard is not coordinated", "guard is coordinated again"]
    assert "the answer is no grant" in caplog.records[0].why
