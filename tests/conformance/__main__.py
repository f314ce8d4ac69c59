"""`python -m tests.conformance --cases FOLDER [--functions FILE.py] [--workers 2] [--mutate] [--cache]`."""

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.conformance.page import write_page
from tests.conformance.reading import CaseFile, load_folder
from tests.conformance.report import Entry, line, score, summary, write_json
from tests.conformance.verdict import Status
from tests.conformance.workers import WorkerFailed, run_all

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "conformance.json"


def main() -> int:
    """Returns 0 on success; 1 if a case failed, lacks a function or is malformed, or an alteration was not noticed; 2
    if nothing can be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--cases", type=Path, default=ROOT.parent / "shared" / "conformance", help="folder of cases")
    parser.add_argument("--functions", type=Path, help="file with the functions of the cases")
    parser.add_argument("--only", default="", help="run the cases whose id matches this pattern")
    parser.add_argument("--workers", type=int, default=2, help="processes with a Spark session each")
    parser.add_argument("--mutate", action="store_true", help="also judge altered expectations")
    parser.add_argument("--cache", action="store_true", help="keep values of scalar functions: see docs/caching.md")
    arguments = parser.parse_args()
    if not any(arguments.cases.glob("*.json")):
        parser.error(f"no case files in {arguments.cases}")
    if arguments.functions is not None and not arguments.functions.is_file():
        parser.error(f"no file {arguments.functions}")

    files = [_only(file, arguments.only) for file in load_folder(arguments.cases)]
    entries = [Entry(file.name, name, Status.MALFORMED.value, why) for file in files for name, why in file.broken]
    total = len(entries) + sum(len(file.cases) for file in files)
    for number, entry in enumerate(entries, 1):
        print(f"[{number}/{total}] {line(entry)}", flush=True)
    started = time.monotonic()
    try:
        with _cache() if arguments.cache else contextlib.nullcontext():
            for entry in run_all(
                arguments.cases, files, arguments.functions, arguments.workers, mutate=arguments.mutate
            ):
                entries.append(entry)
                print(f"[{len(entries)}/{total}] {line(entry)}", flush=True)
    except WorkerFailed as error:
        print(f"nothing can be run: {error}", file=sys.stderr)
        return 2
    place = {(file.name, case.id): number for number, (file, case) in enumerate((f, c) for f in files for c in f.cases)}
    entries.sort(key=lambda entry: (entry.file, place.get((entry.file, entry.id), -1)))
    print("\n".join(summary(entries)))
    noticed, made = score(entries)
    if arguments.mutate:
        print(f"{noticed} of {made} altered expectations were noticed ({100 * noticed / max(made, 1):.1f} %)")
    write_json(entries, REPORT)
    write_page(entries, REPORT.with_suffix(".html"))
    print(f"{time.monotonic() - started:.0f} s; written to {REPORT} and {REPORT.with_suffix('.html').name}")
    return 1 if any(entry.bad for entry in entries) or noticed < made else 0


@contextlib.contextmanager
def _cache() -> Iterator[None]:
    """Has the servers that start within the block keep values, unless a case says otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "server.toml")
        file.write_text('[functions."*"]\ncache-ttl = "1 h"\n')
        os.environ["UDF_CONFIG_FILE"] = str(file)
        try:
            yield
        finally:
            del os.environ["UDF_CONFIG_FILE"]


def _only(file: CaseFile, pattern: str) -> CaseFile:
    return replace(file, cases=tuple(case for case in file.cases if re.search(pattern, case.id)))


if __name__ == "__main__":
    sys.exit(main())
