"""Streams are counted over processes: places follow the streams, and come back however a stream or a process ends."""

import asyncio

import pytest

from udf_server.limits import open_streams
from udf_server.limits.open_streams import OpenStreams
from udf_server.limits.sharing.claims import CoordinationFailed
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledger import LEASE_SECONDS
from udf_server.limits.sharing.ledgers import LocalLedgers


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """How long a stream waits decides nothing here: places that come back do so before."""
    monkeypatch.setattr(open_streams, "PATIENCE_SECONDS", 1.0)


class Processes:
    """Processes with one parent, whose clock the test sets forward."""

    def __init__(self, most):
        self.most, self.late, self.made = most, 0.0, []
        self.ledgers = LocalLedgers(lambda: asyncio.get_running_loop().time() + self.late)

    def start(self, ledgers=None):
        streams = OpenStreams(self.most, Coordinator(ledgers or self.ledgers, ()))
        self.made.append(streams)
        return streams

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        for streams in self.made:
            await streams.close()


@pytest.mark.slow
async def test_one_process_may_have_all_places_and_none_is_left_for_another_one():
    async with Processes(3) as processes:
        one, other = processes.start(), processes.start()
        assert [await one.enter("a", 9) for _ in range(3)] == ["", "", ""]
        assert await other.enter("b", 9) == "the server has 3 streams open and takes no more"
        assert (len(one), len(other), other.of("b")) == (3, 0, 0)
        one.leave("a")
        assert await other.enter("b", 9) == ""


@pytest.mark.slow
async def test_the_streams_of_a_caller_are_counted_over_processes_and_those_of_others_apart():
    async with Processes(99) as processes:
        one, other = processes.start(), processes.start()
        assert (await one.enter("a", 2), await other.enter("a", 2)) == ("", "")
        assert await one.enter("a", 2) == "a has 2 streams open and gets no more"
        assert await one.enter("b", 2) == ""
        other.leave("a")
        assert await one.enter("a", 2) == ""
        assert (one.of("a"), other.of("a"), len(one)) == (2, 0, 3)


@pytest.mark.slow
async def test_streams_that_are_opened_at_once_never_exceed_the_limit():
    async with Processes(10) as processes:
        servers = [processes.start() for _ in range(3)]
        found = await asyncio.gather(*(servers[number % 3].enter("a", 99) for number in range(30)))
        assert (found.count(""), sum(map(len, servers))) == (10, 10)


@pytest.mark.slow
async def test_a_process_that_leaves_returns_its_places_at_once_and_one_that_was_killed_with_its_lease():
    async with Processes(2) as processes:
        drained, killed, other = processes.start(), processes.start(), processes.start()
        assert (await drained.enter("a", 9), await killed.enter("a", 9)) == ("", "")
        await drained.close()
        assert await other.enter("a", 9) == ""
        assert await other.enter("a", 9) != ""
        for task in killed._coordinator._tasks.values():
            task.cancel()
        processes.late = LEASE_SECONDS + 1
        assert await other.enter("a", 9) == ""


class Silent(LocalLedgers):
    """Those of a parent that does not answer."""

    async def exchange(self, name, claim):
        raise CoordinationFailed("the parent process does not answer")


@pytest.mark.slow
async def test_without_an_answer_a_process_counts_alone(monkeypatch):
    monkeypatch.setattr("udf_server.limits.sharing.account.AWAY_SECONDS", 0.0)
    async with Processes(2) as processes:
        alone = processes.start(Silent())
        assert [await alone.enter("a", 9) == "" for _ in range(3)] == [True, True, False]


@pytest.mark.slow
async def test_idle_callers_are_forgotten_and_counted_again_when_they_return(monkeypatch):
    monkeypatch.setattr(open_streams, "IDLE_SECONDS", 0.0)
    async with Processes(9) as processes:
        one, other = processes.start(), processes.start()
        for _ in range(3):
            assert await one.enter("a", 1) == ""
            one.sweep()
            assert await other.enter("a", 1) != ""
            one.leave("a")
            one.sweep()
            other.sweep()
        await asyncio.gather(*one._coordinator._leaving, *other._coordinator._leaving)
        assert (one._by_caller, list(processes.ledgers._ledgers)) == ({}, ["streams"])


async def test_a_client_that_leaves_while_it_waits_holds_no_place():
    async with Processes(1) as processes:
        one, other = processes.start(), processes.start()
        assert await one.enter("a", 9) == ""
        waiting = asyncio.create_task(other.enter("a", 9))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        one.leave("a")
        assert await other.enter("a", 9) == ""
        assert (len(one), len(other)) == (0, 1)


async def test_without_other_processes_nothing_is_asked():
    streams = OpenStreams(2)
    assert (await streams.enter("a", 1), await streams.enter("b", 1)) == ("", "")
    assert await streams.enter("a", 1) == "the server has 2 streams open and takes no more"
    streams.leave("b")
    assert await streams.enter("a", 1) == "a has 1 streams open and gets no more"
    assert len(streams) == 1
