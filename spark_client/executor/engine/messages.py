"""Messages of a row engine: batches are joined or cut to messages, threads receive the outcomes of several streams."""

import queue
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from remote_udf.threads import Threads
from spark_client.executor.engine.groups import Group
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Answer, Chunk, Rows
from spark_client.executor.stream.in_flight import MESSAGE_BYTES

__all__ = ["Readers", "Unsent", "merged"]

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


class Readers:
    """One thread per stream, so that results of one call are received while another call has none."""

    def __init__(self, streams: dict[int, CallStream], threads: Threads) -> None:
        # The number of rows in flight bounds this queue.
        self._inbox: queue.SimpleQueue[tuple[int, list[Answer]] | BaseException] = threads.queue()
        self._streams = streams
        self._work = {index: threads.event() for index in streams}
        self._stopped = False
        for index in streams:
            threads.start("remote-udf-reader", self._read, index)

    def wake(self, index: int) -> None:
        """Resume the reader of this stream. Call when rows were submitted."""
        self._work[index].set()

    def ready(self) -> bool:
        """Whether `get` would return immediately."""
        return not self._inbox.empty()

    def get(self) -> tuple[int, list[Answer]]:
        """The next outcomes of any stream. Raises the exception that its reader raised."""
        item = self._inbox.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """End the threads. Each ends once its stream has no unanswered row or is closed."""
        self._stopped = True
        for event in self._work.values():
            event.set()

    def _read(self, index: int) -> None:
        stream, work = self._streams[index], self._work[index]
        try:
            while not self._stopped:
                work.wait()
                work.clear()
                while stream.unanswered and not self._stopped:
                    self._inbox.put((index, stream.receive()))
        except BaseException as error:
            self._inbox.put(error)
