"""EarlierLetters: dead letters of a micro-batch from before its streaming query was restarted.

A query that ended in the middle of a micro-batch runs it again when it is restarted, perhaps with other
partitions. What the tasks of the first time wrote is then written again, so the old files have to go. A query
runs at most its last micro-batch again, so a process looks into the directory once per restart, not per task.
"""

import hashlib
import posixpath
import re
import threading
from collections import OrderedDict

from pyarrow import fs

from spark_client.executor.stream.task import TaskInfo

__all__ = ["EarlierLetters"]

QUERIES_KEPT = 64
"""Restarts of queries whose directories this process remembers."""

_Found = dict[int, list[str]]
"""Micro-batch to the names of its files."""


class EarlierLetters:
    """The files of one micro-batch that an earlier run of the query has left. Looks only when they are deleted."""

    def __init__(self, system: fs.FileSystem, base: str, task: TaskInfo, driver: str) -> None:
        # Spark's id alone would do, but a function of foreachBatch may name the group of its jobs as it likes.
        self.restart = hashlib.sha256(f"{task.query_run} {driver}".encode()).hexdigest()[:8]
        """Ends the names of files of this run of the query."""
        self._system, self._base = system, base
        self._query, self._micro_batch = task.query, task.micro_batch

    def delete(self) -> None:
        """Deletes them; another task may do the same meanwhile. Raises OSError."""
        for name in self._known().get(self._micro_batch, ()):
            path = posixpath.join(self._base, name)
            if self._system.get_file_info(path).type is not fs.FileType.NotFound:
                self._delete(path)

    def _delete(self, path: str) -> None:
        try:
            self._system.delete_file(path)
        except OSError:
            # Another task was faster.
            if self._system.get_file_info(path).type is not fs.FileType.NotFound:
                raise

    def _known(self) -> _Found:
        key = (self._base, self._query, self.restart)
        with _lock:
            if key not in _directories:
                _directories[key] = self._look()
                while len(_directories) > QUERIES_KEPT:
                    _directories.popitem(last=False)
            return _directories[key]

    def _look(self) -> _Found:
        """Files of this micro-batch and later ones that no task of this run has written, temporary ones among them."""
        wanted = re.compile(rf"_?part-{re.escape(self._query)}-(\d+)-.*-([0-9a-f]{{8}})\.parquet.*")
        found: _Found = {}
        for file in self._system.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            match = wanted.fullmatch(file.base_name)
            if match and match[2] != self.restart and int(match[1]) >= self._micro_batch:
                found.setdefault(int(match[1]), []).append(file.base_name)
        return found


_directories: OrderedDict[tuple[str, str, str], _Found] = OrderedDict()
_lock = threading.Lock()
