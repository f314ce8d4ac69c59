"""Reads segments from the columns of a bundle, in the form that functions receive, and writes their results."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.errors import ErrorCode
from remote_udf.process_calls import OUTPUT, STATE, TABLE, TIME, TIMERS, ProcessCall, processed_type, segments_schema
from remote_udf.row_kinds import ROW_KIND, RowKind
from udf_server.base.failures import describe
from udf_server.process.base import row_class
from udf_server.process.declaration import ProcessFunction
from udf_server.process.engine import Emitted, Incoming, Processed, Segment
from udf_server.process.timers import Timer
from udf_server.runners.calling import WrongResult
from udf_server.values.codecs import Codec
from udf_server.values.records import StructCodec
from udf_server.values.values import Key, codec_for_type

__all__ = ["SegmentReader", "SegmentWriter"]

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


class SegmentWriter:
    """Writes results of one call, and what its segments emit before they end."""

    def __init__(self, function: ProcessFunction, call: ProcessCall) -> None:
        self.type = processed_type(function.spec, broadcast=call.broadcast)
        self._output: pa.ListType = self.type.field(OUTPUT).type
        self._results = function.results
        self._states = [entry for entry in function.states if entry.broadcast is call.broadcast]

    def results(self, processed: Sequence[Processed]) -> pa.Array:
        """A struct per segment. Raises WrongResult for state or rows that do not have their declared types."""
        state = self._state([each.state for each in processed])
        rows = self.rows([emitted for each in processed for emitted in each.output])
        output = pa.ListArray.from_arrays(_offsets([len(each.output) for each in processed]), rows, type=self._output)
        return pa.StructArray.from_arrays([state, self._timers(processed), output], fields=list(self.type))

    def rows(self, emitted: Sequence[Emitted]) -> pa.StructArray:
        """The emitted rows. Raises WrongResult for values that do not have their columns' types."""
        rows, kinds, times, values = zip(*emitted, strict=True) if emitted else ((), (), (), ())
        insert_only = self._results.mode.is_insert_only
        columns = [
            pa.array(rows, pa.int32()),
            pa.nulls(len(emitted), pa.int8()) if insert_only else pa.array([kind.code for kind in kinds], pa.int8()),
            pa.array(times, pa.int64()),
            self._results.encode(values),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._output.value_type))

    def part(self, rows: pa.StructArray) -> pa.Array:
        """A value of the result with these emitted rows, without state and timers."""
        parts = {field.name: pa.nulls(1, field.type) for field in self.type}
        parts[OUTPUT] = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows, type=self._output)
        return pa.StructArray.from_arrays([parts[field.name] for field in self.type], fields=list(self.type))

    def _state(self, stored: Sequence[list[Any]]) -> pa.Array:
        """A struct with the stored form of each entry; null if all entries are empty."""
        type_ = self.type.field(STATE).type
        if not self._states:
            return pa.array([None] * len(stored), type_)
        arrays = []
        for index, entry in enumerate(self._states):
            try:
                arrays.append(entry.codec.encode([each[index] for each in stored]))
            except Exception as error:
                raise WrongResult(ErrorCode.RESULT_TYPE, f"state entry {entry.name!r}: {describe(error)}") from error
        empty = functools.reduce(pc.and_, [array.is_null() for array in arrays])
        return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=empty)

    def _timers(self, processed: Sequence[Processed]) -> pa.Array:
        type_, flat = self.type.field(TIMERS).type, [timer for each in processed for timer in each.timers]
        names = pa.array([name for name, _ in flat], pa.string())
        times = pa.array([time for _, time in flat], pa.int64())
        struct = pa.StructArray.from_arrays([names, times], fields=list(type_.value_type))
        return pa.ListArray.from_arrays(_offsets([len(each.timers) for each in processed]), struct, type=type_)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32))
