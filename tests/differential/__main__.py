"""`python -m tests.differential`: random queries with remote functions, compared with Spark's own result."""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", default="7")
    parser.add_argument("--only", default="", help="a kind of case, or the number of one case: 'frame', '123'")
    parser.add_argument("--connect", action="store_true", help="run the queries over Spark Connect")
    parser.add_argument("--cases", type=int, help="stop after so many cases")
    parser.add_argument("--shrinking", type=float, default=60, help="seconds to shrink a difference for")
    asked = parser.parse_args()
    if asked.connect:
        os.environ["DIFFERENTIAL_CONNECT"] = "1"
    # The session starts when the module is imported.
    from tests.differential.loop import loop

    report = loop(
        asked.seed, asked.minutes * 60, only=asked.only, cases=asked.cases, shrinking=asked.shrinking,
        directory=Path("build/differential"),
    )  # fmt: skip
    sys.exit(1 if report.differences else 0)


if __name__ == "__main__":
    main()
