"""python -m tests.simulation.fleet: run the scenarios of a fleet, print what they measure, and draw it."""

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.fleet.chart import write_chart
from tests.simulation.fleet.many import run_scenario
from tests.simulation.fleet.measures import Measures
from tests.simulation.fleet.scenarios import SCENARIOS, Size

FOUND = Path(__file__).with_name("measures.jsonl")
"""What was measured last: the table of docs/reliability.md."""
CHART = Path("docs/images/fleet.svg")
BUILD = Path("build")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--servers", type=int, default=50)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--document", action="store_true", help="write the table and the picture of the documentation")
    given = parser.parse_args()
    size = Size(given.clients, given.servers)
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(run_scenario, number, size, given.seed) for number in range(len(SCENARIOS))]
        measures = {}
        for scenario, run in zip(SCENARIOS, runs, strict=True):
            found = measures[scenario.name] = run.result()
            for phase in found.phases:
                print(phase, flush=True)
            print(f"reconnects of a client: 50 %, 99 %, most {found.reconnects}", flush=True)
    write(measures, size, *((FOUND, CHART) if given.document else (BUILD / "fleet.jsonl", BUILD / "fleet.svg")))
    return 0


def write(measures: Mapping[str, Measures], size: Size, table: Path, chart: Path) -> None:
    """Write a line per phase, and the chart."""
    rows = [
        {**dataclasses.asdict(size), **dataclasses.asdict(phase), "reconnects": found.reconnects}
        for found in measures.values()
        for phase in found.phases
    ]
    chart.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_chart(measures, chart)


if __name__ == "__main__":
    sys.exit(main())
