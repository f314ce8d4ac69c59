"""DeadLetterWriter: failed rows as Parquet, one file per task, there in full or not at all."""

import contextlib
import posixpath
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from remote_udf.errors import capped
from remote_udf.outcomes import RowError
from spark_client.errors import DeadLetterFailed
from spark_client.executor.files import file_system
from spark_client.executor.policy import ERROR_TYPE, error_array
from spark_client.executor.task import TaskInfo

__all__ = ["DEAD_LETTER_COLUMNS", "DeadLetterWriter"]

DEAD_LETTER_COLUMNS = ("_function", "_error")
"""What a dead letter has besides the columns of the input: the function's name@version and the error."""
PROBLEM_LIMIT = 1_000
"""Characters of what a file system says."""


class DeadLetterWriter:
    """Writes into the directory `path`, a local path or a URI pyarrow.fs knows (file, s3, gs, hdfs).

    The file's name comes from the operation, the micro-batch and the partition, so that a task that
    is run again, whatever for, replaces its own file instead of adding one. It appears under that name
    when the task ends; a task that fails leaves nothing.
    """

    def __init__(self, path: str, operation_id: str, task: TaskInfo) -> None:
        """Writes nothing yet: a task without failed rows has no file. Raises DeadLetterFailed for an unknown URI."""
        self._path = path
        self._base: str
        with self._naming_the_path():
            self._system, self._base = file_system(path)
        name = f"part-{operation_id}-{task.micro_batch}-{task.partition}.parquet"
        self._file = posixpath.join(self._base, name)
        # Hidden from Spark, which passes over names that start with an underscore.
        self._temporary = posixpath.join(self._base, f"_{name}.{uuid.uuid4().hex}")
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table, functions: Sequence[str], errors: Sequence[RowError]) -> None:
        """Adds rows that failed: per row, whose function and why. Raises DeadLetterFailed."""
        names = pa.array(functions, pa.string())
        error = error_array(len(errors), dict(enumerate(errors)))
        fields = [
            *rows.schema,
            pa.field(DEAD_LETTER_COLUMNS[0], pa.string()),
            pa.field(DEAD_LETTER_COLUMNS[1], ERROR_TYPE),
        ]
        letters = pa.Table.from_arrays([*rows.columns, names, error], schema=pa.schema(fields))
        with self._naming_the_path():
            self._open(letters.schema).write_table(letters)

    def commit(self) -> None:
        """The task has ended well: its file appears, and an earlier attempt's is gone. Raises DeadLetterFailed."""
        with self._naming_the_path():
            if self._writer is not None and self._sink is not None:
                self._writer.close()
                self._sink.close()
                self._system.move(self._temporary, self._file)
                self._sink = self._writer = None
            elif self._system.get_file_info(self._file).type is not fs.FileType.NotFound:
                self._system.delete_file(self._file)

    def abort(self) -> None:
        """The task has failed: nothing of it stays. Safe to call after commit."""
        if self._sink is None:
            return
        # The task fails for another reason, which these must not hide.
        for last in (self._close_writer, self._sink.close, self._delete_temporary):
            with contextlib.suppress(OSError, pa.ArrowException):
                last()
        self._sink = self._writer = None

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        if self._writer is None:
            self._system.create_dir(self._base, recursive=True)
            self._sink = self._system.open_output_stream(self._temporary)
            self._writer = pq.ParquetWriter(self._sink, schema)
        return self._writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _delete_temporary(self) -> None:
        self._system.delete_file(self._temporary)

    @contextlib.contextmanager
    def _naming_the_path(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            problem = capped(str(error), PROBLEM_LIMIT)
            raise DeadLetterFailed(f"option dead-letter: cannot write to {self._path!r}: {problem}") from error
