"""python -m tests.simulation: run the seeds of a mode, or one seed with its trace."""

import argparse
import gc
import json
import sys
import time
from pathlib import Path

from tests.simulation.mutants import MUTANTS, found_at
from tests.simulation.report import Report, shown
from tests.simulation.scenario import drawn
from tests.simulation.shrink import shrunk
from tests.simulation.world import run, worlds

COLLECT_EVERY = 50
"""Worlds between two collections: what processes that have ended hold is garbage in cycles."""
MOST_SHOWN = 5
FOUND = Path(__file__).with_name("mutants_found.jsonl")
"""Each mutant, and the seed and mode that found it: the table of docs/reliability.md."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds of each mode")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--mutants", action="store_true", help="plant each bug, and say which seed finds it")
    given = parser.parse_args()
    modes = ("safety", "liveness") if given.mode == "both" else (given.mode,)
    with worlds():
        if given.mutants:
            return _mutants()
        if given.seed is not None:
            return max(_one(given.seed, mode) for mode in modes)
        return _many(range(given.first, given.first + given.seeds), modes)


def _one(seed: int, mode: str) -> int:
    result = run(drawn(seed, mode))
    print("\n".join(result.trace))
    print(f"seed {seed}, {mode}: {len(result.trace)} lines, hash {result.hash}")
    if result.problem:
        print(shown(result, shrunk(result)))
    return int(bool(result.problem))


def _mutants() -> int:
    report = Report(mutants=len(MUTANTS))
    rows = []
    for mutant in MUTANTS:
        found = found_at(mutant)
        gc.collect()
        report.mutants_found += found is not None
        rows.append((mutant.what, *(found[:2] if found else (0, ""))))
        print(f"{mutant.what}: {found or 'not found'}", flush=True)
    report.write(Path("build/sim-mutants.json"))
    FOUND.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{report.mutants_found} of {report.mutants} found")
    return int(report.mutants_found < report.mutants)


def _many(seeds: range, modes: tuple[str, ...]) -> int:
    report, began = Report(), time.process_time()
    gc.freeze()
    for number, (mode, seed) in enumerate((mode, seed) for seed in seeds for mode in modes):
        result = run(drawn(seed, mode))
        report.add(result)
        if result.problem and len(report.failures) <= MOST_SHOWN:
            print(shown(result, shrunk(result)), flush=True)
        if number % COLLECT_EVERY == 0:
            gc.collect()
    report.cpu_seconds = round(time.process_time() - began, 1)
    report.write(Path("build/sim.json"))
    print(
        f"{report.seeds} worlds, {len(report.failures)} failures, {report.virtual_seconds:.0f} virtual seconds, "
        f"{report.rows} rows, {report.replays} replays, {report.cpu_seconds} s of CPU time"
    )
    return int(bool(report.failures))


if __name__ == "__main__":
    sys.exit(main())
