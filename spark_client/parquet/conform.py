"""Converts columns of Parquet files to the types that Spark gives them.

As in Spark's own reader, types are widened, never narrowed, and a field that a file does not have is null. Dates and
times that are in the hybrid calendar of old versions of Spark are refused.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_client.base.errors import ReadFailed

__all__ = ["Calendars", "columns_in_old_calendar", "conformed", "named", "require_one_calendar"]

_VERSION = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_FIRST_DATE = pa.scalar(datetime.date(1582, 10, 15), pa.date32())
_FIRST_TIMESTAMP = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)
"""From here on, values mean the same in the calendar of old files and in Spark's; Spark has the same limits."""

_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64(), pa.duration("us")),
    pa.int64(): (pa.duration("us"),),
    pa.uint8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.uint16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.uint32(): (pa.int64(),),
    pa.uint64(): (pa.decimal128(20, 0),),
    pa.float32(): (pa.float64(),),
    pa.date32(): (pa.timestamp("us"),),
    pa.date64(): (pa.date32(),),
}
_DIGITS = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""The digits before the point that Spark requires of a decimal as which it reads an integer."""


def conformed(array: pa.Array, type_: pa.DataType, where: str, *, case_sensitive: bool) -> pa.Array:
    """The column with the given type.

    Args:
        array: The column as pyarrow reads it.
        type_: The type that Spark gives the column.
        where: The column and its file, for errors.
        case_sensitive: Whether fields whose names differ in case are different.

    Raises:
        ReadFailed: Spark would have to narrow or reinterpret the values.
    """
    found = array.type
    if found == type_:
        return array
    if isinstance(array, pa.ExtensionArray):
        return conformed(array.storage, type_, where, case_sensitive=case_sensitive)
    if pa.types.is_dictionary(found):
        return conformed(array.dictionary_decode(), type_, where, case_sensitive=case_sensitive)
    if pa.types.is_struct(type_) and pa.types.is_struct(found):
        return _struct(array, type_, where, case_sensitive=case_sensitive)
    if pa.types.is_map(type_) and pa.types.is_map(found):
        whole = _from_zero(array)
        keys = conformed(whole.keys, type_.key_type, f"{where}.key", case_sensitive=case_sensitive)
        items = conformed(whole.items, type_.item_type, f"{where}.value", case_sensitive=case_sensitive)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, type_, mask=_nulls(whole))
    if pa.types.is_list(type_) and _is_list(found):
        values = conformed(array.flatten(), type_.value_type, f"{where}.element", case_sensitive=case_sensitive)
        return pa.ListArray.from_arrays(_offsets(array), values, type_, mask=_nulls(array))
    if not _fits(found, type_):
        raise ReadFailed(
            f"{where}: the file has type {found}, and Spark reads the column as {type_}, for which values would have "
            "to be narrowed or reinterpreted; read these files by spark.read.parquet, or write the file again"
        )
    return array.cast(type_)


def named(names: Mapping[str, int], fields: list[str], name: str, where: str, *, case_sensitive: bool) -> int | None:
    """The position of the field that Spark reads under `name`; None if there is none.

    `names` are the positions of `fields`. Raises ReadFailed if several fields differ in case only.
    """
    if case_sensitive:
        return names.get(name)
    same = [position for position, field in enumerate(fields) if field.lower() == name.lower()]
    if len(same) > 1:
        found = ", ".join(fields[position] for position in same)
        raise ReadFailed(f"{where}: {name!r} is ambiguous, because the file has {found}; set spark.sql.caseSensitive")
    return same[0] if same else None


@dataclass(frozen=True)
class Calendars:
    """Whether Spark reads files of unknown origin as they are: `datetimeRebaseModeInRead` is CORRECTED.

    `int96` says the same of times in the old form INT96.
    """

    datetimes: bool
    int96: bool


def columns_in_old_calendar(file: pq.ParquetFile, calendars: Calendars) -> set[str]:
    """The top-level columns whose dates and times Spark would convert from the hybrid calendar.

    Spark marks files that it writes in that calendar; Spark 2 always did so without a mark.
    """
    metadata = file.metadata.metadata or {}
    version = metadata.get(_VERSION)
    if version is None:
        datetimes, int96 = not calendars.datetimes, not calendars.int96
    else:
        # Spark compares the versions as texts, too.
        datetimes = version < b"3.0.0" or _LEGACY in metadata
        int96 = version < b"3.1.0" or _LEGACY_INT96 in metadata
    if not datetimes and not int96:
        return set()
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    return {leaf.path.partition(".")[0] for leaf in leaves if (int96 if leaf.physical_type == "INT96" else datetimes)}


def require_one_calendar(array: pa.Array, where: str) -> None:
    """Raise ReadFailed if a value of a file in the hybrid calendar means something else in Spark's calendar."""
    for leaf in _leaves(array):
        if pa.types.is_date(leaf.type):
            first: pa.Scalar = _FIRST_DATE
        elif pa.types.is_timestamp(leaf.type) and leaf.type.tz is not None:
            first = pa.scalar(_FIRST_TIMESTAMP, leaf.type)
        else:
            continue
        least = pc.min(leaf)
        if least.is_valid and pc.less(least, first).as_py():
            raise ReadFailed(
                f"{where}: the file may have been written in the hybrid calendar of Spark 2, in which {least} is "
                "another day; read these files by spark.read.parquet, or write them again by Spark 3 or later"
            )


