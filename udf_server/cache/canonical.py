"""Makes arguments equal that Spark compares as equal: NaN and NaN, 0.0 and -0.0, maps in another order.

Keys that an author computes may have types that arguments never have. Those that only store values in another way, such
as a dictionary, become the plain type.

Times need nothing, because they arrive as microseconds since 1970 in UTC, and neither do decimals, which arrive in the
scale that the function declares.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.raw_texts import as_list
from udf_server.stores.row_bytes import bytes_of_rows

__all__ = ["canonical_array"]

_PLAIN = {
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
}  # fmt: skip


def canonical_array(array: pa.Array) -> pa.Array:
    """The array with one representation of equal values. Maps become lists of structs that are sorted by key.

    Raises TypeError for a union, whose values are not compared.
    """
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return canonical_array(array.dictionary_decode())
    if type_ in _PLAIN:
        return array.cast(_PLAIN[type_])
    if pa.types.is_floating(type_):
        return _float(array)
    if pa.types.is_union(type_):
        raise TypeError("values of a union are not compared")
    if pa.types.is_struct(type_) and _needs_work(type_):
        children = [canonical_array(child) for child in array.flatten()]
        return _struct(children, array.is_null())
    if pa.types.is_list(type_) and _needs_work(type_):
        return _list(array, canonical_array(array.flatten()))
    if pa.types.is_map(type_):
        lists = as_list(array)
        entries = canonical_array(lists.flatten())
        return _list(lists, entries.take(_by_key(lists, entries)))
    return array


def _float(array: pa.Array) -> pa.Array:
    zero = pa.scalar(0.0, array.type)
    return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), pc.add(array, zero))


def _needs_work(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_needs_work(field.type) for field in type_)
    if pa.types.is_list(type_):
        return _needs_work(type_.value_type)
    plain = pa.types.is_floating, pa.types.is_map, pa.types.is_union, pa.types.is_dictionary
    return type_ in _PLAIN or any(is_type(type_) for is_type in plain)


def _struct(children: list[pa.Array], nulls: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(children, [str(number) for number in range(len(children))], mask=nulls)


def _list(array: pa.Array, elements: pa.Array) -> pa.Array:
    """The lists with other elements: `elements` replaces those of lists that are not null, one for one."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=array.is_null() if array.null_count else None)


def _by_key(maps: pa.Array, entries: pa.Array) -> pa.Array:
    """The order of the entries by map and key."""
    lengths = pc.fill_null(pc.list_value_length(maps), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(maps)), lengths)
    keys = bytes_of_rows(entries.flatten()[0])
    return pc.sort_indices(pa.table({"row": rows, "key": keys}), [("row", "ascending"), ("key", "ascending")])
