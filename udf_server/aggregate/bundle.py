"""Bundle: segments of many keys as flat Arrow columns with offsets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS

__all__ = ["Bundle", "read_bundle"]

N = TypeVar("N", bound=np.generic)
Integers = npt.NDArray[np.int64]
_RETRACT_CODES = np.array([kind.is_retract for kind in RowKind])


@dataclass(frozen=True)
class Bundle:
    """Segments of many keys at once.

    `columns` has an array per argument, rows of all segments one after another; segment i has the rows
    `offsets[i]` up to `offsets[i + 1]`, in the order of the input where the caller asked for one.
    `kinds` are Flink's codes of the rows' kinds, or None where every row is +I. `accumulators` and
    `accumulator_offsets` are laid out the same way: a segment without one wants a new accumulator, one
    with several wants them merged before its first row. `key` is a struct array with a row per segment.
    Nothing but rows and accumulators is null by itself.
    """

    segments: int
    key: pa.StructArray
    columns: Sequence[pa.Array]
    offsets: Integers
    kinds: npt.NDArray[np.int8] | None
    accumulators: pa.Array
    accumulator_offsets: Integers

    @property
    def rows(self) -> int:
        """Rows of all segments together."""
        return int(self.offsets[-1])

    @cached_property
    def segment_of_row(self) -> Integers:
        """Per row, the segment it belongs to."""
        return np.repeat(np.arange(self.segments), np.diff(self.offsets))

    @cached_property
    def segment_of_accumulator(self) -> Integers:
        """Per accumulator, the segment it belongs to."""
        return np.repeat(np.arange(self.segments), np.diff(self.accumulator_offsets))

    @cached_property
    def retracts(self) -> npt.NDArray[np.bool_] | None:
        """Per row, whether it is taken back (-U, -D); None if no row is."""
        if self.kinds is None:
            return None
        found = _RETRACT_CODES[self.kinds]
        return found if found.any() else None

    def reduce_rows(self, reduce: np.ufunc, values: npt.NDArray[N], empty: N | float | None = None) -> npt.NDArray[N]:
        """Reduces the values of each segment's rows to one value per segment.

        Segments without rows are common: every segment of a merge is one. `np.minimum` and `np.maximum` have no
        identity that such a segment could get: pass one as `empty` that fits the type, such as
        `np.iinfo(np.int64).max` or `np.inf`, and return null for a segment that has no value at all.

        Args:
            reduce: `np.add`, `np.minimum` or another ufunc of two arguments.
            values: One value per row of the bundle.
            empty: What a segment without rows gets. Not needed for a ufunc with an identity, such as 0 for `np.add`.

        Returns:
            One value per segment, in the dtype of `values`, so that sums of integers stay exact.

        Raises:
            ValueError: The ufunc has no identity and `empty` is not given.

        """
        return _reduced(reduce, values, self.offsets, empty, "reduce_rows")

    def reduce_accumulators(
        self, reduce: np.ufunc, values: npt.NDArray[N], empty: N | float | None = None
    ) -> npt.NDArray[N]:
        """Reduces the values of each segment's accumulators: as `reduce_rows`, with one value per accumulator."""
        return _reduced(reduce, values, self.accumulator_offsets, empty, "reduce_accumulators")

    def without_rows(self) -> "Bundle":
        """The same segments before their first row."""
        return replace(
            self, columns=[column.slice(0, 0) for column in self.columns],
            offsets=np.zeros(self.segments + 1, np.int64), kinds=None if self.kinds is None else self.kinds[:0],
        )  # fmt: skip

    def row_of_each(self, chosen: Integers, rows: Integers, accumulators: pa.Array) -> "Bundle":
        """One row for each of the chosen segments, applied to one accumulator for each."""
        ones = np.arange(len(chosen) + 1)
        places = pa.array(rows)
        return Bundle(
            segments=len(chosen), key=self.key.take(pa.array(chosen)),
            columns=[column.take(places) for column in self.columns], offsets=ones,
            kinds=None if self.kinds is None else self.kinds[rows],
            accumulators=accumulators, accumulator_offsets=ones,
        )  # fmt: skip


def read_bundle(columns: dict[str, pa.Array], accumulator: pa.DataType, parameters: Sequence[pa.DataType]) -> Bundle:
    """The bundle in the columns of a batch; see message.proto for what they are.

    Without rows, `columns` has an array without elements for each of `parameters`.
    """
    segments = len(next(iter(columns.values())))
    arguments = [pa.array([], type_) for type_ in parameters]
    kinds = None
    offsets = np.zeros(segments + 1, np.int64)
    if ROWS in columns:
        flat, offsets = _flat(columns[ROWS])
        arguments = flat.flatten()
        if flat.type.num_fields and flat.type[0].name == ROW_KIND:
            codes = pc.fill_null(arguments.pop(0), RowKind.INSERT.code)
            kinds = codes.to_numpy(zero_copy_only=False)
            if len(kinds) and not 0 <= kinds.min() <= kinds.max() < len(_RETRACT_CODES):
                raise ValueError(f"{ROW_KIND} has codes from {kinds.min()} to {kinds.max()}, not from 0 to 3")
    accumulators, accumulator_offsets = pa.array([], accumulator), np.zeros(segments + 1, np.int64)
    if ACCUMULATORS in columns:
        accumulators, accumulator_offsets = _flat(columns[ACCUMULATORS])
        if accumulators.null_count:
            raise ValueError("an accumulator is null")
    key = columns.get(KEY)
    if key is None:
        key = pa.array([{}] * segments, pa.struct([]))
    return Bundle(segments, key, arguments, offsets, kinds, accumulators, accumulator_offsets)


def _reduced(
    reduce: np.ufunc, values: npt.NDArray[N], offsets: Integers, empty: N | float | None, method: str
) -> npt.NDArray[N]:
    if empty is None:
        if reduce.identity is None:
            raise ValueError(
                f"{method}: numpy.{reduce.__name__} has no value for a segment with nothing to reduce; pass `empty`, "
                "such as numpy.iinfo(numpy.int64).max for a minimum"
            )
        # By way of an array: -1, which bitwise_and has, is all ones in unsigned types.
        result = np.full(len(offsets) - 1, np.asarray(reduce.identity).astype(values.dtype), values.dtype)
    else:
        result = np.full(len(offsets) - 1, empty, values.dtype)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():
        result[filled] = reduce.reduceat(values, offsets[:-1][filled])
    return result


def _flat(lists: pa.Array) -> tuple[pa.Array, Integers]:
    """The elements of all lists and their offsets; a null list has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return lists.flatten(), offsets
