"""Columns with texts that are not UTF-8. Spark reads such texts from files; Arrow and Python have no text for them.

Such a column is carried with RAW in place of string at every depth, so that its type says that its texts were not
checked. `read_texts` makes texts of it and names the rows that have none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RAW", "Refused", "Unreadable", "alike", "as_list", "raw", "read_texts", "replaced"]

_Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
RAW = pa.large_binary()
"""The type in place of string. No argument has it otherwise, because binaries are sent as binary."""
_RAW_NAME = str(RAW)


class Unreadable(NamedTuple):
    """A text that is not UTF-8."""

    path: tuple[str, ...]
    """The names of the fields of structs that lead to the text."""
    problem: str

    @property
    def described(self) -> str:
        """The problem after the names of the fields."""
        return "".join(f"field {name!r}: " for name in self.path) + self.problem


Refused = dict[int, Unreadable]
"""Rows with such a text, and the first one of each."""


def replaced(type_: pa.DataType, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """The type with `new` in place of `old` at every depth."""
    if type_ == old:
        return new
    if pa.types.is_list(type_):
        return pa.list_(_replaced(type_.value_field, old, new))
    if pa.types.is_map(type_):
        return pa.map_(_replaced(type_.key_field, old, new), _replaced(type_.item_field, old, new))
    if pa.types.is_struct(type_):
        return pa.struct([_replaced(field, old, new) for field in type_])
    return type_


def _replaced(field: pa.Field, old: pa.DataType, new: pa.DataType) -> pa.Field:
    return field.with_type(replaced(field.type, old, new))


def raw(type_: pa.DataType) -> pa.DataType:
    """The type with RAW in place of string."""
    return replaced(type_, pa.string(), RAW)


def alike(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Arrays of one argument: all of them raw if one of them is, otherwise as they are."""
    if len({array.type for array in arrays}) == 1:
        return arrays
    return [array.cast(raw(array.type)) for array in arrays]


def read_texts(array: pa.Array) -> tuple[pa.Array, Refused]:
    """The array without RAW in its type, and the rows with a text that is not UTF-8, which is empty in the array.

    An array whose type has no RAW is returned unchanged.
    """
    if _RAW_NAME not in str(array.type):  # a tenth of the time of `replaced`, and columns are rarely raw
        return array, {}
    return _read(array, replaced(array.type, RAW, pa.string()))


def _read(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Refused]:
    if array.type == type_:
        return array, {}
    if pa.types.is_struct(type_):
        return _struct(array, type_)
    if pa.types.is_list(type_):
        lengths = _lengths(array)
        elements, refused = _read(array.flatten(), type_.value_type)
        made = pa.ListArray.from_arrays(_offsets(lengths), elements, type=type_, mask=_mask(array))
        return made, _of_rows(refused, lengths)
    if pa.types.is_map(type_):
        lists = as_list(array)
        lengths, entries = _lengths(lists), lists.flatten().flatten()
        (keys, refused), (items, others) = map(_read, entries, (type_.key_type, type_.item_type))
        made = pa.MapArray.from_arrays(_offsets(lengths), keys, items, type=type_, mask=_mask(array))
        return made, _of_rows({**others, **refused}, lengths)
    return _texts(array, type_)


def as_list(array: pa.Array) -> pa.Array:
    """A map as a list of structs."""
    type_ = array.type
    if array.offset:
        # Arrow does not slice the nulls of a struct when it casts a part of an array, and ends the process afterwards.
        array = pa.concat_arrays([array])
    return array.cast(pa.list_(pa.struct([pa.field("key", type_.key_type), pa.field("value", type_.item_type)])))


def _texts(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Refused]:
    texts, refused = array.to_pylist(), Refused()
    for row, text in enumerate(texts):
        try:
            texts[row] = text if text is None else text.decode()
        except UnicodeDecodeError as error:
            texts[row], byte = "", text[error.start]
            refused[row] = Unreadable((), f"a text is not UTF-8: byte 0x{byte:02x} at position {error.start}")
    return pa.array(texts, type_), refused


def _struct(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Refused]:
    parts, refused = [], Refused()
    # The fields of a struct that is null are null in `flatten`.
    for field, part in zip(type_, array.flatten(), strict=True):
        made, wrong = _read(part, field.type)
        parts.append(made)
        for row, text in wrong.items():
            refused.setdefault(row, text._replace(path=(field.name, *text.path)))
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=_mask(array)), refused


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _lengths(array: pa.Array) -> _Integers:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _offsets(lengths: _Integers) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _of_rows(refused: Refused, lengths: _Integers) -> Refused:
    """The texts of elements by the rows that have the elements."""
    if not refused:
        return {}
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return {int(rows[element]): text for element, text in sorted(refused.items(), reverse=True)}
