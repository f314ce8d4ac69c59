"""Settings of callers: what is refused at the start, limits of one caller, and its budget of a day."""

import asyncio
import threading
from dataclasses import replace

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import ErrorBudget
from spark_client.base.budget import SessionBudget
from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.base.security import Security
from tests.spark_client.scripted import call_of
from tests.spark_client.streams import rows_through
from tests.udf_server.limits.paying import Calls
from tests.udf_server.talk import eventually
from udf_server.base.errors import BudgetSpent, InvalidConfig
from udf_server.base.fairness import Priority
from udf_server.hosting.registry import Registry
from udf_server.limits.budget_costs import Terms
from udf_server.limits.budgets import IDLE_SECONDS, Budgets
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers
from udf_server.limits.stream_budget import StreamBudget
from udf_server.security.access import Access, Caller, hashed, new_token
from udf_server.security.callers import CallerSettings, parse_callers
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.server import Server
from udf_server.streams.services import Admission


@udf.scalar(timeout="60 s")
async def ask(x: int, context: udf.CallContext) -> int:
    await asyncio.sleep(0.001)
    context.spend(usd=0.25)
    return x


def results(target, security, values, function=ask, budget=None, chunk=10):
    call = call_of(function, target)
    call = replace(call, config=ClientConfig(target, 5.0, security, budget=budget))
    return rows_through(call, values, chunk)[0]


def refused(found):
    return [value.message for value in found.values() if getattr(value, "code", None) is ErrorCode.BUDGET_SPENT]


@pytest.fixture
def callers(access, tmp_path):
    """Writes the access rules of callers. Returns the path, and how each caller authenticates."""

    def write(*names):
        rules, security = [], {}
        for name in names:
            token = new_token()
            path = tmp_path / f"{name}.token"
            path.write_text(token)
            rules.append(f'[{name}]\ntoken_sha256 = "{hashed(token)}"\n')
            security[name] = Security(token_file=str(path))
        return access("".join(rules)), security

    return write


# The settings.


