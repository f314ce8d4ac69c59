"""`python -m tests.chaos`: runs every fault, prints the table, and fails if a row was lost, doubled or wrong.

A fault that did not occur during its job is reported, but is no failure.
"""

import argparse
import os
import sys

from tests.chaos.driver_killed import driver_killed
from tests.chaos.faults import FAULTS
from tests.chaos.in_spark import SPARK_FAULTS
from tests.chaos.report import as_table, line_of


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7, help="which servers, when")
    parser.add_argument("--scale", type=int, default=1, help="divides the number of rows")
    parser.add_argument("--only", default="", help="names of faults, with commas between them")
    parser.add_argument("--no-spark", action="store_true", help="only jobs below Spark")
    asked = parser.parse_args()
    wanted = [name for name in asked.only.split(",") if name]
    lines, bad, idle = [], [], []
    for fault in (*FAULTS, *(() if asked.no_spark else (*SPARK_FAULTS, driver_killed))):
        if wanted and fault.__name__ not in wanted:
            continue
        tally = fault(asked.scale, asked.seed)
        lines.append(line_of(fault, tally))
        print(lines[-1], flush=True)
        if not tally.good:
            bad.append(fault.__name__)
        if tally.not_exercised:
            idle.append(fault.__name__)
    print(f"\n{as_table(lines)}\n\nseed {asked.seed}; {len(lines)} faults, {len(bad)} with lost, doubled or wrong rows")
    if idle:
        print(f"not exercised: {', '.join(idle)}")
    sys.stdout.flush()
    # Channels to servers that are gone have threads that would delay the exit.
    os._exit(1 if bad else 0)


if __name__ == "__main__":
    main()
