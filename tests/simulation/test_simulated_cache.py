"""Worlds whose servers share a cache: owners crash, leases expire, the store fails, clocks differ."""

import asyncio
import dataclasses
import functools
import random
from typing import Any

import pytest

from tests.simulation import spark, world
from tests.simulation.drawing import drawn
from tests.simulation.functions import Behaviour
from tests.simulation.scenario import SERVER_FAULTS
from tests.simulation.servers import SimulatedServer
from tests.simulation.world import World, run, worlds
from tests.udf_server.outcomes_only import OutcomesOnly
from udf_server.base.key_value_store import BEGINNING_BYTES, StoreError
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores.leases import LEASE_SECONDS
from udf_server.stores.memory import MemoryStore

SEEDS = 12
"""Of each mode and store."""


class Space:
    """What the servers of one world share."""

    def __init__(self, seed, failing):
        self.random = random.Random(f"cache {seed}")
        self.failing = failing
        self.entries: dict[Any, Any] = {}
        self.claims: dict[Any, Any] = {}
        self.hits = self.taken_over = 0


class SimulatedStore(OutcomesOnly):
    """A store behind a network that is slow and may fail. A claim ends a lease after its server has crashed."""

    def __init__(self, space, clock):
        self.space, self.clock = space, clock

    async def _answer(self):
        await asyncio.sleep(self.space.random.choice((0.0, 0.001, 0.05)))
        if self.space.failing and self.space.random.random() < 0.2:
            if self.space.random.random() < 0.3:
                await asyncio.sleep(30)
            raise StoreError("the store fails")

    async def get(self, function, keys):
        await self._answer()
        now = self.clock()
        found = [self.space.entries.get((function, key), (None, 0.0)) for key in keys]
        values = [entry if until > now else None for entry, until in found]
        self.space.hits += sum(value is not None for value in values)
        return values

    async def put(self, function, entries, seconds):
        await self._answer()
        for key, entry in entries:
            self.space.entries[function, key] = entry, self.clock() + seconds
            self.space.claims.pop((function, key), None)

    async def claim(self, function, keys, useless):
        await self._answer()
        me: Any = asyncio.get_running_loop()
        granted = []
        for key in keys:
            owner, since = self.space.claims.get((function, key), (None, 0.0))
            lost = owner is not None and not owner.alive and self.clock() > since + LEASE_SECONDS
            self.space.taken_over += lost
            entry, _ = self.space.entries.get((function, key), (b"", 0.0))
            empty = entry[:BEGINNING_BYTES] == useless.get(key, b"")
            mine = empty and (owner in (None, me.process) or lost)
            if mine:
                self.space.claims[function, key] = me.process, self.clock()
            granted.append(mine)
        return granted

    async def release(self, function, keys):
        await self._answer()
        me: Any = asyncio.get_running_loop()
        for key in keys:
            if self.space.claims.get((function, key), (None,))[0] is me.process:
                del self.space.claims[function, key]


@pytest.mark.parametrize("failing", [False, True], ids=["works", "fails"])
@pytest.mark.parametrize("mode", ["safety", "liveness"])
def test_no_world_with_a_shared_cache_violates_an_oracle(mode, failing, monkeypatch):
    current = []

    def serving(self, services):
        space, clock = current[-1], services.clock
        skew, store = space.random.uniform(-300, 300), SimulatedStore(space, clock)
        cache = OutcomeCache(store, services.metrics, clock=clock, wall=lambda: 1e9 + clock() + skew)
        return dataclasses.replace(services, cache=cache)

    options_of = spark.options_of

    @functools.wraps(options_of)
    def with_cache(plan):
        return {**options_of(plan), "cache-ttl": "1 h"}

    monkeypatch.setattr(SimulatedServer, "serving", serving)
    # A call may go on after its stream until its deadline, and then a write that fails is tried again for a minute.
    monkeypatch.setattr(world, "SETTLE_SECONDS", 200.0)
    problems, hits = {}, 0
    with worlds():
        for seed in range(2_000, 2_000 + SEEDS):
            current.append(Space(seed, failing))
            with monkeypatch.context() as patch:
                patch.setattr(spark, "options_of", with_cache)
                result = run(drawn(seed, mode))
            hits += current[-1].hits
            if result.problem:
                problems[seed] = result.problem
    assert problems == {}
    assert hits or failing or mode == "liveness", "tasks that run again find what was kept"


def test_a_row_whose_client_or_connection_is_lost_is_called_once(monkeypatch):
    """Whatever happens to clients and networks, a call that has begun ends, and its value is kept."""

    def serving(self, services):
        clock = services.clock
        cache = OutcomeCache(MemoryStore(1 << 24, clock), services.metrics, clock=clock, wall=clock)
        return dataclasses.replace(services, cache=cache)

    def with_cache(plan):
        return {**options_of(plan), "cache-ttl": "1 h"}

    def without_servers_that_fail(seed):
        scenario = drawn(seed, "safety")
        faults = tuple(each for each in scenario.faults if each.kind not in SERVER_FAULTS)
        tasks = tuple(_of_values(task, random.Random(f"rows {seed}")) for task in scenario.tasks)
        return dataclasses.replace(
            scenario, servers=1, tasks=tasks, faults=tuple(dataclasses.replace(each, server=0) for each in faults),
            jobs=(), limits=None, hedge=None,
        )  # fmt: skip

    options_of = spark.options_of
    monkeypatch.setattr(SimulatedServer, "serving", serving)
    monkeypatch.setattr(spark, "options_of", with_cache)
    made = []
    monkeypatch.setattr(World, "begin", functools.partialmethod(_begin, World.begin, made))
    problems, replayed = {}, 0
    with worlds():
        for seed in range(5_000, 5_000 + 4 * SEEDS):
            result = run(without_servers_that_fail(seed))
            replayed += result.replays
            twice = {x: count for x, count in made[-1].rows.calls.items() if count > 1}
            if result.problem or twice:
                problems[seed] = result.problem or f"called more than once: {twice}"
    assert problems == {}
    assert replayed, "some rows were sent again"


def _begin(begun, begin, made):
    made.append(begun)
    begin(begun)


def _of_values(task, rows):
    """The task with rows that have values, in functions that are called row by row: a retry is a call, too."""
    behaviours = tuple(Behaviour("value", rows.uniform(0, task.timeout / 20)) for _ in task.rows)
    return dataclasses.replace(task, rows=behaviours, functions=tuple(rows.choice(("slow", "threaded")) for _ in "1"))
