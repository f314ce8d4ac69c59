"""`python -m tests.packaging.matrix`: the tests with each supported Python and PySpark, and what came of them.

Each Python has an environment of its own in `build/matrix`, made by the Makefile with the versions of
`constraints.txt`; PySpark is then replaced in it. The result is written to `docs/compatibility.json` after each
combination, so that an interrupted run keeps what it has.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "docs" / "compatibility.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PINNED = re.findall(r"^pyspark==(\S+)$", CONSTRAINTS, re.MULTILINE)[0]
SQLGLOT = re.findall(r"sqlglot>=([\d.]+),<([\d.]+)", (ROOT / "pyproject.toml").read_text())[0]
"""The range of sqlglot: the oldest release, and what newer ones are below."""
SQL = ("tests/spark_client/sql", "tests/spark/sql/text/test_as_written.py", "tests/spark/sql/test_registered.py")
PYSPARKS = ("4.1.4", "4.2.1", PINNED)
"""The newest release of each line."""
UNIT = (
    "-n",
    "2",
    "-m",
    "not slow",
    "--hypothesis-profile=unit",
    "tests/remote_udf",
    "tests/udf_server",
    "tests/spark_client",
)
SPARK = (
    "tests/spark/rows/test_scalar.py",
    "tests/spark/aggregate/test_plain.py",
    "tests/spark/sql/test_registered.py",
    "tests/spark/process/test_tables.py",
)
"""The three kinds of functions in DataFrames, in SQL and on streams, in one session of Spark."""
PANDAS = (
    "tests/spark/windows/test_emitting.py",
    "tests/spark/windows/test_idle.py",
    "tests/spark/session/test_stream_state.py",
)
"""What hands rows to Python as pandas."""
# PySpark before 4.3 leaves sockets to the collector, which is a warning there and an error in our tests.
OLDER = "-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning"
MOST_SECONDS = 1_200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=",".join(PYTHONS), help="versions with commas between them")
    parser.add_argument("--pyspark", default=",".join(PYSPARKS), help="versions with commas between them")
    asked = parser.parse_args()
    failed = False
    for python in asked.python.split(","):
        for pyspark in asked.pyspark.split(","):
            for kind, result in combination(python, pyspark):
                print(f"Python {python}, PySpark {pyspark}, {kind}: {result}", flush=True)
                failed = failed or "failed" in result or "error" in result
                _write(python, pyspark, kind, result)
    sys.exit(1 if failed else 0)


def combination(python: str, pyspark: str) -> Iterator[tuple[str, str]]:
    """What the unit tests, once for each Python, and tests with Spark, classic and Connect, say of a combination."""
    if shutil.which(f"python{python}") is None:
        yield "spark", f"not tried: there is no python{python} here"
        return
    folder = ROOT / "build" / "matrix" / f"python{python}"
    _run("make", "-s", f"VENV={folder}", f"PYTHON=python{python}", f"{folder}/.dev-stamp")
    _install(folder, f"pyspark=={pyspark}")
    if pyspark == PINNED:
        yield "unit", _pytest(folder, "", *UNIT)
    options = "" if pyspark == PINNED else OLDER
    yield "spark", _pytest(folder, options, *SPARK)
    yield "connect", _pytest(folder, options, *SPARK, "-m", "connect", REMOTE_UDF_TEST_SPARK="connect")
    if pyspark == PINNED:
        oldest, below = SQLGLOT
        yield "oldest sqlglot", _with_sqlglot(folder, f"sqlglot=={oldest}.*")
        yield "newest sqlglot", _with_sqlglot(folder, f"sqlglot>={oldest},<{below}")
        _install(folder, *re.findall(r"^sqlglot==\S+$", CONSTRAINTS, re.MULTILINE))
        _install(folder, "--upgrade", "pandas>=3,<4")
        yield "pandas 3", _pytest(folder, "", *SPARK, *PANDAS)
        _install(folder, *re.findall(r"^pandas==\S+$", CONSTRAINTS, re.MULTILINE))


def _with_sqlglot(folder: Path, release: str) -> str:
    _install(folder, "--upgrade", release)
    return _pytest(folder, "", *SQL)


def _install(folder: Path, *packages: str) -> None:
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages)


def _pytest(folder: Path, options: str, *arguments: str, **variables: str) -> str:
    """The closing line of the tests, without its time: `49 passed, 1 skipped`."""
    began = time.monotonic()
    python = str(folder / "bin" / "python")
    done = _run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments,
        check=False, PYSPARK_PYTHON=python, PYTEST_ADDOPTS=options, **variables,
    )  # fmt: skip
    log = folder / f"pytest-{time.strftime('%H%M%S')}.log"
    log.write_text(done)
    closing = re.search(r"^(?:=+ )?(\d+ \w+.*?) in [\d.]+s", done, re.MULTILINE)
    seconds = round(time.monotonic() - began)
    print(f"  {seconds} seconds; the output is in {log.relative_to(ROOT)}", flush=True)
    return re.sub(r", \d+ deselected", "", closing[1]) if closing else "failed: the tests did not end"


def _run(*command: str, check: bool = True, **variables: str) -> str:
    # What `make` tells its children would be taken for options of the `make` that is called here.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYSPARK"))}
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **variables}, timeout=MOST_SECONDS, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if check and done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2_000:]}")
    return done.stdout


def _write(python: str, pyspark: str, kind: str, result: str) -> None:
    known = json.loads(RESULT.read_text()) if RESULT.exists() else []
    cells = {(cell["python"], cell["pyspark"], cell["tests"]): cell for cell in known}
    cells[python, pyspark, kind] = {"python": python, "pyspark": pyspark, "tests": kind, "result": result}
    ordered = sorted(cells.values(), key=lambda cell: (cell["python"], cell["pyspark"], cell["tests"]))
    RESULT.write_text("[\n" + ",\n".join(f"  {json.dumps(cell)}" for cell in ordered) + "\n]\n")


if __name__ == "__main__":
    main()
