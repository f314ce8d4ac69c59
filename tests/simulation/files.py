"""The directory of dead letters: files in memory that all processes of a world see."""

import posixpath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tests.simulation.scheduler import Process
from tests.simulation.threads import SimulatedThreads

__all__ = ["Files", "SharedFiles"]

SECONDS = (0.0005, 0.01)
"""How long the storage takes for a request."""


class SharedFiles:
    """Name to content."""

    def __init__(self) -> None:
        self.content: dict[str, pa.Buffer] = {}
        self.writers: dict[str, Process] = {}
        """Who wrote each file under its first name."""

    def abandoned(self) -> list[str]:
        """Temporary files of processes that did not end before they could delete them."""
        hidden = [name for name in sorted(self.content) if posixpath.basename(name).startswith("_")]
        return [name for name in hidden if self.writers[name].alive]

    def letters(self) -> list[dict[str, Any]]:
        """The rows that Spark would read: those of all files whose names do not begin with an underscore."""
        shown = [data for name, data in sorted(self.content.items()) if not posixpath.basename(name).startswith("_")]
        return [row for data in shown for row in pq.read_table(pa.BufferReader(data), use_threads=False).to_pylist()]


class Files:
    """What one process does with the files: what `DeadLetterWriter` needs of a `pyarrow.fs.FileSystem`."""

    def __init__(self, shared: SharedFiles, threads: SimulatedThreads, random: Any) -> None:
        self._shared, self._threads, self._random = shared, threads, random
        self._sinks: dict[str, pa.BufferOutputStream] = {}

    def open(self, path: str) -> tuple[Any, str]:
        return self, path

    def create_dir(self, path: str, *, recursive: bool) -> None:
        self._wait()

    def open_output_stream(self, path: str) -> pa.BufferOutputStream:
        self._wait()
        self._shared.content[path] = pa.py_buffer(b"")
        self._shared.writers[path] = self._threads.process
        self._sinks[path] = pa.BufferOutputStream()
        return self._sinks[path]

    def move(self, source: str, target: str) -> None:
        self.delete_file(source)
        self._shared.content[target] = self._sinks.pop(source).getvalue()

    def get_file_info(self, asked: Any) -> Any:
        """The state of one path, or the files below a `FileSelector`."""
        self._wait()
        if isinstance(asked, str):
            return fs.FileInfo(asked, fs.FileType.File if asked in self._shared.content else fs.FileType.NotFound)
        below = [name for name in sorted(self._shared.content) if posixpath.dirname(name) == asked.base_dir]
        return [fs.FileInfo(name, fs.FileType.File) for name in below]

    def delete_file(self, path: str) -> None:
        self._wait()
        if path not in self._shared.content:
            raise FileNotFoundError(path)
        del self._shared.content[path]

    def _wait(self) -> None:
        self._threads.sleep(self._random.uniform(*SECONDS))
