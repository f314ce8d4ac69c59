"""DeadLetterWriter: failed rows as Parquet, one file per partition, which is either complete or missing."""

import contextlib
import hashlib
import posixpath
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from remote_udf.outcomes import RowError
from remote_udf.types import TIMESTAMP
from spark_client.base.errors import DeadLetterFailed
from spark_client.executor.engine.policy import ERROR_TYPE, error_array
from spark_client.executor.files import delete_file, naming
from spark_client.executor.stream.runtime import RUNTIME, Found, Listings, Runtime
from spark_client.executor.stream.task import TaskInfo

__all__ = ["LETTER_COLUMNS", "DeadLetterWriter", "EarlierLetters", "Operator"]

LETTER_COLUMNS = pa.schema(
    [
        pa.field("_function", pa.string()),
        pa.field("_error", ERROR_TYPE),
        pa.field("_time", TIMESTAMP),
        pa.field("_run", pa.string()),
        pa.field("_micro_batch", pa.int64()),
        pa.field("_partition", pa.int32()),
    ]
)
"""The columns of a dead letter besides those of the input: the function as name@version, the error, when it was
written, and its run, micro-batch (null outside of streaming queries) and the partition of its task."""
SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
"""The key in the metadata of a Parquet file under which Spark stores its own schema."""


@dataclass(frozen=True)
class Operator:
    """An operator of a plan: the id of its `with_columns` or `select`.

    `driver` identifies the process that made the plan. `partition` identifies the partition of the operator's input; it
    is None for one without rows. `micro_batch` has the query and the micro-batch if the tasks do not know them.
    """

    operation: str
    driver: str = ""
    partition: int | None = 0
    micro_batch: tuple[str, int] | None = None


class DeadLetterWriter:
    """Writes into the directory `path`, a local path or a URI that pyarrow.fs supports (file, s3, gs, hdfs).

    The name of the file contains the run, the micro-batch, the operator and the partition of its input, so a partition
    that is computed again replaces its file instead of adding one. The file appears under its name when the partition
    ends; one that fails leaves no file. A run is an operation of a batch job, or a streaming query with all its
    restarts: if a restarted query repeats a micro-batch, the files of that micro-batch are replaced.
    """

    def __init__(self, path: str, operator: Operator, spark_schema: str = "", runtime: Runtime = RUNTIME) -> None:
        """Writes nothing yet: a task without failed rows has no file. Raises DeadLetterFailed for an unknown URI."""
        self._path = path
        task = runtime.task()
        if operator.micro_batch is not None and not task.query:
            task = replace(task, query=operator.micro_batch[0], micro_batch=operator.micro_batch[1])
        self._task = task
        self._run = task.query or operator.operation
        self._spark_schema = spark_schema
        self._now = runtime.now
        self._base: str
        with self._naming_the_path():
            self._system, self._base = runtime.file_system(path)
        self._earlier: EarlierLetters | None = None
        if task.query:
            self._earlier = EarlierLetters(self._system, self._base, task, operator.driver, runtime.listings)
        self._has_rows = operator.partition is not None
        parts = [self._run, operator.partition, operator.operation[:8]]
        if self._earlier is not None:
            parts = [self._run, task.micro_batch, *parts[1:], self._earlier.restart]
        name = f"part-{'-'.join(map(str, parts))}.parquet"
        self._file = posixpath.join(self._base, name)
        # Spark ignores files whose names begin with an underscore.
        self._temporary = posixpath.join(self._base, f"_{name}.{uuid.uuid4().hex}")
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table, functions: Sequence[str], errors: Sequence[RowError]) -> None:
        """Add rows that failed, with the function and the error of each. Raises DeadLetterFailed."""
        count, task = len(errors), self._task
        own = [
            pa.array(functions, pa.string()),
            error_array(count, dict(enumerate(errors))),
            pa.repeat(pa.scalar(int(self._now() * 1e6), pa.int64()).cast(TIMESTAMP), count),
            pa.repeat(self._run, count),
            pa.repeat(pa.scalar(task.micro_batch if task.query else None, pa.int64()), count),
            pa.repeat(pa.scalar(task.partition, pa.int32()), count),
        ]
        schema = pa.schema([*rows.schema, *LETTER_COLUMNS])
        if self._spark_schema:
            schema = schema.with_metadata({SPARK_SCHEMA: self._spark_schema})
        letters = pa.Table.from_arrays([*rows.columns, *own], schema=schema)
        with self._naming_the_path():
            self._open(letters.schema).write_table(letters)

    def commit(self) -> None:
        """End a successful task: its file appears and replaces that of an earlier attempt. Raises DeadLetterFailed."""
        with self._naming_the_path():
            if self._writer is not None and self._sink is not None:
                self._writer.close()
                self._sink.close()
                self._system.move(self._temporary, self._file)
                self._sink = self._writer = None
            elif self._has_rows:
                delete_file(self._system, self._file)
            if self._earlier is not None:
                self._earlier.delete()

    def abort(self) -> None:
        """End a failed task: its file is removed. Safe to call after commit."""
        if self._sink is None:
            return
        # The task fails for another reason, which errors of the clean-up must not hide.
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

    def _naming_the_path(self) -> contextlib.AbstractContextManager[None]:
        return naming(f"option dead-letter: cannot write to {self._path!r}", DeadLetterFailed)


class EarlierLetters:
    """The dead letters of a micro-batch that were written before its streaming query was restarted.

    If a query ends in the middle of a micro-batch, its restart repeats that micro-batch, perhaps with other partitions.
    The dead letters are then written again, so the old files must be deleted. A query repeats at most its last
    micro-batch, so a process lists the directory once per restart, not per task.
    """

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
            delete_file(self._system, posixpath.join(self._base, name))

    def _look(self) -> Found:
        """Files of this and later micro-batches that another run of the query has written, also temporary files."""
        wanted = re.compile(rf"_?part-{re.escape(self._query)}-(\d+)-.*-([0-9a-f]{{8}})\.parquet.*")
        found: Found = {}
        for file in self._system.get_file_info(fs.FileSelector(self._base, allow_not_found=True)):
            match = wanted.fullmatch(file.base_name)
            if match and match[2] != self.restart and int(match[1]) >= self._micro_batch:
                found.setdefault(int(match[1]), []).append(file.base_name)
        return found