def test_a_table_for_all_others_has_the_defaults_of_those_that_are_named():
    found = parse_callers(
        {"*": {"max_streams": 5, "share": 2}, "etl": {"share": 3, "budget": {"usd": 50, "errors": 9}}}
    )
    assert found["*"] == CallerSettings(share=2.0, max_streams=5)
    assert found["etl"] == CallerSettings(3.0, Priority.BATCH, 5, None, Terms((("usd", 50.0),), ErrorBudget(9.0)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("share = 0", r"callers.etl: option 'share': '?0'? is not a number from 0.001 to 1,000"),
        ("share = true", "option 'share': True is not a number"),
        ("share = nan", "option 'share': nan is not a number"),
        ("shares = 2", "callers.etl: unknown option 'shares', did you mean 'share'"),
        ("max_streams = 0", "option 'max-streams': 0 is not a whole number of at least 1"),
        ("max_rows_in_flight = 1.5", "option 'max-rows-in-flight': 1.5 is not a whole number of at least 1"),
        ('priority = "high"', "option 'priority': 'high' is not one of interactive, batch"),
        ("budget = 50", r"callers.etl: budget: 50 has no units; expected a mapping such as {'tokens': 120}"),
        ("budget = {}", r"callers.etl: budget: it is empty; expected amounts by unit, such as {usd = 50}"),
        ("budget = {usd = 0}", "callers.etl: budget: usd=0 is not a number of more than 0"),
        ("budget = {usd = -1}", "callers.etl: budget: usd=-1 is not a number of at least 0"),
        ('budget = {errors = "1 %"}', "callers.etl: budget: errors='1 %' is not a number"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_found_and_expected(tmp_path, table, message):
    path = tmp_path / "server.toml"
    path.write_text(f"[callers.etl]\n{table}\n")
    with pytest.raises(InvalidConfig, match=message):
        load_config(path)


def test_a_table_that_is_none_and_a_budget_without_a_name_are_refused():
    with pytest.raises(InvalidConfig, match=r"callers.etl: 3 is not a table; expected one with share"):
        parse_callers({"etl": 3})
    with pytest.raises(InvalidConfig, match=r"callers.\*: budget: a budget needs the name of a caller"):
        parse_callers({"*": {"budget": {"usd": 50}}})


async def test_names_that_no_caller_can_have_are_refused(callers):
    path, _ = callers("etl")
    registry = Registry([("test", ask)])
    with pytest.raises(InvalidConfig, match=r"callers.elt: unknown principal .* 'elt', did you mean 'etl'\?"):
        Server(ServerConfig(access_file=path, callers=parse_callers({"elt": {"share": 3}})), registry)
    with pytest.raises(InvalidConfig, match=r"callers.etl: callers have no names, because neither access_file nor"):
        Server(ServerConfig(callers=parse_callers({"etl": {"share": 3}})), registry)


def test_callers_without_a_name_have_the_settings_of_others():
    access = Access(None, settings=parse_callers({"*": {"share": 2, "priority": "interactive"}}))
    party = access.identify((), {}, "ipv4:10.0.0.7:1").party("job")
    assert (party.caller, party.share, party.priority) == ("ipv4:10.0.0.7", 2.0, Priority.INTERACTIVE)


# Limits.


async def test_streams_of_a_caller_wait_for_their_own_rows_and_not_for_those_of_others():
    admission, settings = Admission(), CallerSettings(max_rows_in_flight=100)
    etl, adhoc = Caller("etl", settings=settings), Caller("adhoc", settings=settings)
    await admission.take("f@1", 80, 10, patient=lambda: True, caller=etl)
    waiting = asyncio.create_task(admission.take("g@1", 30, 10, patient=lambda: True, caller=etl))
    await admission.take("f@1", 90, 10, patient=lambda: True, caller=adhoc)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    admission.give_back("f@1", 20, 0, etl)
    await waiting
    assert (admission.rows_of("etl"), admission.rows_of("adhoc"), admission.rows("f@1")) == (90, 90, 150)
    for function, rows, caller in (("f@1", 60, etl), ("g@1", 30, etl), ("f@1", 90, adhoc)):
        admission.give_back(function, rows, 10, caller)
    assert not admission._rows_of


def test_a_caller_has_no_more_rows_in_flight_than_its_limit_and_none_is_lost(serve, callers):
    path, security = callers("etl", "adhoc")
    most, found = [0], []

    @udf.scalar(name="ask", timeout="60 s", buffer_capacity=500)
    async def waits(x: int) -> int:
        most[0] = max(most[0], serving.server.service.admission.rows_of("etl"))
        await asyncio.sleep(0.001)
        return x

    serving = serve(waits, access_file=path, callers=parse_callers({"etl": {"max_rows_in_flight": 60}}))

    def run(name):
        found.append(results(serving.target, security[name], list(range(200)), waits, chunk=25))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("etl", "etl", "adhoc")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [{row: row for row in range(200)}] * 3
    assert 25 < most[0] <= 60
    assert serving.metric("udf_caller_rows_total", caller="etl") == 400
    assert serving.metric("udf_caller_rows_total", caller="adhoc") == 0  # it is not named, so it is not counted


@pytest.mark.slow
def test_a_caller_has_no_more_streams_than_its_limit(serve, callers):
    path, security = callers("etl", "adhoc")
    began, release = threading.Semaphore(0), threading.Event()

    @udf.scalar(name="ask", timeout="5 s")
    async def waits(x: int) -> int:
        began.release()
        await asyncio.get_running_loop().run_in_executor(None, release.wait, 30)
        return x

    serving = serve(waits, access_file=path, callers=parse_callers({"etl": {"max_streams": 1}}))
    first = threading.Thread(target=lambda: results(serving.target, security["etl"], [0], waits))
    first.start()
    assert began.acquire(timeout=20)
    with pytest.raises(ServerUnavailable, match="OVERLOADED: etl has 1 streams open and gets no more"):
        results(serving.target, security["etl"], [0], waits)
    assert serving.metric("udf_streams_rejected_total", code="OVERLOADED") > 0
    release.set()
    first.join(20)
    assert results(serving.target, security["adhoc"], [0], waits) == {0: 0}


# Budgets of a day.


def test_all_jobs_of_a_caller_spend_its_budget_of_the_day_together(serve, callers):
    path, security = callers("etl", "adhoc")
    serving = serve(ask, access_file=path, callers=parse_callers({"etl": {"budget": {"usd": 10}}}))
    assert refused(results(serving.target, security["etl"], list(range(30)))) == []
    # The rest is 2.50: the job's own budget has more than that.
    bound = SessionBudget.of({"usd": 20}, "on-error")
    messages = refused(results(serving.target, security["etl"], list(range(30)), budget=bound))
    assert len(messages) == 20
    assert messages[0].startswith("the budget of caller 'etl' for 20")
    assert messages[0].endswith("(UTC) is spent: 10 of 10 usd")
    assert refused(results(serving.target, security["adhoc"], list(range(80)))) == []
    asyncio.run_coroutine_threadsafe(beats(serving), serving.loop).result(20)
    assert serving.metric("udf_caller_budget_used_ratio", caller="etl", unit="usd") == 1.0


async def beats(serving):
    await eventually(lambda: serving.metric("udf_caller_budget_used_ratio", caller="etl", unit="usd") == 1.0)


def test_a_job_of_a_caller_with_a_budget_is_bounded_by_its_own_too(serve, callers):
    path, security = callers("etl")
    serving = serve(ask, access_file=path, callers=parse_callers({"etl": {"budget": {"usd": 100, "calls": 1000}}}))
    bound = SessionBudget.of({"usd": 5}, "on-error")
    messages = refused(results(serving.target, security["etl"], list(range(30)), budget=bound))
    assert (len(messages), messages[0]) == (10, "the budget of this job is spent: 5 of 5 usd")
    (daily,) = serving.server._budgets._daily.values()
    spent = {unit: spent for unit, spent, _ in daily.today.amounts()}
    assert spent == {"usd": 5.0, "calls": 20.0}  # what its job refused has taken nothing


class Days:
    """The budgets of a server whose clock a test sets."""

    def __init__(self, ledgers):
        self.wall, self.now = 1_700_000_000.0, 0.0
        self.coordinator = Coordinator(ledgers, ())
        self.budgets = Budgets(self.coordinator, "id", clock=lambda: self.now, wall=lambda: self.wall)
        self.daily = self.budgets.daily("etl", Terms((("usd", 10.0),)))
        self.calls = Calls(StreamBudget(lambda: self.daily.today, "f@1"))

    async def spend(self, amount):
        call = self.calls.begin(Caller("etl").party(""), 10.0, usd=amount)
        await eventually(lambda: call.began or call.refused)
        if call.refused:
            raise BudgetSpent(call.refused)
        call.end(usd=amount)


async def test_a_new_day_has_the_whole_budget_and_what_runs_ends_in_the_old_one():
    ledgers = LocalLedgers()
    days = Days(ledgers)
    await days.coordinator.open()
    await days.spend(10.0)
    with pytest.raises(BudgetSpent, match=r"the budget of caller 'etl' for 2023-11-14 \(UTC\) is spent: 10 of 10 usd"):
        await days.spend(1.0)
    days.wall += 86_400
    days.budgets.sweep()
    await days.spend(9.0)
    assert list(days.budgets.used()) == [("etl", "usd", 0.9)]
    assert len(days.budgets._jobs) == 2
    days.now += IDLE_SECONDS + 1
    days.budgets.sweep()
    assert list(days.budgets._jobs.values()) == [days.daily.today]
    await days.coordinator.close()


async def test_servers_whose_clocks_differ_spend_each_day_once_together():
    ledgers = LocalLedgers()
    one, two = Days(ledgers), Days(ledgers)
    two.wall += 86_400 - 1_700_000_000 % 86_400 + 60  # some minutes after midnight there, before it here
    two.budgets.sweep()
    await one.coordinator.open()
    await two.coordinator.open()
    await one.spend(10.0)
    await two.spend(6.0)
    one.wall = two.wall
    one.budgets.sweep()
    await one.spend(4.0)
    with pytest.raises(BudgetSpent, match=r"2023-11-15 \(UTC\) is spent: 10 of 10 usd"):
        await one.spend(1.0)
    await one.coordinator.close()
    await two.coordinator.close()
