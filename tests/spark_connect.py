"""A local server of Spark Connect at a port of its own: PySpark starts all of them at 15002, so that two clash."""

import os
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.ports import free_port

__all__ = ["connect_session"]


def connect_session(builder: SparkSession.Builder) -> SparkSession:
    """Starts the server in this process, and returns its session with what the builder has configured."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    port, arguments = free_port(), os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    arguments = f"--conf spark.connect.grpc.binding.port={port} {arguments}"
    with pytest.MonkeyPatch.context() as patched:
        # PySpark would tell the session, too, of a port that is configured otherwise, and puts none into the URL.
        patched.setenv("PYSPARK_SUBMIT_ARGS", arguments)
        patched.setattr(DefaultChannelBuilder, "default_port", staticmethod(lambda: port))
        session = builder.remote("local[2]").getOrCreate()
    _wait_for_workers()
    return session


def _wait_for_workers() -> None:
    """Start a streaming query again whose foreachBatch had no worker within Spark's ten seconds, which are fixed."""
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    original = DataStreamWriter.start

    def start(self: Any, *arguments: Any, **options: Any) -> Any:
        while True:
            try:
                return original(self, *arguments, **options)
            except PySparkException as error:
                if "Timed out while waiting for the Python worker to connect back" not in str(error):
                    raise

    DataStreamWriter.start = start
