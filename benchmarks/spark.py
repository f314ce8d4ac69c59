"""A Spark session of two local tasks, and the way a query is timed."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

__all__ = ["TASKS", "local_spark", "run_query"]

TASKS = 2


@contextlib.contextmanager
def local_spark(tasks: int = TASKS) -> Iterator[SparkSession]:
    """The session; it ends with the block."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{tasks}]").appName("benchmarks")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1")
    # Over TCP some kernels stall with rows of hundreds of columns; otherwise it makes no difference (docs/faq.md).
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def run_query(frame: DataFrame) -> float:
    """Seconds it takes to compute every row and throw it away. The frame was built before: planning is not timed."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start
