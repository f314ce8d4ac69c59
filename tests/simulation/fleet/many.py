"""One scenario in a process of its own. Worker processes import this module, so it is not `__main__`."""

from tests.simulation.fleet.measures import Measures, measured
from tests.simulation.fleet.scenarios import SCENARIOS, Size
from tests.simulation.world import worlds

__all__ = ["run_scenario"]


def run_scenario(number: int, size: Size, seed: int) -> Measures:
    with worlds():
        return measured(SCENARIOS[number], size, seed)
