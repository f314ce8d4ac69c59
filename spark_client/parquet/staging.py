"""The staging directory of a write, and the markers by which other writers see that it has not ended.

They are in `_remote_udf` below the path of the write, whose name begins with an underscore, so that Spark does not read
what is in it. Each writer adds its marker before it lists those of others: of two writers at least one sees the other,
on every file system whose listings are complete. The marker of a complete write is added when all of its files are
published, before the first file that they replace is deleted: until then the old files are the result, from then on the
new ones. It means nothing without the first marker, which is therefore deleted before it.
"""

import contextlib
import datetime
import json
import posixpath
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs

from spark_client.base.errors import WriteFailed
from spark_client.executor.files import delete_empty, delete_file, is_file, located_directory, make_directory, naming

__all__ = ["Staging"]

_FOLDER = "_remote_udf"
_COMPLETE = ".complete"


@dataclass(frozen=True)
class Staging:
    """The staging directory of the write with this id, below `path`: a local path or a URI."""

    path: str
    write: str

    def located(self) -> tuple[fs.FileSystem, str]:
        """The file system and the path of the result in it."""
        return located_directory(self.path)

    def files(self) -> tuple[fs.FileSystem, str]:
        """The file system and the directory of the files that are not yet published."""
        system, base = self.located()
        return system, posixpath.join(base, _FOLDER, self.write)

    def published(self) -> list[fs.FileInfo]:
        """All files below the path, except those of writes that have not ended."""
        system, base = self.located()
        found = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        inner = posixpath.join(base, _FOLDER)
        return [info for info in found if info.type == fs.FileType.File and not info.path.startswith(inner + "/")]

    def owns(self, path: str) -> bool:
        """Whether this write has made the file, by its name."""
        return f"-{self.write}-" in posixpath.basename(path)

    def claim(self) -> str | None:
        """Add the marker of this write.

        Returns:
            None, or a description of another writer. Then there is no marker of this write.
        """
        system, base = self.located()
        folder = posixpath.join(base, _FOLDER)
        made = system.get_file_info(base).type == fs.FileType.NotFound
        make_directory(system, folder)
        # Another attempt of this task finds the directory that the first one made, so it leaves its marker.
        if not self.claimed():
            since = datetime.datetime.now(datetime.UTC).isoformat("T", "seconds")
            with system.open_output_stream(self._marker()) as sink:
                sink.write(json.dumps({"host": socket.gethostname(), "since": since, "made": made}).encode())
        for other in self.writers():
            if other.write != self.write:
                self.release()
                return self._describe(other.write)
        entries = system.get_file_info(fs.FileSelector(folder))
        # A task that is still running after its write has ended may have left files.
        for info in entries:
            if info.type == fs.FileType.Directory and info.base_name != self.write:
                system.delete_dir(info.path)
            elif info.base_name.endswith(_COMPLETE):
                delete_file(system, info.path)
        return None

    def claimed(self) -> bool:
        """Whether the marker of this write is there."""
        system, _ = self.located()
        return is_file(system, self._marker())

    def mark_complete(self, replaced: Sequence[str]) -> None:
        """Record that all files of this write are published, and the files that they replace."""
        system, directory = self.files()
        with system.open_output_stream(directory + _COMPLETE) as sink:
            sink.write(json.dumps([*replaced]).encode())

    def replaced(self) -> list[str]:
        """The files that those of this complete write replace, and that are still there."""
        system, directory = self.files()
        with system.open_input_stream(directory + _COMPLETE) as source:
            listed = json.loads(source.read() or b"[]")
        return [path for path in listed if is_file(system, path)]

    def writers(self) -> list["Staging"]:
        """The writes to the path that have not ended."""
        system, base = self.located()
        selector = fs.FileSelector(posixpath.join(base, _FOLDER), allow_not_found=True)
        names = sorted(info.base_name for info in system.get_file_info(selector))
        return [Staging(self.path, name.removesuffix(".json")) for name in names if name.endswith(".json")]

    def changed(self) -> float:
        """When this write has last changed something, in seconds since 1970; without times of files, when it began."""
        system, directory = self.files()
        staged = system.get_file_info(fs.FileSelector(directory, recursive=True, allow_not_found=True))
        own = [info for info in self.published() if self.owns(info.path)]
        marks = system.get_file_info([self._marker(), directory + _COMPLETE])
        found = [info for info in (*staged, *own, *marks) if info.type != fs.FileType.NotFound]
        times = [info.mtime_ns / 1e9 for info in found if info.mtime_ns]
        return max(times) if times else datetime.datetime.fromisoformat(self._read_marker()["since"]).timestamp()

    def completed(self) -> bool:
        """Whether all files of this write are published, and those that they replace may have been deleted."""
        system, directory = self.files()
        return is_file(system, directory + _COMPLETE)

    def release(self) -> None:
        """Delete the staging directory and the markers. Safe to call twice."""
        system, directory = self.files()
        with contextlib.suppress(FileNotFoundError):
            system.delete_dir(directory)
        if self.claimed():
            delete_file(system, self._marker())
        if self.completed():
            delete_file(system, directory + _COMPLETE)
        delete_empty(system, posixpath.dirname(directory))

    def release_path(self) -> None:
        """Like `release`, and delete the local directory of the result if `claim` made it and it is empty."""
        made = self._made_the_path()
        self.release()
        if made:
            delete_empty(*self.located())

    def naming_the_path(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of the file system into WriteFailed, which names the path."""
        return naming(f"write_parquet: cannot write to {self.path!r}", WriteFailed)

    def _marker(self) -> str:
        _, directory = self.files()
        return f"{directory}.json"

    def _read_marker(self) -> Any:
        system, _ = self.located()
        with system.open_input_stream(self._marker()) as source:
            return json.loads(source.read(1 << 16))

    def _made_the_path(self) -> bool:
        """Whether there was no directory of the result before this write. False if its marker does not say so."""
        try:
            return self._read_marker()["made"] is True
        except (OSError, pa.ArrowException, ValueError, LookupError, TypeError):
            return False

    def _describe(self, other: str) -> str:
        writer = Staging(self.path, other)
        try:
            found = writer._read_marker()
            who = f"since {found['since']} from {found['host']}"
        except (OSError, pa.ArrowException, ValueError, LookupError):
            who = "for an unknown time"
        completed = writer.completed()
        if not writer.claimed():
            return f"another write to {self.path!r}, {other}, has ended meanwhile. Write again"
        own, marker = f"files below that path with {other} in their names", f"{_FOLDER}/{other}.json"
        if completed:
            remedy = (
                f"keep the {own}: they are the whole result of that write, and files that it replaces may be gone. "
                "If it was to overwrite, delete the older files that it replaces. "
                f"Delete {marker}, then the directory {_FOLDER}/{other} and {_FOLDER}/{other}{_COMPLETE}"
            )
        else:
            remedy = (
                f"the result is that of earlier writes. Delete the {own}, should there be any, then the directory "
                f"{_FOLDER}/{other}, and then {marker}"
            )
        return (
            f"another write to {self.path!r} has not ended: {other}, running {who}. Wait until it has ended. If its "
            f"driver was already killed, {remedy}. remote.recover_parquet({self.path!r}) does this"
        )
