"""From a saved file to the changed value in a warm Spark session, over a fresh Python that imports the plugin."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.results import Results
from benchmarks.spark import local_spark
from spark_client import RemoteSession, connect

__all__ = ["measure_edits"]

PLUGIN = "import udf_server as udf\n\n\n@udf.scalar\ndef edited({parameters}) -> int:\n    return x + {value}\n"
SIGNATURE_EVERY = 4
"""Every fourth edit changes the parameters, of few edits the last one."""


def measure_edits(results: Results, quick: bool) -> None:
    """Edits and fresh imports alternate. An edit is followed by a query of one row, with the same function object."""
    edits = 2 if quick else 20
    with local_spark() as spark, tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "edited.py"
        plugin.write_text(PLUGIN.format(parameters="x: int", value=0))
        ways: dict[str, Callable[[], RemoteSession]] = {
            "embedded": lambda: connect(spark, plugins=[str(plugin)]),
            "local": lambda: connect(spark, f"local:{plugin}"),
        }
        for name, made in ways.items():
            _measure(results, name, spark, made(), plugin, edits)
        command = [
            sys.executable, "-m", "udf_server", "dev", str(plugin), "--port", "0", "--metrics-port", "0",
            "--log-level", "error", "--stop-with-stdin",
        ]  # fmt: skip
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dev:
            assert dev.stdout is not None and dev.stdin is not None
            remote = connect(spark, json.loads(dev.stdout.readline())["target"])
            _measure(results, "dev", spark, remote, plugin, edits)
            dev.stdin.close()


def _measure(results: Results, name: str, spark: SparkSession, remote: RemoteSession, plugin: Path, edits: int) -> None:
    row, edited = spark.range(1), remote.function("edited")
    plugin.write_text(PLUGIN.format(parameters="x: int", value=0))
    row.select(edited("id")).collect()  # workers start
    took, imports = list[float](), list[float]()
    parameters, arguments = "x: int", [F.col("id")]
    for edit in range(1, edits + 1):
        if edit % min(SIGNATURE_EVERY, edits) == 0:
            parameters += f", more_{edit}: int"
            arguments.append(F.lit(edit))
        began = time.perf_counter()
        plugin.write_text(PLUGIN.format(parameters=parameters, value=edit))
        (found,) = row.select(edited(*arguments)).collect()
        took.append(time.perf_counter() - began)
        assert found[0] == edit, f"{name}: {found[0]} after edit {edit}"
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import udf_server, edited"], cwd=plugin.parent, check=True)
        imports.append(time.perf_counter() - began)
    ratio = statistics.median(took) / statistics.median(imports)
    what = f"from a saved file to its value, {name}, {edits} edits"
    results.add(f"edit_to_result_over_import_{name}", ratio, f"{what}, over a fresh Python that imports it")
    results.add(f"edit_to_result_seconds_{name}", statistics.median(took), f"seconds {what}")
    results.add(f"edit_import_seconds_{name}", statistics.median(imports), "seconds of that import")
