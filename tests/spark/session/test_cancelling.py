"""Stop means stop: a query that is cancelled ends its calls on the server."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

import udf_server as udf
from spark_client import connect
from tests.waiting import wait_until


class World:
    """Calls that wait until they are cancelled."""

    def __init__(self):
        self.begun, self.ended, self.release = threading.Event(), 0, threading.Event()

    def function(self):
        @udf.scalar(buffer_capacity=10)
        async def forever(x: int) -> int:
            self.begun.set()
            try:
                while not self.release.is_set():  # noqa: ASYNC110 - the test is another thread
                    await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                self.ended += 1
                raise
            return x

        return forever


@pytest.mark.connect
def test_cancel_ends_the_query_and_its_calls_on_the_server(serve, spark):
    world, raised = World(), []
    serving = serve(world.function())
    session = connect(spark, serving.target)

    def run():
        try:
            spark.range(0, 2000, 1, 2).select(session.function("forever")("id")).collect()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert world.begun.wait(60)
        # Otherwise the task that began later may not have a stream yet.
        wait_until(lambda: serving.metric("udf_streams_open", function="forever", version="1") == 2)
        assert session.cancel()
        thread.join(60)
        assert not thread.is_alive()
        assert len(raised) == 1
        wait_until(lambda: ended(serving) == 2 and world.ended >= 10)
        assert serving.metric("udf_rows_in_flight", function="forever", version="1") == 0
    finally:
        world.release.set()
        thread.join(60)
    assert session.cancel() == []


def ended(serving):
    return serving.metric("udf_streams_total", function="forever", version="1", end="disconnected")


@pytest.mark.connect
def test_sessions_of_one_spark_share_one_handler_of_interrupts(serve, spark, monkeypatch):
    import IPython
    from IPython.core.events import EventManager, available_events

    shell = SimpleNamespace(custom_exceptions=(), set_custom_exc=lambda *handler: None)
    shell.events = EventManager(shell, available_events)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    serving = serve(World().function())
    for session in (spark, spark, spark.newSession()):
        connect(session, serving.target)
    # Spark Connect gives a new session jobs of its own.
    assert len(shell.events.callbacks["pre_run_cell"]) == (1 if isinstance(spark, SparkSession) else 2)
    shell.events.trigger("post_run_cell", SimpleNamespace(error_in_exec=None))


NOTEBOOK = """
import signal, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
shell.user_ns["target"] = sys.argv[1]
shell.run_cell('''
from pyspark.sql import SparkSession
from spark_client import connect
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
forever = connect(spark, target).function("forever")
''')
# What ipykernel does while a cell runs.
signal.signal(signal.SIGINT, signal.default_int_handler)
shell.run_cell("spark.range(0, 2000, 1, 2).select(forever('id')).collect()")
shell.run_cell("print('then', spark.range(3).count())")
"""


@pytest.mark.slow
def test_an_interrupted_cell_of_a_notebook_ends_its_query_and_the_next_cell_runs(serve):
    world = World()
    serving = serve(world.function())
    command = [sys.executable, "-W", "ignore", "-c", NOTEBOOK, serving.target]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables
    ) as cells:
        try:
            assert world.begun.wait(60)
            cells.send_signal(signal.SIGINT)
            wait_until(lambda: world.ended >= 10)
            shown, _ = cells.communicate(timeout=60)
        finally:
            world.release.set()
            cells.kill()
    assert "KeyboardInterrupt" in shown
    assert shown.splitlines()[-1] == "then 3"
