"""JobTags marks Spark's jobs, so that those of one purpose can be cancelled."""

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["JobTags"]


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
