"""What a job needs in its Python, and in that of Spark's local workers: checks with one sentence for each lack."""

import functools
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["SQLGLOT", "require_packages", "warn_of_worker_python"]

log = logging.getLogger(__name__)

_NEEDED = ("pyspark", "pandas", "sqlglot")
SQLGLOT = (30, 30), (31,)
"""The oldest release of sqlglot that is supported, and the first one that is not, as in `pyproject.toml`."""
WORKERS_NEED = ("pyarrow", "grpc", "google.protobuf", "remote_udf", "spark_client")
"""What workers import."""
_LACKING = """
import importlib
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        print(name)
"""
SECONDS = 20.0
"""How long that Python may take to answer."""


def require_packages() -> None:
    """Raises ImportError if a package of a driver is missing or has a version that is not supported."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ImportError(
            f"{' and '.join(missing)} not installed for {sys.executable}: a Spark job needs "
            "pip install 'remote-udf[spark]'"
        )
    import pyspark  # noqa: PLC0415 - only now it is known to be there

    spark = pyspark.__version__
    if _numbers(spark) < (4, 1):
        raise ImportError(f"remote-udf needs PySpark 4.1 or later, found {spark}: pip install 'pyspark[connect]>=4.1'")
    sqlglot = _version("sqlglot")
    if sqlglot is not None and not SQLGLOT[0] <= _numbers(sqlglot) < SQLGLOT[1]:
        oldest, below = (".".join(map(str, end)) for end in SQLGLOT)
        raise ImportError(
            f"remote-udf needs sqlglot {oldest} or later and below {below}, found {sqlglot}: "
            f"pip install 'sqlglot>={oldest},<{below}'"
        )
    parser = importlib.util.find_spec("sqlglot.parser")
    if parser is not None and parser.origin is not None and not parser.origin.endswith((".py", ".pyc")):
        raise ImportError(
            "remote-udf extends the parser of sqlglot, which sqlglotc replaces by a compiled one: "
            "pip uninstall sqlglotc sqlglot, then pip install sqlglot"
        )


def _version(package: str) -> str | None:
    """The version of a package; None if it is not installed as one, such as in an archive of the cluster."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def warn_of_worker_python(master: str, environment: Mapping[str, str] = os.environ) -> None:
    """Warn if workers of this machine run another Python than this one, and it lacks what they import.

    Without `PYSPARK_PYTHON`, workers run the `python3` of the path, which is another one than the driver's if the
    driver's environment was not activated.
    """
    if not master.startswith("local"):
        return
    program = environment.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(program, path=environment.get("PATH"))
    # Links to one interpreter are in different environments if they are in different folders.
    if found is None or Path(found).absolute().parent == Path(sys.executable).absolute().parent:
        return
    if lacking := _lacking(found):
        log.warning(
            "Spark's workers run %s, which lacks %s, so remote calls will fail there: set PYSPARK_PYTHON=%s before "
            "Spark starts, or activate the environment of the driver", found, ", ".join(lacking), sys.executable,
        )  # fmt: skip


@functools.cache
def _lacking(program: str) -> tuple[str, ...]:
    command = [program, "-c", _LACKING.format(names=WORKERS_NEED)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)  # noqa: S603 - ours
    except (OSError, subprocess.SubprocessError):
        return ()  # Spark itself reports the error
    return tuple(done.stdout.split())
