"""IPython and Jupyter: an interrupted cell cancels its Spark queries, and errors are shown by their root cause.

PySpark cancels jobs on SIGINT, but ipykernel has a handler of its own while a cell runs: the job would go on, with all
of its remote calls, and the next cell would wait for it.
"""

import contextlib
import sys
import uuid
import weakref
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from remote_udf.errors import RemoteUdfError
from spark_client.base.job_tags import JobTags
from spark_client.base.root_cause import root_cause

__all__ = ["cancel_on_interrupt", "ipython_shell", "shorten_tracebacks"]

_ATTRIBUTE = "_remote_udf_interrupts"


def ipython_shell() -> Any:
    """The shell that runs this process's cells; None outside of IPython and Jupyter. It does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def shorten_tracebacks() -> None:
    """Show the root cause of a failed query instead of all of Spark's traceback.

    A handler of somebody else is kept. Outside of IPython and Jupyter it does nothing.
    """
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


def cancel_on_interrupt(spark: SparkSession) -> None:
    """Cancel the queries of a cell when it is interrupted. Outside of IPython and Jupyter it does nothing."""
    shell = ipython_shell()
    if shell is None:
        return
    owner = JobTags(spark).owner
    # Wrappers of one Spark share its jobs, so one handler is enough.
    known: weakref.WeakKeyDictionary[object, _Cells]
    known = vars(shell).setdefault(_ATTRIBUTE, weakref.WeakKeyDictionary())
    if owner not in known:
        cells = known[owner] = _Cells(shell.events, owner)
        shell.events.register("pre_run_cell", cells.begin)
        shell.events.register("post_run_cell", cells.end)
        cells.begin(None)  # the cell that connects has begun


class _Cells:
    """Tags the jobs of each cell. Jobs that an earlier cell started, such as those of streams, have another tag.

    The owner of the jobs is not kept: a Spark that was stopped would stay in memory as long as the notebook.
    """

    def __init__(self, events: Any, owner: object) -> None:
        self._tag = ""
        self._events, self._owner = events, weakref.ref(owner)

    def begin(self, info: object) -> None:
        owner = self._owner()
        if owner is None:
            self._events.unregister("pre_run_cell", self.begin)
            self._events.unregister("post_run_cell", self.end)
            return
        self._tag = f"remote-udf-cell-{uuid.uuid4().hex}"
        # Whatever Spark raises: the session may have been stopped, and a cell must run also then.
        with contextlib.suppress(Exception):
            JobTags(owner).add(self._tag)

    def end(self, result: Any) -> None:
        owner = self._owner()
        if owner is None:
            return
        with contextlib.suppress(Exception):
            tags = JobTags(owner)
            if _is_interrupt(result.error_in_exec):
                tags.cancel(self._tag)
            tags.remove(self._tag)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether a cell was interrupted. Py4J may fail while it handles the interrupt, and then raises its own error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
