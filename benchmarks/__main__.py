"""`python -m benchmarks --suite scalar`: runs suites, prints tables, writes build/bench/<suite>.json."""

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path

from benchmarks.aggregate import run_aggregate
from benchmarks.batching import run_batching
from benchmarks.cache import run_cache
from benchmarks.charts import write_chart
from benchmarks.fleet import run_fleet
from benchmarks.groups import run_groups
from benchmarks.growth import run_growth
from benchmarks.http import run_http
from benchmarks.limits import run_limits
from benchmarks.models import run_models
from benchmarks.parquet import run_parquet
from benchmarks.peers.suite import run_peers
from benchmarks.plain_sql import run_plain_sql
from benchmarks.planning import run_planning
from benchmarks.process import run_process
from benchmarks.results import Results
from benchmarks.scalar import run_scalar
from benchmarks.udfbench.suite import run_udfbench
from benchmarks.window import run_window

SUITES: dict[str, Callable[[Results, bool], None]] = {
    "scalar": run_scalar,
    "aggregate": run_aggregate,
    "window": run_window,
    "process": run_process,
    "parquet": run_parquet,
    "peers": run_peers,
    "growth": run_growth,
    "groups": run_groups,
    "limits": run_limits,
    "planning": run_planning,
    "plain_sql": run_plain_sql,
    "cache": run_cache,
    "batching": run_batching,
    "fleet": run_fleet,
    "models": run_models,
    "http": run_http,
    "udfbench": run_udfbench,
}


def main() -> None:
    """Runs the suites that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--suite", choices=[*SUITES, "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="small inputs, to see that all runs; not for numbers")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory of the JSON files")
    chosen = parser.parse_args()
    names = list(SUITES) if chosen.suite == "all" else [chosen.suite]
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # clients log a warning when a server ends
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"{cores} cores, Python {platform.python_version()}, {platform.machine()}; load before: {load:.2f}")
    if load > 0.5:
        print("other processes are using this machine: the numbers below are too low; run again when it is quiet")
    for name in names:
        print(f"{name}:")
        results = Results(name)
        results.add("load_before", load, "load average of the last minute; 0 is a quiet machine")
        SUITES[name](results, chosen.quick)
        written = [results.write(chosen.output), write_chart(name, results.numbers, chosen.output)]
        print("written to " + " and ".join(str(path) for path in written if path))


if __name__ == "__main__":
    main()
