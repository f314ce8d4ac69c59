"""Converts the output of segments to rows of the result, in batches of bounded size."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import OUTPUT, TIME, VALUE_OF_ROW
from remote_udf.row_kinds import ROW_KIND, RowKind
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers, cuts, row_bytes
from spark_client.executor.process.plan import OutputSource, ProcessPlan

__all__ = ["OutputRows", "cast"]

BATCH_BYTES = 8 << 20
"""The size of a batch of the result. If a long text is repeated for many rows, all of them do not fit an Arrow array.
"""
_KIND_NAMES = pa.array([kind.value for kind in RowKind])


class OutputRows:
    """Creates the rows of the result for one batch of segments.

    `keys` has a value per segment. `through` has the rows of the table whose columns are passed through; those of a
    segment begin at its entry in `starts`.
    """

    def __init__(
        self, plan: ProcessPlan, keys: Sequence[pa.Array], starts: Integers, through: pa.StructArray | None
    ) -> None:
        self._plan = plan
        self._keys = keys
        self._starts = starts
        sources = {source for source, _ in plan.output}
        self._through: Sequence[pa.Array] = ()
        self._key_bytes: Integers | None = None
        self._through_bytes: Integers | None = None
        if OutputSource.KEY in sources:
            self._key_bytes = sum((row_bytes(key) for key in keys), np.zeros(len(starts), np.int64))
        if OutputSource.THROUGH in sources:
            assert through is not None
            self._through, self._through_bytes = through.flatten(), row_bytes(through)

    def batches(self, completed: Completed) -> Iterator[pa.RecordBatch]:
        """The rows of some segments, by segment, in the order in which they were emitted."""
        values, done = completed.values[0], 0
        for row, parts in sorted(completed.parts.items(), key=lambda each: each[0]):
            yield from self._batches(values.slice(done, row - done), completed.first + done)
            for part in parts.values():
                yield from self._batches(part, completed.first + row)
            done = row
        yield from self._batches(values.slice(done), completed.first + done)

    def _batches(self, processed: pa.StructArray, first: int) -> Iterator[pa.RecordBatch]:
        """The rows of consecutive segments, beginning with segment `first`."""
        lists: pa.ListArray = processed.field(OUTPUT)
        segment = first + np.repeat(np.arange(len(processed)), np.diff(lists.offsets.to_numpy()))
        flat = lists.flatten()
        if not len(flat):
            return
        origins = None
        if self._through:
            origins = self._starts[segment] + flat.field("row").to_numpy(zero_copy_only=False)
        for start, stop in cuts(self._sizes(flat, segment, origins), BATCH_BYTES):
            chosen = slice(start, stop)
            yield self._batch(
                flat.slice(start, stop - start), segment[chosen], None if origins is None else origins[chosen]
            )

    def _sizes(self, flat: pa.StructArray, segment: Integers, origins: Integers | None) -> Integers:
        """The approximate size in bytes of each row of the result."""
        # The average suffices, because the output was received in messages of bounded size.
        sizes = np.full(len(flat), flat.nbytes // len(flat) + 1, np.int64)
        if self._key_bytes is not None:
            sizes += self._key_bytes[segment]
        if self._through_bytes is not None and origins is not None:
            sizes += self._through_bytes[origins]
        return sizes

    def _batch(self, flat: pa.StructArray, segment: Integers, origins: Integers | None) -> pa.RecordBatch:
        values = flat.field(VALUE_OF_ROW).flatten()
        columns = []
        for (source, which), target in zip(self._plan.output, self._plan.schema, strict=True):
            match source:
                case OutputSource.KEY:
                    column = self._keys[which].take(pa.array(segment))
                case OutputSource.THROUGH:
                    column = self._through[which].take(pa.array(origins))
                case OutputSource.VALUE:
                    column = values[which]
                case OutputSource.TIME:
                    column = flat.field(TIME)
                case OutputSource.ROW_KIND:
                    column = _KIND_NAMES.take(flat.field(ROW_KIND))
            columns.append(cast(column, target.type))
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(flat), pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.schema)


def cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The column in this type, which differs at most in time zone, names and nullability, or is wider.

    Fields of structs are matched by position at every depth, because typed rows have their own names, and Arrow's cast
    replaces fields that it does not find by name with nulls.
    """
    found = column.type
    if found.equals(type_):
        return column
    if pa.types.is_struct(type_) and pa.types.is_struct(found) and type_.num_fields:
        children = [cast(column.field(index), each.type) for index, each in enumerate(type_)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=_missing(column))
    if pa.types.is_list(type_) and pa.types.is_list(found):
        offsets, begin, length = _offsets(column)
        values = cast(column.values.slice(begin, length), type_.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=type_, mask=_missing(column))
    if pa.types.is_map(type_) and pa.types.is_map(found):
        offsets, begin, length = _offsets(column)
        keys = cast(column.keys.slice(begin, length), type_.key_type)
        items = cast(column.items.slice(begin, length), type_.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=_missing(column))
    return column.cast(type_)


def _offsets(column: pa.ListArray | pa.MapArray) -> tuple[pa.Array, int, int]:
    """The offsets relative to the first value, and the range of the values to which they refer."""
    offsets = column.offsets.to_numpy()
    begin = int(offsets[0]) if len(offsets) else 0
    return pa.array(offsets - begin), begin, int(offsets[-1]) - begin if len(offsets) else 0


def _missing(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None
