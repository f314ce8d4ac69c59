"""Writes the results of segments as one Arrow array."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.errors import ErrorCode
from remote_udf.process_calls import OUTPUT, STATE, TIMERS, processed_type
from udf_server.base.failures import describe
from udf_server.process.declaration import ProcessFunction
from udf_server.process.engine import Emitted, Processed
from udf_server.runners.returned import WrongResult

__all__ = ["output_array", "part_of", "processed_array"]


def processed_array(function: ProcessFunction, processed: Sequence[Processed], *, broadcast: bool) -> pa.Array:
    """A struct per segment. Raises WrongResult for state or rows that do not have their declared types."""
    type_ = processed_type(function.spec, broadcast=broadcast)
    parts = {field.name: field.type for field in type_}
    arrays = [
        _state(function, [each.state for each in processed], parts[STATE], broadcast=broadcast),
        _timers(processed, parts[TIMERS]),
        _output(function, processed, parts[OUTPUT]),
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def _state(function: ProcessFunction, stored: Sequence[list[Any]], type_: pa.DataType, *, broadcast: bool) -> pa.Array:
    """A struct with the stored form of each entry; null if all entries are empty."""
    entries = [entry for entry in function.states if entry.broadcast is broadcast]
    if not entries:
        return pa.array([None] * len(stored), type_)
    arrays = []
    for index, entry in enumerate(entries):
        try:
            arrays.append(entry.codec.encode([each[index] for each in stored]))
        except Exception as error:
            raise WrongResult(ErrorCode.RESULT_TYPE, f"state entry {entry.name!r}: {describe(error)}") from error
    empty = functools.reduce(pc.and_, [array.is_null() for array in arrays])
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=empty)


def _timers(processed: Sequence[Processed], type_: pa.DataType) -> pa.Array:
    flat = [timer for each in processed for timer in each.timers]
    names = pa.array([name for name, _ in flat], pa.string())
    times = pa.array([time for _, time in flat], pa.int64())
    struct = pa.StructArray.from_arrays([names, times], fields=list(type_.value_type))
    return pa.ListArray.from_arrays(_offsets([len(each.timers) for each in processed]), struct, type=type_)


def _output(function: ProcessFunction, processed: Sequence[Processed], type_: pa.DataType) -> pa.Array:
    rows = output_array(function, [emitted for each in processed for emitted in each.output], type_.value_type)
    return pa.ListArray.from_arrays(_offsets([len(each.output) for each in processed]), rows, type=type_)


def output_array(function: ProcessFunction, emitted: Sequence[Emitted], type_: pa.DataType) -> pa.StructArray:
    """The emitted rows. Raises WrongResult for values that do not have their columns' types."""
    rows, kinds, times, values = zip(*emitted, strict=True) if emitted else ((), (), (), ())
    insert_only = function.results.mode.is_insert_only
    columns = [
        pa.array(rows, pa.int32()),
        pa.nulls(len(emitted), pa.int8()) if insert_only else pa.array([kind.code for kind in kinds], pa.int8()),
        pa.array(times, pa.int64()),
        function.results.encode(values),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def part_of(output: pa.StructArray, type_: pa.DataType) -> pa.Array:
    """A value of the result with these output rows, without state and timers."""
    parts = {field.name: pa.nulls(1, field.type) for field in type_}
    offsets = pa.array([0, len(output)], pa.int32())
    parts[OUTPUT] = pa.ListArray.from_arrays(offsets, output, type=type_.field(OUTPUT).type)
    return pa.StructArray.from_arrays([parts[field.name] for field in type_], fields=list(type_))


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32))
