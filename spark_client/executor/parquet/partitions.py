"""Divides rows among the directories of a partitioned result, under the names that Spark gives them."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.base.errors import WriteFailed

__all__ = ["by_directory"]

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for null and for an empty text, which it therefore reads as null."""
_ESCAPED = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that Spark escapes in names of directories."""
_YEARS = range(-719_162, 2_932_897)
"""The days since 1970 from the year 1 to 9999."""


def by_directory(batch: pa.RecordBatch, columns: Sequence[tuple[int, str]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each directory, such as `day=2026-01-01/shop=7`, in their order.

    Args:
        batch: The rows, with all of their columns.
        columns: The position and the name of each partition column, the outermost directory first.

    Raises:
        WriteFailed: A date is before the year 1 or after 9999, so Spark could not read it from a name.
    """
    if not batch.num_rows:
        return
    codes = np.zeros(batch.num_rows, np.int64)
    names: list[str] = [""]
    for position, name in columns:
        encoded = batch.column(position).dictionary_encode("encode")
        values = [f"{_escaped(name)}={_escaped(text)}" for text in _texts(encoded.dictionary, name)]
        own = encoded.indices.to_numpy(zero_copy_only=False)
        # Only combinations that there are get a name, so that their number is at most that of the rows.
        pairs, codes = np.unique(codes * len(values) + own, return_inverse=True)
        names = [f"{names[pair // len(values)]}/{values[pair % len(values)]}" for pair in pairs.tolist()]
    if len(names) == 1:
        yield names[0][1:], batch
        return
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    begin = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        # A slice of all rows would keep them in memory for as long as those of a rare value are held.
        yield name[1:], batch.take(pa.array(order[begin:end]))
        begin = end


def _texts(values: pa.Array, name: str) -> list[str]:
    """The values as Spark casts them to text."""
    if pa.types.is_date(values.type):
        days = pc.min_max(values.cast(pa.int32())).as_py()
        if days["min"] is not None and not (days["min"] in _YEARS and days["max"] in _YEARS):
            raise WriteFailed(f"partition column {name!r}: expected dates from the year 1 to 9999, found others")
    return [_text(value) for value in values.to_pylist()]


def _text(value: object) -> str:
    if value is None or value == "":
        return _NO_VALUE
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
