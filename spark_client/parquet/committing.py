"""Begins and ends writes: one task each, so that the machine of the driver needs no access to the files.

Files are published by a rename, or by a copy where the file system has no rename. Names contain the id of the write, so
no other file is ever replaced. Every step can be repeated, because Spark may repeat the task, and no attempt undoes
anything, because another one may be further. Only `abort` does, when no attempt is left.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from spark_client.base.errors import WriteFailed
from spark_client.executor.files import delete_empty, delete_file, is_file, make_directory, move_file
from spark_client.parquet.output import OutputFile, WritePlan, parquet_writer
from spark_client.parquet.staging import Staging

__all__ = ["FAILED", "BeginPlan", "CommitPlan", "RecoverPlan", "Replaced", "abort", "begin", "commit", "recover"]

_SUCCESS = "_SUCCESS"
FAILED = "failed: "
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


@dataclass(frozen=True)
class RecoverPlan:
    """The plan of `recover`. A write that has changed nothing for this number of seconds before `now` does not run."""

    path: str
    unchanged_for: float
    now: float


def begin(plan: BeginPlan, batches: Batches) -> Batches:
    """Claim the path. Yields "ready", "exists", or the description of another writer."""
    for _ in batches:
        with plan.staging.naming_the_path():
            yield _answer(_begun(plan))


def commit(plan: CommitPlan, batches: Batches) -> Batches:
    """Publish the files, and then delete those that they replace.

    Raises WriteFailed. Then some new files may be visible, and `abort` decides which files stay.
    """
    for _ in batches:
        with plan.write.staging.naming_the_path():
            _Commit(plan).run()
        yield _answer("committed")


def abort(staging: Staging, batches: Batches) -> Batches:
    """End a write that has failed: restore the old files if all are still there, otherwise keep the new ones.

    No attempt of its commit may be running.
    """
    for _ in batches:
        with staging.naming_the_path():
            if staging.claimed() and not staging.completed():
                _withdraw(staging)
            staging.release_path()
        yield _answer("aborted")


def recover(plan: RecoverPlan, batches: Batches) -> Batches:
    """End the writes to a path whose driver was killed.

    Yields what was done with each, or after FAILED why one of them was left alone, because it may still run.
    """
    for _ in batches:
        try:
            with Staging(plan.path, "").naming_the_path():
                answers = [_recovered(staging, plan) for staging in Staging(plan.path, "").writers()]
        except WriteFailed as error:
            answers = [f"{FAILED}{error}"]
        yield pa.record_batch({"answer": pa.array(answers, pa.string())})


def _recovered(staging: Staging, plan: RecoverPlan) -> str:
    since = plan.now - staging.changed()
    if since < plan.unchanged_for:
        raise WriteFailed(
            f"recover_parquet: the write {staging.write} to {plan.path!r} may still run: it changed something "
            f"{max(since, 0.0):.0f} s ago. Wait until it has ended or, if its driver was killed, until it has changed "
            f"nothing for {plan.unchanged_for:.0f} s (unchanged_for)"
        )
    if not staging.completed():
        _withdraw(staging)
        staging.release_path()
        return f"{staging.write}: withdrawn; the files of earlier writes are the result"
    old = staging.replaced()
    _finish(staging, old)
    return f"{staging.write}: completed; its files are the result, and {len(old)} files that they replace were deleted"


def _withdraw(staging: Staging) -> None:
    """Delete the files that were published, and show the old `_SUCCESS` again."""
    system, base = staging.located()
    _delete(system, base, [info.path for info in staging.published() if staging.owns(info.path)])
    _, staged = staging.files()
    if is_file(system, posixpath.join(staged, _SUCCESS)):
        move_file(system, posixpath.join(staged, _SUCCESS), posixpath.join(base, _SUCCESS))


def _finish(staging: Staging, old: Sequence[str]) -> None:
    """End a write whose files are published: delete the files that they replace, and say that it has succeeded."""
    system, base = staging.located()
    _delete(system, base, old)
    with system.open_output_stream(posixpath.join(base, _SUCCESS)):
        pass
    staging.release()


def _delete(system: fs.FileSystem, base: str, paths: Sequence[str]) -> None:
    """Delete the files, and the directories below `base` that are empty without them."""
    _each(system, lambda path: delete_file(system, path), paths)
    for folder in sorted({posixpath.dirname(path) for path in paths}, reverse=True):
        while len(folder) > len(base):
            delete_empty(system, folder)
            folder = posixpath.dirname(folder)


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
        self._success = posixpath.join(self._base, _SUCCESS)

    def run(self) -> None:
        staging = self._staging
        if not staging.claimed():
            if not self._has_committed():
                raise WriteFailed(
                    f"write_parquet: the marker of this write in {staging.path!r} was deleted, so another writer "
                    "may have begun; nothing was published. Write again"
                )
            return  # an earlier attempt of this task has committed
        completed = staging.completed()
        if not completed:
            self._publish_all()
        old = self._replaced()
        if not completed:
            staging.mark_complete(old)
        # If the marker is still there, no other write had begun before the files were listed.
        if not staging.claimed():
            raise WriteFailed(
                f"write_parquet: the marker of this write in {staging.path!r} was deleted while it published files. "
                f"They have {staging.write} in their names, and what they replace was not deleted"
            )
        _finish(staging, old)

    def _has_committed(self) -> bool:
        """Whether what an earlier attempt of this task publishes is there, although the marker is gone."""
        if self._plan.files:
            return not self._missing(self._plan.files)
        if not self._plan.write.partitions:
            return is_file(self._system, posixpath.join(self._base, self._empty_name()))
        # There is nothing to publish: what is left to do is to delete replaced files.
        return is_file(self._system, self._success) and not self._replaced()

    def _publish_all(self) -> None:
        files = list(self._plan.files)
        if not files and not self._plan.write.partitions:
            files = [self._empty_file()]
        if is_file(self._system, self._success):
            make_directory(self._system, self._staged)
            self._move(self._success, posixpath.join(self._staged, _SUCCESS))
        for folder in {posixpath.dirname(self._target(file)) for file in files}:
            make_directory(self._system, folder)
        _each(self._system, self._publish, files)
        missing = self._missing(files)
        if missing:
            raise WriteFailed(f"write_parquet: {missing[0].name} was written, and is not in {self._staging.path!r}")

    def _empty_name(self) -> str:
        return f"part-00000-{self._staging.write}-empty.parquet"

    def _empty_file(self) -> OutputFile:
        """A file without rows, which has the types of a result without rows."""
        plan = self._plan.write
        name = self._empty_name()
        make_directory(self._system, self._staged)
        with self._system.open_output_stream(posixpath.join(self._staged, name)) as sink:
            parquet_writer(sink, plan).close()
            return OutputFile("", name, 0, sink.tell())

    def _replaced(self) -> list[str]:
        """The files that the published ones replace."""
        if self._plan.replaced is Replaced.NONE:
            return []
        found = [info.path for info in self._staging.published() if info.path != self._success]
        old = [path for path in found if not self._staging.owns(path)]
        if self._plan.replaced is Replaced.ALL:
            return old
        written = {posixpath.dirname(path) for path in found if self._staging.owns(path)}
        return [path for path in old if posixpath.dirname(path) in written]

    def _publish(self, file: OutputFile) -> None:
        self._move(posixpath.join(self._staged, file.folder, file.name), self._target(file))

    def _move(self, source: str, target: str) -> None:
        try:
            move_file(self._system, source, target)
        except Exception:  # packages of fsspec raise errors of their own
            # Another attempt of this task may have moved it; whether files are complete is checked after all.
            if not is_file(self._system, target):
                raise

    def _missing(self, files: Sequence[OutputFile]) -> list[OutputFile]:
        """The files that are not published with all of their bytes."""
        found = self._system.get_file_info([self._target(file) for file in files])
        return [file for file, info in zip(files, found, strict=True) if info.size != file.bytes]

    def _target(self, file: OutputFile) -> str:
        return posixpath.join(self._base, file.folder, file.name)


def _each(system: fs.FileSystem, work: Callable[[Item], None], items: Sequence[Item]) -> None:
    if isinstance(system, fs.LocalFileSystem):
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(work, items))
