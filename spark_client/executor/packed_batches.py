"""Packed batches: rows as an Arrow stream in a binary column, which Spark's operators with state move as one row.

Those operators hand rows to Python one by one, or as pandas, where types and nulls would not be those of Arrow.
"""

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["read", "unpacked", "written"]


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of packed batches, which must be the only column."""
    for batch in batches:
        for packed in batch.column(0):
            yield from pa.ipc.open_stream(packed.as_buffer())


def written(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Packs batches of one schema into one value. Pass at least one batch."""
    sink, writer = io.BytesIO(), None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write(batch)
    assert writer is not None
    writer.close()
    return sink.getvalue()


def read(packed: bytes) -> list[pa.RecordBatch]:
    """The batches that were packed into one value."""
    return list(pa.ipc.open_stream(packed))
