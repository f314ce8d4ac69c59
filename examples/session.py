"""The Spark session of the examples: local, and without log messages below errors."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["local_session"]


def local_session(tasks: int) -> SparkSession:
    """A session that runs this many tasks at once."""
    for variable, value in {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(Path(__file__).with_name("conf")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Hides gRPC's warnings, such as those about a server that shuts down.
        "GRPC_VERBOSITY": "ERROR",
    }.items():
        os.environ.setdefault(variable, value)
    builder = SparkSession.builder.master(f"local[{tasks}]").appName("remote-udf example")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(tasks),
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
