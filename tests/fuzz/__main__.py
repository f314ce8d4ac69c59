"""`python -m tests.fuzz`: 100,000 streams of odd bytes and as many odd queries; fails on what should not be.

That is a crash, a hang, a leak or an untyped error.
"""

import argparse
import asyncio
import logging
import sys
import time

from tests.fuzz.sql import SqlFuzzer
from tests.fuzz.wire import Fuzzer

GROWTH = 64 << 20
THREADS = 64
"""What the functions of a server may start on demand, however late."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
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
    bad = problems or fuzzer.grown > GROWTH or fuzzer.more_threads > THREADS or fuzzer.more_files > 4
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
