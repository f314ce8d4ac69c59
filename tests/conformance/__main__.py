"""`python -m tests.conformance --cases FOLDER [--functions FILE.py]`."""

import argparse
import sys
from pathlib import Path

from spark_client import EmbeddedServerFailed
from tests.conformance.report import FileReport, Outcome, failures, summary, write_json
from tests.conformance.runner import run_folder

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "conformance.json"


def main() -> int:
    """0 if no case failed, 1 if one did, 2 if nothing can be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--cases", type=Path, default=ROOT.parent / "shared" / "conformance", help="folder of cases")
    parser.add_argument("--functions", type=Path, help="plugin file whose functions come before those made from words")
    arguments = parser.parse_args()
    if not any(arguments.cases.glob("*.json")):
        parser.error(f"no case files in {arguments.cases}")
    if arguments.functions is not None and not arguments.functions.is_file():
        parser.error(f"no file {arguments.functions}")

    def progress(report: FileReport) -> None:
        for line in failures(report):
            print(line, flush=True)

    try:
        reports = run_folder(arguments.cases, arguments.functions, progress=progress)
    except EmbeddedServerFailed as error:
        print(f"no server: {error}", file=sys.stderr)
        return 2
    for report in reports:
        print(summary(report))
    write_json(reports, REPORT)
    print(f"written to {REPORT}")
    return 1 if any(report.count(Outcome.FAILED) for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
