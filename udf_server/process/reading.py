"""Reads segments from the columns of a bundle, in the form that functions receive."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import TABLE, TIME, ProcessCall, segments_schema
from remote_udf.row_kinds import ROW_KIND, RowKind
from udf_server.base.codecs import Codec
from udf_server.base.records import StructCodec
from udf_server.base.values import Key, codec_for_type
from udf_server.process.declaration import ProcessFunction
from udf_server.process.engine import Incoming, Segment
from udf_server.process.rows import row_class
from udf_server.process.timers import Timer

__all__ = ["SegmentReader"]

_KINDS = list(RowKind)


class SegmentReader:
    """Reads bundles of one call, column by column."""

    def __init__(self, function: ProcessFunction, call: ProcessCall) -> None:
        schema = segments_schema(function.spec, call)
        self._names = schema.names
        self._states = [entry for entry in function.states if entry.broadcast is call.broadcast]
        self._key = [codec_for_type(field.type) for field in schema.field("key").type]
        tables = [argument for argument in function.arguments if argument.table is not None]
        self._tables = [
            _TableReader(argument.codec, given.schema) for argument, given in zip(tables, call.tables, strict=True)
        ]

    def read(self, columns: Sequence[pa.Array]) -> list[Segment]:
        """Return a segment per row."""
        named = dict(zip(self._names, columns, strict=True))
        rows, offsets = self._rows(named["rows"])
        parts = zip(
            self._keys(named["key"]), self._stored(named["state"]), _timers(named["timers"]), offsets, offsets[1:],
            _watermarks(named["watermarks"]), named["advance_to"].to_pylist(), named["now"].to_pylist(), strict=False,
        )  # fmt: skip
        return [
            Segment(key, state, pending, rows[start:stop], watermarks, advance_to, now)
            for key, state, pending, start, stop, watermarks, advance_to, now in parts
        ]

    def _keys(self, key: pa.Array) -> list[Key]:
        if not self._key:
            return [()] * len(key)
        return list(
            zip(*(codec.decode(part) for codec, part in zip(self._key, key.flatten(), strict=True)), strict=True)
        )

    def _stored(self, state: pa.Array) -> list[list[Any]]:
        if not self._states:
            return [[]] * len(state)
        if state.null_count == len(state):
            return [[None] * len(self._states)] * len(state)
        parts = [entry.codec.decode(part) for entry, part in zip(self._states, state.flatten(), strict=True)]
        return [list(each) for each in zip(*parts, strict=True)]

    def _rows(self, lists: pa.Array) -> tuple[list[Incoming], list[int]]:
        """The rows of all segments, and the offsets of each segment's rows."""
        flat, offsets = _flat(lists)
        parts = dict(zip([field.name for field in flat.type], flat.flatten(), strict=True))
        codes = parts[TABLE].to_numpy(zero_copy_only=False)
        kinds = parts[ROW_KIND].to_pylist() if ROW_KIND in parts else None
        times = parts[TIME].to_pylist() if TIME in parts else [None] * len(flat)
        rows = [None] * len(flat)
        for number, table in enumerate(self._tables):
            if len(self._tables) == 1:
                rows = table.read(parts[str(number)], kinds)
                break
            places = np.flatnonzero(codes == number)
            chosen = parts[str(number)].take(pa.array(places))
            own = None if kinds is None else [kinds[place] for place in places]
            for place, row in zip(places.tolist(), table.read(chosen, own), strict=True):
                rows[place] = row
        return list(zip(codes.tolist(), rows, times, strict=True)), offsets


class _TableReader:
    """Reads rows of one table."""

    def __init__(self, codec: Codec | None, schema: pa.Schema) -> None:
        self._codec = codec
        self._codecs = [codec_for_type(field.type) for field in schema]
        self._classes = [row_class(tuple(schema.names), kind) for kind in _KINDS]

    def read(self, rows: pa.Array, kinds: list[int | None] | None) -> list[Any]:
        if self._codec is not None:
            assert isinstance(self._codec, StructCodec)
            return self._codec.decode(_renamed(rows, self._codec.type))
        columns = [codec.decode(part) for codec, part in zip(self._codecs, rows.flatten(), strict=True)]
        values = zip(*columns, strict=True) if columns else iter([()] * len(rows))
        if kinds is None:
            return self._classes[0].all_of(values)
        return [self._classes[kind or 0].of(each) for each, kind in zip(values, kinds, strict=True)]


def _timers(lists: pa.Array) -> list[list[Timer]]:
    flat, offsets = _flat(lists)
    pending = list(zip(flat.field("name").to_pylist(), flat.field("time").to_pylist(), strict=True))
    return [pending[start:stop] for start, stop in itertools.pairwise(offsets)]


def _watermarks(lists: pa.Array) -> list[list[int | None]]:
    flat, offsets = _flat(lists)
    values = flat.to_pylist()
    return [values[start:stop] for start, stop in itertools.pairwise(offsets)]


def _flat(lists: pa.Array) -> tuple[pa.Array, list[int]]:
    """The elements of all lists, and the offsets of each list's elements."""
    offsets = lists.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return lists.values.slice(first, last - first), (offsets - first).tolist()


def _renamed(rows: pa.Array, type_: pa.DataType) -> pa.Array:
    """The columns of a typed row, renamed by position."""
    if not type_.num_fields:
        return pa.array([{}] * len(rows), type_)
    return pa.StructArray.from_arrays(rows.flatten(), fields=list(type_))
