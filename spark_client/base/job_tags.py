"""JobTags marks Spark's jobs, so that those of one purpose, such as an interrupted cell, can be cancelled."""

import contextlib
import uuid
import weakref
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_client.base.notebooks import ipython_shell

__all__ = ["JobTags", "cancel_on_interrupt"]

_ATTRIBUTE = "_remote_udf_interrupts"


class JobTags:
    """Adds tags to the jobs that this thread starts, and cancels jobs by a tag, from any thread."""

    def __init__(self, spark: Any) -> None:
        """`spark` is a session of Spark classic or Connect, or the `owner` of other tags."""
        owner = spark.sparkContext if isinstance(spark, SparkSession) else spark
        self.owner = owner
        """What has the jobs: wrappers of one Spark, such as those of `newSession`, share it."""
        if isinstance(owner, SparkContext):
            # The tags belong to a thread of the JVM, and an interrupt gives Python another one.
            self.add, self.remove, self.cancel = owner.addJobTag, owner.removeJobTag, owner.cancelJobsWithTag
        else:
            self.add, self.remove, self.cancel = owner.addTag, owner.removeTag, owner.interruptTag

    @contextlib.contextmanager
    def tagging(self, tag: str) -> Iterator[None]:
        """Add the tag to the jobs that the block starts."""
        self.add(tag)
        try:
            yield
        finally:
            # Spark may have been stopped meanwhile, and the reason is more useful.
            with contextlib.suppress(Exception):
                self.remove(tag)


def cancel_on_interrupt(spark: SparkSession) -> None:
    """Cancel the queries of a cell when it is interrupted. Outside of IPython and Jupyter it does nothing.

    PySpark cancels jobs on SIGINT, but ipykernel has a handler of its own while a cell runs: the job would go on, with
    all of its remote calls, and the next cell would wait for it.
    """
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
