"""A Spark session with two local tasks, and the timing of a query."""

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
    """Runs a session until the block ends."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{tasks}]").appName("benchmarks")
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1")
    # Over TCP some kernels stall with rows of hundreds of columns; otherwise there is no difference (docs/faq.md).
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def run_query(frame: DataFrame) -> float:
    """Seconds to compute every row and discard it. Planning is not timed, because the frame was built before."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start
