"""Batches become messages: small ones are joined if messages may be larger, and the rows of large ones are cut."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from spark_client.executor.engine.groups import Group
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Answer, Chunk, Rows
from spark_client.executor.stream.message_sizing import MESSAGE_BYTES

__all__ = ["Boundaries", "Unsent", "merged"]

PATIENCE_SECONDS = 0.005
"""If the next input takes longer than this, the input is the bottleneck, so it is not useful to wait for more."""


def merged(
    batches: Iterator[pa.RecordBatch], wanted_rows: Callable[[], int], clock: Callable[[], float] = time.monotonic
) -> Iterator[pa.Table]:
    """The same rows in the same order, in tables of up to `wanted_rows` and MESSAGE_BYTES. Batches are never split.

    Batches without rows are skipped. The cost of a message hardly depends on its size: a cheap
    function is several times faster with 64k rows per message than with Spark's 10k.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    while True:
        asked = clock()
        batch = next(batches, None)
        slow = clock() - asked > PATIENCE_SECONDS
        if batch is not None and not batch.num_rows:
            continue
        fits = batch is not None and rows + batch.num_rows <= wanted_rows() and size + batch.nbytes <= MESSAGE_BYTES
        if held and not fits:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        if batch is None:
            return
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if slow or rows >= wanted_rows():
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0


class Boundaries:
    """The sizes of input batches, for an output that must have one batch for each, in the same order.

    Spark pairs the batches of a scalar function's output with those of its input, without documenting it, if it passes
    columnar input (`spark.sql.execution.arrow.pythonUDF.columnarInput.enabled`, from 4.2 on).
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()

    def noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; their sizes are recorded."""
        for batch in batches:
            self._sizes.append(batch.num_rows)
            yield batch

    def cut(self, column: pa.Array) -> Iterator[pa.Array]:
        """Cut the next rows of the output, which must belong to whole input batches, into one array per batch."""
        start = 0
        while self._sizes and start + self._sizes[0] <= len(column):
            size = self._sizes.popleft()
            yield column.slice(start, size)
            start += size
        assert start == len(column)


class Unsent:
    """The rows of one group that were not sent to one call yet. `columns` has only these rows."""

    def __init__(self, group: Group, columns: Sequence[pa.Array], rows: Rows) -> None:
        self._group = group
        self._columns = columns
        self._rows = rows
        self._sent = 0
        self._row_bytes = sum(column.nbytes for column in columns) / max(len(rows), 1)

    @property
    def left(self) -> int:
        return len(self._rows) - self._sent

    def submit(self, stream: CallStream, share: int = 1) -> list[Answer]:
        """Send the rows of one message, of which the stream would send `share` times as many."""
        count = min(stream.next_rows(self.left, self._row_bytes), max(stream.message_rows // share, 1))
        start, self._sent = self._sent, self._sent + count
        columns = [column.slice(start, count) for column in self._columns]
        return stream.submit(
            Chunk(self._group, self._rows[start : self._sent], columns, int(self._row_bytes * count) + 1)
        )
