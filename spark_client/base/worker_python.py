"""The Python that Spark's local workers run: a warning if it lacks what they import.

Without `PYSPARK_PYTHON`, workers run the `python3` of the path, which is another one than the driver's if the driver's
environment was not activated.
"""

import functools
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["warn_of_worker_python"]

log = logging.getLogger(__name__)

NEEDED = ("pyarrow", "grpc", "google.protobuf", "remote_udf", "spark_client")
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


def warn_of_worker_python(master: str, environment: Mapping[str, str] = os.environ) -> None:
    """Warn if workers of this machine run another Python than this one, and it lacks what they import."""
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
    command = [program, "-c", _LACKING.format(names=NEEDED)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)  # noqa: S603 - ours
    except (OSError, subprocess.SubprocessError):
        return ()  # Spark itself reports the error
    return tuple(done.stdout.split())
