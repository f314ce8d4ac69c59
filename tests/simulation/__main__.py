"""python -m tests.simulation: run the seeds of both modes and the planted bugs, or one seed with its trace."""

import argparse
import itertools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.drawing import drawn
from tests.simulation.many import find_mutant, run_seeds
from tests.simulation.mutants import MUTANTS
from tests.simulation.report import Report, shown
from tests.simulation.shrink import shrunk
from tests.simulation.world import run, worlds

CHUNK = 25
"""Seeds that one process runs at a time, between two collections of what their processes hold."""
FOUND = Path(__file__).with_name("mutants_found.jsonl")
"""Each mutant, and the seed and mode that found it: the table of docs/reliability.md."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds of each mode")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args()
    modes = ("safety", "liveness") if given.mode == "both" else (given.mode,)
    if given.seed is not None:
        with worlds():
            return max(_one(given.seed, mode) for mode in modes)
    report = Report()
    # A new process has no state of this one, so a seed gives the same run in any of them.
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        seeds = range(given.first, given.first + given.seeds)
        chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
        for part, texts in pool.map(run_seeds, chunks, itertools.repeat(modes)):
            report.add(part)
            for text in texts:
                print(text, flush=True)
        rows = []
        for mutant, found in zip(MUTANTS, pool.map(find_mutant, range(len(MUTANTS))), strict=True):
            report.mutants += 1
            report.mutants_found += found is not None
            rows.append((mutant.what, *(found or (0, ""))))
            if found is None:
                print(f"not found: {mutant.what}", flush=True)
    FOUND.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report.write(Path("build/sim.json"))
    print(report)
    return int(bool(report.failures) or report.mutants_found < report.mutants)


def _one(seed: int, mode: str) -> int:
    result = run(drawn(seed, mode))
    print("\n".join(result.trace))
    print(f"seed {seed}, {mode}: {len(result.trace)} lines, hash {result.hash}")
    if result.problem:
        print(shown(result, shrunk(result)))
    return int(bool(result.problem))


if __name__ == "__main__":
    sys.exit(main())
