"""DeadLetterWriter: failed rows as Parquet, one file per task, there in full or not at all."""

import posixpath
import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from remote_udf.outcomes import RowError
from spark_client.executor.policy import ERROR_TYPE, error_array
from spark_client.executor.task import TaskInfo

__all__ = ["DEAD_LETTER_COLUMNS", "DeadLetterWriter", "dead_letters"]

DEAD_LETTER_COLUMNS = ("_function", "_error")
"""What a dead letter has besides the columns of the input: the function's name@version and the error."""


class DeadLetterWriter:
    """Writes into the directory `path`, a local path or a URI pyarrow.fs knows (file, s3, gs, hdfs).

    The file's name comes from the operation, the micro-table and the partition, so that a task that
    is run again, whatever for, replaces its own file instead of adding one. It appears under that name
    when the task ends; a task that fails leaves nothing.
    """

    def __init__(self, path: str, operation_id: str, task: TaskInfo, schema: pa.Schema) -> None:
        """Opens nothing yet: a task without failed rows writes no file."""
        self._path = path
        self._name = f"part-{operation_id}-{task.micro_batch}-{task.partition}.parquet"
        # Hidden from Spark, which passes over names that start with an underscore.
        self._temporary = f"_{self._name}.{uuid.uuid4().hex}"
        self._schema = pa.schema(
            [*schema, pa.field(DEAD_LETTER_COLUMNS[0], pa.string()), pa.field(DEAD_LETTER_COLUMNS[1], ERROR_TYPE)]
        )
        self._system: fs.FileSystem | None = None
        self._base = ""
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table, functions: Mapping[int, str], errors: Mapping[int, RowError]) -> None:
        """Adds the rows of the batch that have an error; `functions` says whose, by row. Raises OSError."""
        rows = sorted(errors)
        letters = table.take(pa.array(rows, pa.int64()))
        names = pa.array([functions[row] for row in rows], pa.string())
        error = error_array(len(rows), {index: errors[row] for index, row in enumerate(rows)})
        self._open().write_table(pa.Table.from_arrays([*letters.columns, names, error], schema=self._schema))

    def commit(self) -> None:
        """The task has ended well: the file appears, replacing one of an earlier attempt."""
        if self._writer is not None and self._system is not None:
            self._writer.close()
            self._system.move(self._at(self._temporary), self._at(self._name))
            self._writer = None

    def abort(self) -> None:
        """The task has failed: nothing of it stays. Safe to call after commit."""
        if self._writer is not None and self._system is not None:
            self._writer.close()
            self._writer = None
            self._system.delete_file(self._at(self._temporary))

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            if "://" in self._path:
                self._system, self._base = fs.FileSystem.from_uri(self._path)
            else:
                self._system, self._base = fs.LocalFileSystem(), self._path
            self._system.create_dir(self._base, recursive=True)
            self._writer = pq.ParquetWriter(self._at(self._temporary), self._schema, filesystem=self._system)
        return self._writer

    def _at(self, name: str) -> str:
        return posixpath.join(self._base, name)


def dead_letters(
    errors: Sequence[Mapping[int, RowError]], functions: Sequence[str]
) -> tuple[dict[int, str], dict[int, RowError]]:
    """Per failed row, the first of its calls that failed: whose it was, and the error."""
    owners: dict[int, str] = {}
    first: dict[int, RowError] = {}
    for name, found in zip(functions, errors, strict=True):
        for row, error in found.items():
            owners.setdefault(row, name)
            first.setdefault(row, error)
    return owners, first
