"""Begins and ends writes: one task each, so that the machine of the driver needs no access to the files.

Files are published by a rename, or by a copy where the file system has no rename. Names contain the id of the write, so
no other file is ever replaced. Every step can be repeated, because Spark may repeat the task.
"""

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from spark_client.base.errors import WriteFailed
from spark_client.executor.files import delete_empty, make_directory
from spark_client.executor.parquet.output import OutputFile, WritePlan, parquet_writer
from spark_client.executor.parquet.staging import Staging

__all__ = ["BeginPlan", "CommitPlan", "Replaced", "abort", "begin", "commit"]

_SUCCESS = "_SUCCESS"
_THREADS = 16
"""The number of files of an object store that are published at the same time."""

Batches = Iterator[pa.RecordBatch]
Item = TypeVar("Item")


class Replaced(StrEnum):
    """The files that a write replaces when it commits."""

    NONE = "none"
    ALL = "all"
    WRITTEN_FOLDERS = "written folders"


@dataclass(frozen=True)
class BeginPlan:
    """The plan of `begin`. With `only_new` the path must have no files."""

    staging: Staging
    only_new: bool


@dataclass(frozen=True)
class CommitPlan:
    """The plan of `commit`: the files of the attempts that Spark has accepted."""

    write: WritePlan
    files: tuple[OutputFile, ...]
    replaced: Replaced


def begin(plan: BeginPlan, batches: Batches) -> Batches:
    """Claim the path. Yields "ready", "exists", or the description of another writer."""
    for _ in batches:
        with plan.staging.naming_the_path():
            yield _answer(_begun(plan))


def commit(plan: CommitPlan, batches: Batches) -> Batches:
    """Publish the files, and then delete those that they replace. Raises WriteFailed; then no new file is visible."""
    for _ in batches:
        with plan.write.staging.naming_the_path():
            _Commit(plan).run()
        yield _answer("committed")


def abort(staging: Staging, batches: Batches) -> Batches:
    """Delete what the write has left."""
    for _ in batches:
        with staging.naming_the_path():
            staging.release_path()
        yield _answer("aborted")


def _answer(text: str) -> pa.RecordBatch:
    return pa.record_batch({"answer": [text]})


def _begun(plan: BeginPlan) -> str:
    staging = plan.staging
    system, base = staging.located()
    if system.get_file_info(base).type == fs.FileType.File:
        raise WriteFailed(f"write_parquet: {staging.path!r} is a file; expected a directory, or a path that is free")
    if plan.only_new and staging.published():
        return "exists"
    other = staging.claim()
    if other is not None:
        return other
    # Another write may have ended since the first look.
    if plan.only_new and staging.published():
        staging.release()
        return "exists"
    return "ready"


class _Commit:
    def __init__(self, plan: CommitPlan) -> None:
        self._plan = plan
        self._staging = plan.write.staging
        self._system, self._base = self._staging.located()
        _, self._staged = self._staging.files()

    def run(self) -> None:
        files = list(self._plan.files)
        if not self._staging.claimed():
            if self._missing(files):
                raise WriteFailed(
                    f"write_parquet: the marker of this write in {self._staging.path!r} was deleted, so another writer "
                    "may have begun; nothing was published. Write again"
                )
            return  # an earlier attempt of this task has committed
        if not files and not self._plan.write.partitions:
            files = [self._empty_file()]
        old = self._replaced({file.folder for file in files}, {self._target(file) for file in files})
        success = posixpath.join(self._base, _SUCCESS)
        had_success = self._exists(success)
        if had_success:
            self._system.delete_file(success)
        try:
            for folder in {posixpath.dirname(self._target(file)) for file in files}:
                make_directory(self._system, folder)
            self._each(self._publish, files)
            missing = self._missing(files)
            if missing:
                raise WriteFailed(f"write_parquet: {missing[0].name} was written, and is not in {self._staging.path!r}")
        except BaseException:
            self._take_back(files)
            if had_success:
                self._write_empty(success)
            raise
        self._each(self._delete, [path for path in old if path != success])
        self._prune(old)
        self._write_empty(success)
        self._staging.release()

    def _empty_file(self) -> OutputFile:
        """A file without rows, which has the types of a result without rows."""
        plan = self._plan.write
        name = f"part-00000-{self._staging.write}-empty.parquet"
        make_directory(self._system, self._staged)
        with self._system.open_output_stream(posixpath.join(self._staged, name)) as sink:
            parquet_writer(sink, plan).close()
            return OutputFile("", name, 0, sink.tell())

    def _replaced(self, folders: set[str], new: set[str]) -> list[str]:
        """The files that the write replaces."""
        if self._plan.replaced is Replaced.NONE:
            return []
        found = [info.path for info in self._staging.published() if info.path not in new]
        if self._plan.replaced is Replaced.ALL:
            return found
        written = {posixpath.join(self._base, folder) for folder in folders}
        return [path for path in found if posixpath.dirname(path) in written]

    def _publish(self, file: OutputFile) -> None:
        staged = posixpath.join(self._staged, file.folder, file.name)
        try:
            self._system.move(staged, self._target(file))
        except (OSError, pa.ArrowException):
            # Another attempt of this task may have moved it; whether it is complete is checked after all.
            if not self._exists(self._target(file)):
                raise

    def _take_back(self, files: Sequence[OutputFile]) -> None:
        """Move published files back, so that nothing is visible and the task may be repeated."""
        for file in files:
            with contextlib.suppress(OSError, pa.ArrowException):
                if self._exists(self._target(file)):
                    self._system.move(self._target(file), posixpath.join(self._staged, file.folder, file.name))
        self._prune(map(self._target, files))

    def _prune(self, files: Iterable[str]) -> None:
        """Delete the directories of these files that are empty, and their parents below the path."""
        for folder in sorted({posixpath.dirname(path) for path in files}, reverse=True):
            while len(folder) > len(self._base):
                delete_empty(self._system, folder)
                folder = posixpath.dirname(folder)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(path)

    def _missing(self, files: Sequence[OutputFile]) -> list[OutputFile]:
        """The files that are not published with all of their bytes."""
        found = self._system.get_file_info([self._target(file) for file in files])
        return [file for file, info in zip(files, found, strict=True) if info.size != file.bytes]

    def _target(self, file: OutputFile) -> str:
        return posixpath.join(self._base, file.folder, file.name)

    def _exists(self, path: str) -> bool:
        return bool(self._system.get_file_info(path).type == fs.FileType.File)

    def _write_empty(self, path: str) -> None:
        with self._system.open_output_stream(path):
            pass

    def _each(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        if isinstance(self._system, fs.LocalFileSystem):
            for item in items:
                work(item)
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(work, items))
