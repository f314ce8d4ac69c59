"""RowKeys computes the keys under which outcomes are kept: 128 bits of a hash per row."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.raw_texts import as_list, read_texts
from remote_udf.types import spelled
from udf_server.declaring.annotations import AuthorCode
from udf_server.declaring.functions import Function
from udf_server.runners.outputs import Mask
from udf_server.runners.selection import rows_without_null
from udf_server.stores.row_bytes import bytes_of_rows
from udf_server.values.values import decode_rows

__all__ = ["KEY_BYTES", "LARGEST_ARGUMENTS", "RowKeys", "canonical_array"]

KEY_BYTES = 16
LARGEST_ARGUMENTS = 1 << 20
"""A row whose arguments have more bytes has no key."""
_FORMAT = 3
"""Raise it if the same arguments get other bytes, or entries get another format, so that older entries are not hit."""
_KEY_TYPES = (str, bytes, int, float, bool, type(None))


class RowKeys:
    """The keys of the rows of one stream. Use it on any thread."""

    def __init__(
        self, function: Function, types: Sequence[pa.DataType], text: str | None, caller: str, code: str = ""
    ) -> None:
        """The keys differ by function, version, declaration, types, the option `cache-key`, the caller and the code.

        Args:
            function: The function, which may have a `cache_key` of its author.
            types: The types of the arguments.
            text: The option `cache-key`.
            caller: The identity of the caller; empty if all callers share outcomes.
            code: Identifies the code of the function; empty if only a new version tells that it has changed.
        """
        spec = function.spec
        facts = [_FORMAT, spec.name, spec.version, spec.fingerprint, [spelled(type_) for type_ in types], text, caller]
        if code:
            facts.append(code)
        prefix = hashlib.sha256(json.dumps(facts).encode()).digest()
        # BLAKE2b is used because callers choose the arguments: nobody can find other arguments with the same key.
        # The prefix is passed as salt and person, because a key would be hashed again for each row.
        self._hash = hashlib.blake2b(digest_size=KEY_BYTES, salt=prefix[:16], person=prefix[16:])
        self._function = function
        self._types = types
        self._vectorized = spec.execution.value == "vectorized"

    def skipped(self, columns: Sequence[pa.Array]) -> Mask | None:
        """True for the rows that are not called because an argument is null; None if there is no such row."""
        called = rows_without_null(self._function.spec, columns)
        if called is None:
            return None
        skipped = np.ones(len(columns[0]), np.bool_)
        skipped[called] = False
        return skipped

    def of(self, columns: Sequence[pa.Array], rows: int) -> list[bytes | None]:
        """The key of each row; None for a row without one, because its arguments are too large or not comparable."""
        return self.hashed(self.bytes_of(columns, rows))

    def bytes_of(self, columns: Sequence[pa.Array], rows: int) -> "Sequence[bytes | None]":
        """What the key of each row is made of, for `hashed`; None for a row without a key."""
        author = self._function.cache_key
        if author is not None:
            return self._by_author(author, columns, rows)
        if not columns:
            return [b""] * rows
        try:
            parts = [canonical_array(column) for column in columns]
            names = [str(number) for number in range(len(parts))]
            found: list[bytes | None] = bytes_of_rows(pa.StructArray.from_arrays(parts, names)).to_pylist()
            return found
        except (TypeError, pa.ArrowException):
            return [None] * rows

    def hashed(self, rows: "Sequence[bytes | None]") -> list[bytes | None]:
        """The keys of rows, given the result of `bytes_of`."""
        keys: list[bytes | None] = []
        new = self._hash.copy
        for row in rows:
            if row is None or len(row) > LARGEST_ARGUMENTS:
                keys.append(None)
                continue
            hashed = new()
            hashed.update(row)
            keys.append(hashed.digest())
        return keys

    def _by_author(self, author: AuthorCode, columns: Sequence[pa.Array], rows: int) -> "Sequence[bytes | None]":
        if self._vectorized:
            return self._by_vectorized_author(author, columns, rows)
        decoded = [
            decode_rows(self._function.codec_for(position, type_), column)
            for position, (type_, column) in enumerate(zip(self._types, columns, strict=True))
        ]
        failed = {row for _, failures in decoded for row in failures}
        arguments = zip(*(values for values, _ in decoded), strict=True) if decoded else iter([()] * rows)
        return [None if row in failed else _author_bytes(author, each) for row, each in enumerate(arguments)]

    def _by_vectorized_author(
        self, author: AuthorCode, columns: Sequence[pa.Array], rows: int
    ) -> "Sequence[bytes | None]":
        try:
            read = [read_texts(column) for column in columns]
            made = author(*(column for column, _ in read))
            array = made if isinstance(made, pa.Array) else pa.array(made)
            if len(array) != rows:
                return [None] * rows
            array = canonical_array(array)
            type_ = spelled(array.type).encode() + b":"
            rows_of = zip(array.is_valid().to_pylist(), bytes_of_rows(array).to_pylist(), strict=True)
            # The type of values that Python returned is inferred, and is another one if all of a batch are null.
            found: list[bytes | None] = [type_ + row if valid else b"null" for valid, row in rows_of]
            for row in {row for _, refused in read for row in refused}:
                found[row] = None
            return found
        except Exception:
            return [None] * rows


def _author_bytes(author: AuthorCode, arguments: Sequence[Any]) -> bytes | None:
    try:
        return _stable(author(*arguments))
    except Exception:
        # A row without a key is called as without a cache.
        return None


def _stable(value: Any) -> bytes:
    """Bytes of a value that are the same in every process. Raises TypeError for any other type."""
    if type(value) in (tuple, list):
        parts = [_stable(each) for each in value]
        return b"(" + b"".join(b"%d:%s" % (len(part), part) for part in parts) + b")"
    if type(value) not in _KEY_TYPES:
        raise TypeError(f"a cache key may have text, bytes, numbers, None and tuples of them, not {type(value)}")
    return f"{type(value).__name__}:{value!r}".encode(errors="surrogatepass")


_PLAIN = {
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
}  # fmt: skip


def canonical_array(array: pa.Array) -> pa.Array:
    """The array with one representation of values that Spark compares as equal: NaN and NaN, 0.0 and -0.0, equal maps.

    Maps become lists of structs that are sorted by key. Keys that an author computes may have types that arguments
    never have; those that only store values in another way, such as a dictionary, become the plain type. Times and
    decimals need nothing: they arrive as microseconds since 1970 in UTC, and in the scale that the function declares.

    Raises TypeError for a union, whose values are not compared.
    """
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return canonical_array(array.dictionary_decode())
    if type_ in _PLAIN:
        return array.cast(_PLAIN[type_])
    if pa.types.is_floating(type_):
        plain = pc.add(array, pa.scalar(0.0, type_))
        return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), type_), plain)
    if pa.types.is_union(type_):
        raise TypeError("values of a union are not compared")
    if pa.types.is_struct(type_) and _needs_work(type_):
        children = [canonical_array(child) for child in array.flatten()]
        names = [str(number) for number in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    if pa.types.is_list(type_) and _needs_work(type_):
        return _list(array, canonical_array(array.flatten()))
    if pa.types.is_map(type_):
        lists = as_list(array)
        entries = canonical_array(lists.flatten())
        return _list(lists, entries.take(_by_key(lists, entries)))
    return array


def _needs_work(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_needs_work(field.type) for field in type_)
    if pa.types.is_list(type_):
        return _needs_work(type_.value_type)
    plain = pa.types.is_floating, pa.types.is_map, pa.types.is_union, pa.types.is_dictionary
    return type_ in _PLAIN or any(is_type(type_) for is_type in plain)


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
