"""Unsent cuts the rows of a batch into the messages of one call."""

from collections.abc import Sequence

import pyarrow as pa

from spark_client.executor.engine.groups import Group
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Answer, Chunk, Rows

__all__ = ["Unsent"]


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
