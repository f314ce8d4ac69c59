"""Notebooks show the root cause of a failed query instead of all of Spark's traceback."""

import sys
from typing import Any

from pyspark.errors import PySparkException

from remote_udf.errors import RemoteUdfError
from spark_client.base.ipython import ipython_shell
from spark_client.base.root_cause import root_cause

__all__ = ["shorten_tracebacks"]


def shorten_tracebacks() -> None:
    """Install the handler in IPython and Jupyter, unless there is one of somebody else. Elsewhere it does nothing."""
    shell = ipython_shell()
    if shell is None or shell.custom_exceptions:
        return
    kinds: tuple[type[BaseException], ...] = (PySparkException, RemoteUdfError)
    py4j = sys.modules.get("py4j.protocol")
    if py4j is not None:
        kinds = (*kinds, py4j.Py4JJavaError)
    shell.set_custom_exc(kinds, _show)


def _show(shell: Any, kind: type[BaseException], error: Any, trace: object, tb_offset: int | None = None) -> None:
    # The protocol of IPython for exceptions that show themselves. Without it, %tb shows the whole traceback.
    error._render_traceback_ = lambda: [*root_cause(error).splitlines(), "(%tb shows the whole traceback)"]
    try:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    finally:
        del error._render_traceback_
