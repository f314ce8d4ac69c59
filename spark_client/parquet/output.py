"""Writes the rows of a task to Parquet files in the staging directory of a write."""

import contextlib
import posixpath
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_client.base.errors import WriteFailed
from spark_client.executor.files import make_directory
from spark_client.executor.stream.task import current_task
from spark_client.parquet.staging import Staging

__all__ = ["FILE_COLUMNS", "OutputFile", "WritePlan", "by_directory", "parquet_writer", "write_files"]

FILE_COLUMNS = pa.schema(
    [
        pa.field("folder", pa.string()),
        pa.field("name", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("byte_count", pa.int64()),
    ]
)
"""The columns of what `write_files` yields."""
HELD_BYTES = 64 << 20
"""The maximum number of bytes of rows that a task holds for row groups of all its files."""
OPEN_FILES = 100
"""The maximum number of files that a task has open; beyond it, the one that was used longest ago is completed."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for null and for an empty text, which it therefore reads as null."""
_ESCAPED = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that Spark escapes in names of directories."""
_YEARS = range(-719_162, 2_932_897)
"""The days since 1970 from the year 1 to 9999."""


class OutputFile(NamedTuple):
    """A complete file: its directory below the path of the write, its name, its rows and its bytes."""

    folder: str
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write.

    `schema` has the fields of the files and their metadata, `columns` the positions of these fields in the input, and
    `partitions` the position and the name of each partition column.
    """

    staging: Staging
    schema: pa.Schema
    columns: tuple[int, ...]
    partitions: tuple[tuple[int, str], ...]
    compression: str
    row_group_rows: int


def write_files(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, and yield a row per file when all of them are complete.

    The names of the files belong to this attempt of the task alone. Raises WriteFailed, which names the path.
    """
    files = _Files(plan)
    try:
        for batch in batches:
            files.add(batch)
        complete = files.complete()
    finally:
        files.abandon()
    columns = list(zip(*complete, strict=True)) or [()] * len(FILE_COLUMNS)
    yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, FILE_COLUMNS.types)), schema=FILE_COLUMNS)


def parquet_writer(sink: pa.NativeFile, plan: WritePlan) -> pq.ParquetWriter:
    """A writer of a file whose types Spark reads as those of the plan."""
    return pq.ParquetWriter(sink, plan.schema, compression=plan.compression, store_decimal_as_integer=True)


@dataclass
class _Open:
    """A file that is being written, and the rows held for its next row group."""

    folder: str
    name: str
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    rows: int = 0


class _Files:
    """The files of a task."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._task, self._attempt = current_task().partition, uuid.uuid4().hex[:12]
        self._open: dict[str, _Open] = {}
        """By directory, the one that was used longest ago first."""
        self._held = 0
        self._complete: list[OutputFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raises WriteFailed."""
        with self._plan.staging.naming_the_path():
            parts = by_directory(batch, self._plan.partitions) if self._plan.partitions else [("", batch)]
            for folder, part in parts:
                if part.num_rows:
                    self._hold(folder, self._stored(part))

    def complete(self) -> list[OutputFile]:
        """Complete all files. Raises WriteFailed."""
        with self._plan.staging.naming_the_path():
            while self._open:
                self._finish(next(iter(self._open)))
        return self._complete

    def abandon(self) -> None:
        """Close what is open, without an error that would hide the first one. Safe after `complete`."""
        for file in self._open.values():
            for close in (file.writer.close, file.sink.close):
                with contextlib.suppress(Exception):  # packages of fsspec raise errors of their own
                    close()
        self._open.clear()

    def _stored(self, part: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._plan.schema
        arrays = [part.column(at).cast(each.type) for at, each in zip(self._plan.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _hold(self, folder: str, part: pa.RecordBatch) -> None:
        file = self._open.pop(folder, None) or self._create(folder)
        self._open[folder] = file
        most, rows = self._plan.row_group_rows, part.num_rows
        while part.num_rows:
            taken = part.slice(0, most - file.held_rows)
            part = part.slice(taken.num_rows)
            if taken.num_rows < rows and file.held_rows + taken.num_rows < most:
                # As a slice, the rest would keep the rows in memory that are written before it.
                taken = taken.take(pa.array(range(taken.num_rows)))
            file.held.append(taken)
            file.held_rows += taken.num_rows
            file.held_bytes += taken.nbytes
            self._held += taken.nbytes
            if file.held_rows >= most:
                self._write(file)
        while self._held > HELD_BYTES:
            self._write(max(self._open.values(), key=lambda each: each.held_bytes))

    def _write(self, file: _Open) -> None:
        """Write the held rows as a row group."""
        if file.held:
            file.writer.write_table(pa.Table.from_batches(file.held), row_group_size=file.held_rows)
        file.rows += file.held_rows
        self._held -= file.held_bytes
        file.held, file.held_rows, file.held_bytes = [], 0, 0

    def _create(self, folder: str) -> _Open:
        if len(self._open) >= OPEN_FILES:
            self._finish(next(iter(self._open)))
        plan = self._plan
        if not plan.staging.claimed():
            raise WriteFailed(f"write_parquet: this write to {plan.staging.path!r} has ended; its last tasks end too")
        system, base = plan.staging.files()
        number = len(self._complete) + len(self._open)
        codec = "" if plan.compression == "none" else f".{plan.compression}"
        name = f"part-{self._task:05d}-{plan.staging.write}-{self._attempt}-c{number:03d}{codec}.parquet"
        make_directory(system, posixpath.join(base, folder))
        sink = system.open_output_stream(posixpath.join(base, folder, name))
        return _Open(folder, name, sink, parquet_writer(sink, plan))

    def _finish(self, folder: str) -> None:
        file = self._open.pop(folder)
        try:
            self._write(file)
            file.writer.close()
            size = file.sink.tell()
            file.sink.close()
        except BaseException:
            self._open[folder] = file
            raise
        self._complete.append(OutputFile(folder, file.name, file.rows, size))


def by_directory(batch: pa.RecordBatch, columns: Sequence[tuple[int, str]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each directory, such as `day=2026-01-01/shop=7`, in their order.

    Args:
        batch: The rows, with all of their columns.
        columns: The position and the name of each partition column, the outermost directory first.

    Raises:
        WriteFailed: A date is before the year 1 or after 9999, so Spark could not read it from a name.
    """
    if not batch.num_rows:
        return
    codes = np.zeros(batch.num_rows, np.int64)
    names: list[str] = [""]
    for position, name in columns:
        encoded = batch.column(position).dictionary_encode("encode")
        values = [f"{_escaped(name)}={_escaped(text)}" for text in _texts(encoded.dictionary, name)]
        own = encoded.indices.to_numpy(zero_copy_only=False)
        # Only combinations that there are get a name, so that their number is at most that of the rows.
        pairs, codes = np.unique(codes * len(values) + own, return_inverse=True)
        names = [f"{names[pair // len(values)]}/{values[pair % len(values)]}" for pair in pairs.tolist()]
    if len(names) == 1:
        yield names[0][1:], batch
        return
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    begin = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        # A slice of all rows would keep them in memory for as long as those of a rare value are held.
        yield name[1:], batch.take(pa.array(order[begin:end]))
        begin = end


def _texts(values: pa.Array, name: str) -> list[str]:
    """The values as Spark casts them to text."""
    if pa.types.is_date(values.type):
        days = pc.min_max(values.cast(pa.int32())).as_py()
        if days["min"] is not None and not (days["min"] in _YEARS and days["max"] in _YEARS):
            raise WriteFailed(f"partition column {name!r}: expected dates from the year 1 to 9999, found others")
    return [_text(value) for value in values.to_pylist()]


def _text(value: object) -> str:
    if value is None or value == "":
        return _NO_VALUE
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
