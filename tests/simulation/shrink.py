"""Makes a failing scenario smaller: fewer faults, tasks and rows, as long as the same oracle is not content."""

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.scenario import Scenario
from tests.simulation.world import Result, run

__all__ = ["shrunk"]


def shrunk(result: Result, most_runs: int = 150) -> Result:
    """The smallest scenario that was found to fail in the same way."""
    kind = _kind(result.problem)
    improved = True
    while improved and most_runs > 0:
        improved = False
        for smaller in _smaller(result.scenario):
            most_runs -= 1
            tried = run(smaller)
            if _kind(tried.problem) == kind:
                result, improved = tried, True
                break
            if most_runs <= 0:
                break
    return result


def _kind(problem: str) -> str:
    """The problem without names and numbers."""
    return "".join(character for character in problem[:60] if not character.isdigit())


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for part in (scenario.faults[: len(scenario.faults) // 2], scenario.faults[len(scenario.faults) // 2 :]):
        if len(part) < len(scenario.faults):
            yield replace(scenario, faults=part)
    for index in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:index] + scenario.faults[index + 1 :])
    for index, task in enumerate(scenario.tasks):
        if len(scenario.tasks) > 1 and index == len(scenario.tasks) - 1:
            yield replace(scenario, tasks=scenario.tasks[:index])
        if len(task.rows) > 1:
            for rows in (task.rows[: len(task.rows) // 2], task.rows[:-1]):
                smaller = replace(task, rows=rows)
                yield replace(scenario, tasks=(*scenario.tasks[:index], smaller, *scenario.tasks[index + 1 :]))
    if scenario.servers > 1 and all(fault.server < scenario.servers - 1 for fault in scenario.faults):
        yield replace(scenario, servers=scenario.servers - 1, lasting=scenario.lasting[: scenario.servers - 2])
