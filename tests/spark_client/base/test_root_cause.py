"""The lines that matter of an error, from the texts of Spark."""

import subprocess
import sys

import pytest

from spark_client.base.errors import ServerUnavailable
from spark_client.base.root_cause import root_cause

JOB = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in \
stage 3.0 (TID 7) (host executor 1): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1230, in main
    process()
{raised}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:833)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (
            "spark_client.base.errors.ErrorBudgetExceeded: function f@1: 3 of 10 rows of this task failed",
            "ErrorBudgetExceeded: function f@1: 3 of 10 rows of this task failed",
        ),
        (
            "remote_udf.errors.StreamError: ACCESS: one line\nanother line\nRemote traceback:\n"
            'Traceback (most recent call last):\n  File "/p/f.py", line 3, in inner\n    f(x)\n'
            '  File "/p/g.py", line 9, in f\n    return 1 / x\nZeroDivisionError: division by zero',
            "StreamError: ACCESS: one line\nanother line\n  /p/g.py, line 9, in f: return 1 / x",
        ),
        ("KeyError: 'k'", "KeyError: 'k'"),
        (
            "ModuleNotFoundError: No module named 'grpc'",
            "ModuleNotFoundError: No module named 'grpc'\n  install the client for the Python of the executors: "
            "pip install 'remote-udf[spark]'",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.11 than that in driver: 3.12, PySpark cannot run with different minor versions.",
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.11 than that in "
            "driver: 3.12, PySpark cannot run with different minor versions.\n"
            "  PYSPARK_PYTHON must name the driver's version of Python on executors",
        ),
    ],
)
def test_a_failed_task_is_its_error(raised, expected):
    assert root_cause(RuntimeError(JOB.format(raised=raised))) == expected


def test_an_error_without_a_task_is_its_message_without_plan_and_stack():
    text = "[UNRESOLVED_COLUMN] There is no column `x`. SQLSTATE: 42703; line 1 pos 7;\n'Project ['x]\n+- Range\n"
    assert root_cause(ValueError(text)) == "ValueError: [UNRESOLVED_COLUMN] There is no column `x`"
    assert root_cause(ServerUnavailable("no server at a:1")) == "ServerUnavailable: no server at a:1"
    assert root_cause(KeyError("")) == "KeyError: ''"


CELL = """
from spark_client import connect
class Session:
    createDataFrame = None
connect(Session(), "127.0.0.1:1", connect_seconds=0.1{options})
"""


def in_ipython(*cells):
    """What IPython prints for these cells, without colours."""
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
for cell in {cells!r}:
    shell.run_cell(cell)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_notebook_shows_the_root_cause_and_the_traceback_on_demand():
    first, second, *traceback = in_ipython(CELL.format(options=""), "%tb", "1 / 0").splitlines()
    assert first.startswith("ServerUnavailable: no remote-udf server at 127.0.0.1:1 within 0.1 s")
    assert second == "(%tb shows the whole traceback)"
    assert any("list_functions" in line for line in traceback)
    assert any("ZeroDivisionError" in line for line in traceback)  # errors of others are shown as ever


@pytest.mark.slow
@pytest.mark.parametrize(
    "cells",
    [
        [CELL.format(options=", short_tracebacks=False")],
        ["get_ipython().set_custom_exc((OSError,), lambda *a, **k: None)", CELL.format(options="")],
    ],
    ids=["not wanted", "somebody else's handler"],
)
def test_a_notebook_keeps_its_own_tracebacks(cells):
    out = in_ipython(*cells)
    assert "list_functions" in out
    assert "%tb" not in out
