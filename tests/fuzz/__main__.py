"""`python -m tests.fuzz`: 100,000 streams of invalid bytes and as many invalid queries, then 200 rounds of attacks.

It fails for a crash, a hang, a leak, an untyped error, and if the attacked server uses too much memory or time.
"""

import argparse
import asyncio
import logging
import sys
import time

from tests.fuzz.hostile import Hostile
from tests.fuzz.sql import SqlFuzzer
from tests.fuzz.wire import Fuzzer

GROWTH = 64 << 20
THREADS = 64
"""The number of threads that the functions of a server may start on demand, at any time."""
TRIES_PER_ROUND = 500


def attacked(hostile, rounds):
    """Run these rounds of attacks; print and return their problems."""
    began = time.monotonic()
    hostile.run(rounds)
    seconds = time.monotonic() - began
    print(
        f"{hostile.rounds} rounds of {hostile.attacks} attacks in {seconds:.0f} s, seed {hostile.seed}; their streams:"
    )
    print(", ".join(f"{count:,} {end}" for end, count in hostile.ends.most_common()))
    print(hostile.report)
    for problem in hostile.problems[:10]:
        print(problem)
    return hostile.problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="the number of a round of attacks: that one alone")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if asked.only:
        sys.exit(1 if attacked(Hostile(asked.seed), range(int(asked.only), int(asked.only) + 1)) else 0)
    fuzzer, began = Fuzzer(asked.seed), time.monotonic()
    asyncio.run(fuzzer.run(asked.tries))
    for end, count in fuzzer.ends.most_common():
        print(f"{count:8,}  {end}")
    print(f"{asked.tries:,} tries in {time.monotonic() - began:.0f} s, seed {asked.seed}; after the first quarter:")
    print(f"memory {fuzzer.grown / (1 << 20):+.1f} MB, threads {fuzzer.more_threads:+}, files {fuzzer.more_files:+}")
    queries = SqlFuzzer(asked.seed)
    queries.run(asked.tries)
    print("queries: " + ", ".join(f"{count:,} {end}" for end, count in queries.ends.most_common()))
    problems = [*fuzzer.problems, *queries.problems]
    for problem in problems[:20]:
        print(problem)
    problems += attacked(Hostile(asked.seed), range(asked.tries // TRIES_PER_ROUND))
    bad = problems or fuzzer.grown > GROWTH or fuzzer.more_threads > THREADS or fuzzer.more_files > 4
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
