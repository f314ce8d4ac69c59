"""Reloads and crashes of groups, in simulated servers: no row is lost, doubled, or called by replaced code."""

import dataclasses
import itertools
from typing import Any

import pytest

from spark_client.executor.stream import connecting, connection
from spark_client.executor.stream.ports import Ports
from tests.simulation.drawing import drawn
from tests.simulation.grouped import GroupedWorld
from tests.simulation.mutant import Mutant, nothing
from tests.simulation.scenario import LEDGER_FAULTS
from tests.simulation.world import run, worlds
from udf_server.streams import entrance
from udf_server.streams.relay import Relay

SEEDS = 40


def _first_routes(original: Any) -> Any:
    def current(self: Any) -> Any:
        self.first = getattr(self, "first", None) or original(self)
        return self.first

    return current


MUTANTS = (
    Mutant("the process at a port serves streams of every route", entrance, "require_route", nothing),
    Mutant("a relay does not hear of reloads", Relay, "_current", _first_routes),
    Mutant("a stream that cannot be opened at a port is not passed on", Relay, "stream", nothing),
)


def scenario_of(seed):
    """The tasks, servers and faults of a seed, without what concerns other oracles. Every other one has no faults."""
    scenario = drawn(seed, "safety")
    faults = tuple(fault for fault in scenario.faults if fault.kind not in LEDGER_FAULTS and seed % 2)
    return dataclasses.replace(
        scenario, guard=None, hedge=None, shared=False, budget=None, limits=None, jobs=(), callers=0, faults=faults
    )


def outcome(seed, monkeypatch, made, *, reachable=True):
    known = Ports()
    for module in (connection, connecting):
        monkeypatch.setattr(module, "process_ports", lambda: known)

    def make(scenario):
        made.append(GroupedWorld(scenario, reachable=reachable))
        return made[-1]

    return run(scenario_of(seed), make)


@pytest.mark.parametrize("reachable", [True, False])
def test_reloads_and_crashes_of_groups_lose_and_double_no_row(monkeypatch, reachable):
    made = []
    with worlds():
        results = [outcome(seed, monkeypatch, made, reachable=reachable) for seed in range(SEEDS)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}
    assert sum(result.replays for result in results) > SEEDS / 4
    direct, passed_on = sum(world.direct for world in made), sum(world.passed_on for world in made)
    assert (direct > 2 * passed_on > 0) if reachable else (direct == 0 < passed_on)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_planted_bug_of_groups_is_found_within_a_few_seeds(monkeypatch, mutant):
    with worlds():
        for seed, reachable in itertools.product(range(SEEDS), (True, False)):
            with mutant.planted():
                problem = outcome(seed, monkeypatch, [], reachable=reachable).problem
            if problem and not outcome(seed, monkeypatch, [], reachable=reachable).problem:
                return
    pytest.fail("no seed has found it")
