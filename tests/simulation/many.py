"""Many worlds in one process. Worker processes import this module, so it is not `__main__`."""

import itertools
import time
from collections.abc import Sequence

from tests.simulation.drawing import drawn
from tests.simulation.mutants import MUTANTS, found_at
from tests.simulation.report import Report, shown
from tests.simulation.shrink import shrunk
from tests.simulation.world import run, worlds

__all__ = ["find_mutant", "run_seeds"]


def run_seeds(seeds: Sequence[int], modes: Sequence[str]) -> tuple[Report, list[str]]:
    """Run these seeds in this process; the texts describe its first failure."""
    report, began = Report(), time.process_time()
    texts: list[str] = []
    with worlds():
        for seed, mode in itertools.product(seeds, modes):
            result = run(drawn(seed, mode))
            report.count(result)
            if result.problem and not texts:
                texts.append(shown(result, shrunk(result)))
    report.cpu_seconds = time.process_time() - began
    return report, texts


def find_mutant(number: int) -> tuple[int, str] | None:
    """The number of seeds until a mutant is found, and the mode."""
    with worlds():
        found = found_at(MUTANTS[number])
    return None if found is None else found[:2]
