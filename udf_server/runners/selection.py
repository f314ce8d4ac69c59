"""Selection says which rows of a batch are called, if not all are, and which of them have begun."""

import collections
import itertools
import operator
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remote_udf.functions import FunctionSpec, NullCall

__all__ = ["Indexes", "Selection", "rows_without_null"]

Indexes = NDArray[np.int64]


class Selection:
    """The rows of a batch that are called. The others get their outcome elsewhere and are in no output.

    Whoever calls rows takes them from the front of one iterator. It is implemented in C, so threads may share it, and
    which rows have begun is known although nothing is written per row. Methods are safe to call from any thread.
    """

    def __init__(self, columns: Sequence[pa.Array], called: Indexes) -> None:
        """`columns` are the arguments of all rows of the batch; `called` has the indexes of the selection, in order."""
        self.columns = columns
        self.called = called
        self._rows: Sequence[int] = called.tolist()
        self._left: Iterator[int] = iter(self._rows)
        self._ended: int | None = None
        """Number of rows that had begun when the others were dropped; None before."""
        self._lock = threading.Lock()

    def rows_to_call(self, rows: Sequence[int]) -> Iterator[int]:
        """An iterator of the rows to call. Whoever takes a row from it must call the row.

        `rows` are those of the selection that have no outcome yet.
        """
        with self._lock:
            if self._ended is None:
                self._rows, self._left = rows, iter(rows)
            return self._left

    def take(self, count: int) -> bool:
        """Take the first `count` rows of the selection. Returns False if some of them were dropped."""
        with self._lock:
            missing = count - self._taken
            if missing > 0 and self._ended is None:
                collections.deque(itertools.islice(self._left, missing), maxlen=0)
                return True
            return missing <= 0

    @property
    def begun(self) -> Sequence[int]:
        """The rows that were taken."""
        with self._lock:
            return self._rows[: self._taken]

    def drop(self) -> list[int]:
        """Have no further row called. Returns the rows that were not taken."""
        with self._lock:
            dropped = list(self._left)
            self._ended = len(self._rows) - len(dropped)
            return dropped

    @property
    def dropped(self) -> bool:
        """Whether `drop` was called."""
        return self._ended is not None

    @property
    def _taken(self) -> int:
        return len(self._rows) - operator.length_hint(self._left) if self._ended is None else self._ended


def rows_without_null(spec: FunctionSpec, columns: Sequence[pa.Array]) -> Indexes | None:
    """The rows that the function is called for, because none of their arguments is null; None for all rows."""
    if spec.nulls is not NullCall.SKIP or not any(column.null_count for column in columns):
        return None
    present = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    return np.flatnonzero(present)
