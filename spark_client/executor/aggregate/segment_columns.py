"""Builds bundles: rows grouped by key become Arrow columns of segments."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.functions import NullCall
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import KEY, list_of
from spark_client.base.calls import AggregateCall
from spark_client.executor.engine.pieces import Integers, at_rows
from spark_client.executor.engine.planned_calls import PlannedCall
from spark_client.executor.packed_batches import written
from spark_client.executor.segments.keys import key_codes

__all__ = [
    "AggregateInput",
    "RowsByKey",
    "accumulator_lists",
    "accumulators_column",
    "errors_column",
    "group_by_key",
    "group_by_runs",
    "packed_groups",
    "rows_column",
    "segment_call",
    "structs",
]


@dataclass(frozen=True)
class AggregateInput:
    """An aggregate call, with the positions of its arguments and its condition (a boolean column) in the input.

    To merge, it has the positions of its accumulators, which are null in rows without one, and of their errors.
    """

    call: AggregateCall
    columns: tuple[int, ...]
    condition: int | None = None
    accumulator: int | None = None
    error: int | None = None

    def takes(self, table: pa.Table) -> npt.NDArray[np.bool_] | None:
        """Which rows the function receives; None for all of them.

        Rows whose condition is not true are skipped, and if nulls are "skip", rows with a null argument.
        """
        chosen = None
        if self.condition is not None:
            chosen = pc.fill_null(table.column(self.condition), False).to_numpy()
        if self.call.spec.nulls is NullCall.SKIP:
            for column in self.columns:
                if table.column(column).null_count:
                    valid = table.column(column).is_valid().to_numpy()
                    chosen = valid if chosen is None else chosen & valid
        return None if chosen is None or chosen.all() else chosen


def segment_call(
    call: AggregateCall, columns: Mapping[str, int], errors: tuple[int, ...] = (), key: int | None = 0
) -> PlannedCall:
    """A call over segments. `columns` has positions by names on the wire; functions that see keys also get `key`."""
    given = {KEY: key, **columns} if key is not None and call.spec.sees_key else columns
    return PlannedCall(call, tuple(given.values()), errors, tuple(given))


@dataclass(frozen=True)
class RowsByKey:
    """Rows by key: `order` lists them by segment, each in input order; None if they are in this order already."""

    segments: int
    order: Integers | None
    offsets: Integers
    codes: Integers
    """The segment of each row."""

    def first_rows(self) -> Integers:
        """The first row of each segment."""
        return self.offsets[:-1] if self.order is None else self.order[self.offsets[:-1]]

    def last_rows(self) -> Integers:
        """The last row of each segment."""
        return self.offsets[1:] - 1 if self.order is None else self.order[self.offsets[1:] - 1]

    def sums(self, values: Integers) -> Integers:
        """The sum of the values of the rows of each segment."""
        totals = np.zeros(self.segments, np.int64)
        np.add.at(totals, self.codes, values)
        return totals


def group_by_key(keys: Sequence[pa.ChunkedArray], rows: int) -> RowsByKey:
    """One segment per key, in no particular order."""
    codes, count = key_codes(keys, rows)
    lengths = np.bincount(codes, minlength=count)
    if not lengths.all():  # a dictionary may contain values of no row
        encoded = pc.dictionary_encode(pa.array(codes))
        codes, count = encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
        lengths = np.bincount(codes, minlength=count)
    order = None if _ascends(codes) else _stable_order(codes, count)
    return RowsByKey(count, order, np.concatenate(([0], np.cumsum(lengths))), codes)


def group_by_runs(starts: Integers, rows: int) -> RowsByKey:
    """One segment per run of equal rows."""
    offsets = np.append(starts, rows)
    return RowsByKey(len(starts), None, offsets, np.repeat(np.arange(len(starts)), np.diff(offsets)))


def packed_groups(
    names: Sequence[str], by: Sequence[int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of each group as one packed batch, in the last of the columns `names`.

    The other names are those of the first columns of the input, which are the same for all rows of a group. `by` has
    the positions of those by which rows are grouped.
    """
    width = len(names) - 1
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        grouping = group_by_key([table.column(place) for place in by], table.num_rows)
        heads = table.select(range(width)).take(pa.array(grouping.first_rows()))
        rows = table.select(range(width, table.num_columns))
        ordered = rows if grouping.order is None else rows.take(pa.array(grouping.order))
        bounds = itertools.pairwise(grouping.offsets.tolist())
        packed = [written(ordered.slice(start, end - start).to_batches()) for start, end in bounds]
        columns = [*heads.combine_chunks().columns, pa.array(packed, pa.binary())]
        yield from pa.Table.from_arrays(columns, names=list(names)).to_batches()


def rows_column(
    source: AggregateInput, table: pa.Table, grouping: RowsByKey, kinds: pa.ChunkedArray | None
) -> pa.Array:
    """The `rows` of each segment: the arguments of one call, with their kinds if the input is a changelog."""
    order, offsets = grouping.order, grouping.offsets
    chosen = source.takes(table)
    if chosen is not None:
        order = np.flatnonzero(chosen) if order is None else order[chosen[order]]
        lengths = np.bincount(grouping.codes[chosen], minlength=grouping.segments)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
    parts = {} if kinds is None else {ROW_KIND: kinds}
    parts |= {str(index): table.column(column) for index, column in enumerate(source.columns)}
    flat = structs([_taken(column, order) for column in parts.values()], list(parts), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=list_of(flat.type))


def accumulators_column(accumulators: pa.ChunkedArray, grouping: RowsByKey) -> pa.Array:
    """The `accumulators` of each segment: the non-null ones of its rows."""
    flat = _taken(accumulators, grouping.order)
    offsets = grouping.offsets
    if flat.null_count:
        present = flat.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(present)))[offsets]
        flat = flat.drop_null()
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=list_of(flat.type))


def errors_column(errors: pa.ChunkedArray, grouping: RowsByKey) -> pa.Array:
    """The first error among each segment's rows, or null."""
    # In reverse order, so that the first error remains.
    present = np.flatnonzero(errors.is_valid().to_numpy())[::-1]
    return at_rows(errors.combine_chunks().take(pa.array(present)), grouping.codes[present], grouping.segments)


def structs(columns: Sequence[pa.Array], names: Sequence[str], count: int) -> pa.Array:
    """These columns as structs, such as the `key` of each segment. Without columns they are empty."""
    if not columns:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns), names=list(names))


def accumulator_lists(accumulators: Sequence[pa.Array | None], type_: pa.DataType) -> pa.Array:
    """The `accumulators` of one segment: those of the given arrays."""
    offsets = np.array([0, sum(len(each) for each in accumulators if each is not None)])
    present = [each for each in accumulators if each is not None]
    flat = pa.concat_arrays(present) if present else pa.array([], type_)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=list_of(type_))


def _taken(column: pa.ChunkedArray, order: Integers | None) -> pa.Array:
    array = column.combine_chunks()
    return array if order is None else array.take(pa.array(order))


def _stable_order(codes: Integers, count: int) -> Integers:
    """The rows sorted by code; rows with equal codes keep their order.

    Sorted by 16 bits at a time, because numpy then sorts by counting instead of comparing, which is several times
    faster.
    """
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    for shift in range(16, count.bit_length(), 16):
        order = order[np.argsort((codes >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def _ascends(codes: Integers) -> bool:
    return len(codes) < 2 or bool((codes[1:] >= codes[:-1]).all())
