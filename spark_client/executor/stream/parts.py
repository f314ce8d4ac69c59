"""Parts of the value of one row that a server has sent before its answer, in a temporary file if they are large.

They are kept until the answer. If the server is lost first, they are discarded, and none of them was passed on.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ProtocolViolation

__all__ = ["Parts"]

MEMORY_BYTES = 1 << 20


class Parts:
    """The parts of the value of one row, in the order of their arrival."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES, dir=_folder())  # noqa: SIM115 - see close
        self._sizes: list[int] = []

    @property
    def count(self) -> int:
        return len(self._sizes)

    def add(self, number: int, data: memoryview) -> None:
        """Add the part of this number, as Arrow bytes. Raises ProtocolViolation unless it is the next one and valid."""
        if number != self.count + 1:
            raise ProtocolViolation(f"part {number} of a row came after part {self.count}")
        read_columns(data, self._schema, 1)
        self._file.write(data)
        self._sizes.append(len(data))

    def values(self) -> Iterator[pa.Array]:
        """An array of one value for each part. The file is closed after the last one."""
        self._file.seek(0)
        for size in self._sizes:
            yield read_columns(self._file.read(size), self._schema, 1)[-1]
        self.close()

    def close(self) -> None:
        """Close and delete the file. Safe to call twice."""
        self._file.close()


def _folder() -> str | None:
    """Spark's folder for data that does not fit in memory; None for the folder of the system."""
    folders = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each and Path(each).is_dir()]
    return folders[0] if folders else None
