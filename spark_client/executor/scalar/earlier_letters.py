"""EarlierLetters: dead letters of a micro-batch that were written before its streaming query was restarted.

If a query ends in the middle of a micro-batch, its restart repeats that micro-batch, perhaps with other partitions.
The dead letters are then written again, so the old files must be deleted. A query repeats at most its last
micro-batch, so a process lists the directory once per restart, not per task.
"""

import hashlib
import posixpath
import re

from pyarrow import fs

from spark_client.executor.listings import Found, Listings
from spark_client.executor.stream.task import TaskInfo

__all__ = ["EarlierLetters", "delete_if_there"]


class EarlierLetters:
    """The files of one micro-batch that an earlier run of the query has left. They are listed when they are deleted."""

    def __init__(self, system: fs.FileSystem, base: str, task: TaskInfo, driver: str, listings: Listings) -> None:
        # Spark's id does not suffice, because a function of foreachBatch may set any group for its jobs.
        self.restart = hashlib.sha256(f"{task.query_run} {driver}".encode()).hexdigest()[:8]
        """The suffix in the names of files of this run of the query."""
        self._system, self._base = system, base
        self._query, self._micro_batch = task.query, task.micro_batch
        self._listings = listings

    def delete(self) -> None:
        """Delete the files; another task may do the same concurrently. Raises OSError."""
        known = self._listings.get((self._base, self._query, self.restart), self._look)
        for name in known.get(self._micro_batch, ()):
            delete_if_there(self._system, posixpath.join(self._base, name))

    def _look(self) -> Found:
        """Files of this and later micro-batches that another run of the query has written, also temporary files."""
        wanted = re.compile(rf"_?part-{re.escape(self._query)}-(\d+)-.*-([0-9a-f]{{8}})\.parquet.*")
        found: Found = {}
        for file in self._system.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            match = wanted.fullmatch(file.base_name)
            if match and match[2] != self.restart and int(match[1]) >= self._micro_batch:
                found.setdefault(int(match[1]), []).append(file.base_name)
        return found


def delete_if_there(system: fs.FileSystem, path: str) -> None:
    """Delete a file that another task, or another attempt at this one, may delete at the same time. Raises OSError."""
    if system.get_file_info(path).type is fs.FileType.NotFound:
        return
    try:
        system.delete_file(path)
    except OSError:
        if system.get_file_info(path).type is not fs.FileType.NotFound:
            raise
