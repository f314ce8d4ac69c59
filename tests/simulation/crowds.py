"""Crowds: tasks whose rows wait for the few places of one function, so that it is seen whether they share them."""

from dataclasses import replace
from random import Random

from tests.simulation.functions import drawn_behaviour
from tests.simulation.scenario import PROBE, Scenario, TaskPlan

__all__ = ["crowded"]

ROWS = 120
PLACE_SECONDS = (0.0005, 0.02)
"""Shortest and longest time of a row, for each place. A worker takes several rows in one turn if they take less."""
AWAY_SECONDS = 0.5
AWAY_ROWS = 20
"""A stream that has sent this number of rows has none for some time, while the others go on: it misses turns."""


def crowded(random: Random, scenario: Scenario) -> Scenario:
    """The same scenario with tasks that wait for the places of one server, which can take rows of all of them."""
    assert scenario.limits is not None
    odd = random.choice((0.0, 0.0, 0.05))
    tasks = [_task(random, odd, scenario.limits.calls) for _ in range(random.choice((2, 3)))]
    callers = random.choice((0, 1, 1, 2))
    if callers == 1 or random.random() < 0.3:
        tasks[0] = replace(tasks[0], pause=AWAY_SECONDS, batch_rows=AWAY_ROWS)
    faults = tuple(replace(fault, server=0, client=fault.client % len(tasks)) for fault in scenario.faults)
    return replace(scenario, servers=1, tasks=tuple(tasks), faults=faults, callers=callers)


def _task(random: Random, odd: float, places: int) -> TaskPlan:
    shortest, longest = (seconds * places for seconds in PLACE_SECONDS)
    rows = tuple(drawn_behaviour(random, odd, shortest, longest) for _ in range(ROWS))
    sizes = (2, 3, 20)
    return replace(
        PROBE, rows=rows, timeout=30.0, pause=0.0, capacity=20, batch_rows=100, message_rows=random.choice(sizes)
    )
