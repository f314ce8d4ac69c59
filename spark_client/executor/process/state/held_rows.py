"""Rows that ORDER BY holds back until the watermark ensures that no earlier rows will arrive."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.process_calls import TABLE, ProcessCall, TableCall
from remote_udf.ranks import sort_keys
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.segment_batches import empty_lists
from spark_client.executor.process.state.pages import NEVER

__all__ = ["HeldRows", "order_times"]

Flags = npt.NDArray[np.bool_]


class HeldRows:
    """Rows and the entries to which they belong."""

    def __init__(self, process: ProcessCall, rows: pa.StructArray, entries: Integers) -> None:
        self._process = process
        self._rows = rows
        self._entries = entries
        self._times = order_times(process, rows)

    @classmethod
    def of(cls, process: ProcessCall, lists: pa.ListArray) -> "HeldRows":
        """The held rows of pages, given as one list per entry."""
        lengths = np.diff(lists.offsets.to_numpy())
        return cls(process, lists.flatten(), np.repeat(np.arange(len(lists)), lengths))

    def with_rows(self, rows: pa.StructArray, entries: Integers) -> "HeldRows":
        return HeldRows(self._process, pa.concat_arrays([self._rows, rows]), np.concatenate([self._entries, entries]))

    def due_times(self, watermark: int) -> tuple[Integers, Integers]:
        """The times of the rows up to the watermark, and their entries."""
        is_due = self._times <= watermark
        return self._times[is_due], self._entries[is_due]

    def due(self, watermark: int) -> tuple[pa.StructArray, Integers, "HeldRows"]:
        """The rows up to the watermark, sorted by entry and order, their entries, and the remaining rows."""
        is_due = self._times <= watermark
        rows, entries = self._chosen(is_due)
        order = self._order(rows, entries, self._times[is_due])
        return rows.take(pa.array(order)), entries[order], HeldRows(self._process, *self._chosen(~is_due))

    def _chosen(self, flags: Flags) -> tuple[pa.StructArray, Integers]:
        return self._rows.filter(pa.array(flags)), self._entries[flags]

    def _order(self, rows: pa.StructArray, entries: Integers, times: Integers) -> Integers:
        columns: dict[str, pa.Array] = {"entry": pa.array(entries), "time": pa.array(times), "table": rows.field(TABLE)}
        sorting = [(name, "ascending") for name in columns]
        for number, table in enumerate(self._process.tables):
            row = rows.field(str(number)).flatten()
            for each in table.order_by[1:]:
                keys = sort_keys(row[each.column], descending=each.descending, nulls_last=each.nulls_last)
                for name, values in zip(("missing", "value"), keys, strict=True):
                    key = f"{number} {each.column} {name}"
                    columns[key] = pa.array(values)
                    sorting.append((key, "ascending"))
        # The order of arrival is the last criterion, because Arrow's sort is not stable.
        columns["place"] = pa.array(np.arange(len(rows)))
        sorting.append(("place", "ascending"))
        places: Integers = pc.sort_indices(pa.table(columns), sort_keys=sorting).to_numpy().astype(np.int64)
        return places

    def lists(self, count: int) -> tuple[pa.ListArray, Integers]:
        """The rows as lists, one per entry, and the due time of the first row of each."""
        type_ = pa.list_(pa.field("element", self._rows.type))
        earliest = np.full(count, NEVER, np.int64)
        if not len(self._rows):
            return empty_lists(count, type_), earliest
        np.minimum.at(earliest, self._entries, self._times)
        order = np.argsort(self._entries, kind="stable")
        offsets = np.concatenate(([0], np.cumsum(np.bincount(self._entries, minlength=count)))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), self._rows.take(pa.array(order))), earliest


def order_times(process: ProcessCall, rows: pa.StructArray) -> Integers:
    """The time by which each row is ordered, in microseconds: before all others for null, NEVER without ORDER BY."""
    numbers = rows.field(TABLE).to_numpy(zero_copy_only=False)
    times = np.full(len(rows), NEVER, np.int64)
    for number, table in enumerate(process.tables):
        if table.order_by:
            mine = numbers == number
            times[mine] = _times(rows, number, table)[mine]
    return times


def _times(rows: pa.StructArray, number: int, table: TableCall) -> Integers:
    column = rows.field(str(number)).flatten()[table.order_by[0].column]
    micros = pc.fill_null(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), -NEVER)
    return np.asarray(micros.to_numpy(zero_copy_only=False), np.int64)
