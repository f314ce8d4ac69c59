"""PiecewiseGroup is an input batch whose first rows are returned before its last rows are complete."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from spark_client.executor.engine.groups import Completed, Group
from spark_client.executor.stream.chunks import Parts, Rows, as_array

__all__ = ["PiecewiseGroup"]


class PiecewiseGroup(Group):
    """A group with one call. Outcomes are not joined, because those of a whole batch might not fit one array."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(table, [0])
        self._runs: dict[int, Completed] = {}
        """First row to consecutive rows whose outcomes were received and not returned."""
        self._next = 0
        self._run_bytes = 0

    @property
    def bytes(self) -> int:
        """Approximate bytes of its input and of the values in memory."""
        return self._table_bytes + self._run_bytes if self._left else 0

    def add(
        self, call: int, rows: Rows, values: pa.Array, errors: Mapping[int, RowError],
        parts: Mapping[int, Parts] | None = None,
    ) -> None:  # fmt: skip
        """Add outcomes."""
        for start, stop in _runs(rows):
            first, part = int(rows[start]), values.slice(start, stop - start)
            self._runs[first] = Completed(
                self._table.slice(first, len(part)),
                [part],
                [{row - start: error for row, error in errors.items() if start <= row < stop}],
                first,
                {row - start: each for row, each in (parts or {}).items() if start <= row < stop},
            )
            self._run_bytes += part.nbytes

    def take_front(self) -> Iterator[Completed]:
        """The complete rows before the first incomplete one."""
        while (run := self._runs.pop(self._next, None)) is not None:
            self._next += run.table.num_rows
            self._left -= run.table.num_rows
            self._run_bytes -= run.values[0].nbytes
            yield run


def _runs(rows: Rows) -> Iterator[tuple[int, int]]:
    """The beginning and end of each run of consecutive rows."""
    if isinstance(rows, range):
        yield 0, len(rows)
        return
    cuts = np.flatnonzero(np.diff(as_array(rows)) != 1) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
