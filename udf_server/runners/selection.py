"""Selection says which rows of a batch are called, if not all are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Indexes", "Selection"]

Indexes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a batch that are called. The others get their outcome elsewhere and are in no output."""

    columns: Sequence[pa.Array]
    """The arguments of all rows of the batch."""
    called: Indexes
    """The indexes of the rows that are called, in order."""
    starts: dict[int, float]
    """Gets the time at which the call of each row begins. It may be written on any thread."""
    clock: Callable[[], float]

    def take(self, row: tuple[int, Any]) -> tuple[int, Any]:
        """Note that the call of a row begins."""
        self.starts[row[0]] = self.clock()
        return row