def _struct(array: pa.StructArray, type_: pa.StructType, where: str, *, case_sensitive: bool) -> pa.StructArray:
    parts, fields = array.flatten(), [field.name for field in array.type]
    names = {name: position for position, name in enumerate(fields)}
    columns = []
    for field in type_:
        position = named(names, fields, field.name, where, case_sensitive=case_sensitive)
        if position is None:
            columns.append(pa.nulls(len(array), field.type))
        else:
            inner = f"{where}.{field.name}"
            columns.append(conformed(parts[position], field.type, inner, case_sensitive=case_sensitive))
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=_nulls(array))


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(array.type):
        parts = array.flatten()
    elif pa.types.is_map(array.type):
        parts = array.flatten().flatten()
    elif _is_list(array.type):
        parts = [array.flatten()]
    else:
        yield array
        return
    for part in parts:
        yield from _leaves(part)


def _from_zero(array: pa.Array) -> pa.Array:
    """The map with offsets that begin at its own beginning, which `from_arrays` requires if there are nulls."""
    return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array


def _offsets(lists: pa.Array) -> pa.Array:
    """Where in the flattened values each list begins. A cast of a view of lists to lists fails in pyarrow."""
    lengths = pc.list_value_length(lists).fill_null(0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _is_list(type_: pa.DataType) -> bool:
    kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view
    return any(is_kind(type_) for is_kind in (*kinds, pa.types.is_large_list_view))


def _fits(found: pa.DataType, type_: pa.DataType) -> bool:
    # A file whose values of a column are all null may have no type for it.
    if pa.types.is_null(found) or type_ in _WIDER.get(found, ()):
        return True
    if pa.types.is_decimal(type_):
        whole = type_.precision - type_.scale
        if pa.types.is_decimal(found):
            return found.scale <= type_.scale and found.precision - found.scale <= whole
        return whole >= _DIGITS.get(found, whole + 1)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(type_):
        # A time without zone may be read as one in UTC. Spark refuses the reverse, and reads no nanoseconds.
        return found.unit != "ns" and (found.tz is None or type_.tz is not None)
    if type_ == pa.int64():
        return pa.types.is_duration(found) or (pa.types.is_timestamp(found) and found.unit == "ns")
    if pa.types.is_time64(type_):
        return pa.types.is_time64(found) and found.unit == "us"
    bytes_ = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    if not (pa.types.is_binary(type_) or pa.types.is_string(type_)):
        return False
    return any(is_kind(found) for is_kind in (*bytes_, *texts))
