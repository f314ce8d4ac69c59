"""Segments on the wire: the rows of one key and the accumulators they are applied to, as Arrow columns (FLIP-491).

A bundle is a batch of segments, one row each. The message Open says once which columns it has; see
message.proto.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import pyarrow as pa

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import CODE_TYPE, ROW_KIND
from remote_udf.types import normalized, spelled
from remote_udf.v1 import message_pb2 as pb

__all__ = [
    "ACCUMULATORS",
    "KEY",
    "ROWS",
    "AppliedField",
    "applied_from_proto",
    "applied_to_proto",
    "applied_type",
    "checked_segments",
    "list_of",
    "rows_type",
]

KEY = "key"
ACCUMULATORS = "accumulators"
ROWS = "rows"


class AppliedField(StrEnum):
    """A value that a segment can return."""

    ACCUMULATOR = "accumulator"
    STARTING_VALUE = "starting_value"
    FINAL_VALUE = "final_value"
    UPDATED_VALUES = "updated_values_after_each_row"


_APPLIED = {
    AppliedField.ACCUMULATOR: pb.APPLIED_FIELD_ACCUMULATOR,
    AppliedField.STARTING_VALUE: pb.APPLIED_FIELD_STARTING_VALUE,
    AppliedField.FINAL_VALUE: pb.APPLIED_FIELD_FINAL_VALUE,
    AppliedField.UPDATED_VALUES: pb.APPLIED_FIELD_UPDATED_VALUES_AFTER_EACH_ROW,
}


def applied_to_proto(fields: Iterable[AppliedField]) -> "list[pb.AppliedField]":
    """The codes of the fields on the wire, in the same order."""
    return [_APPLIED[field] for field in fields]


def applied_from_proto(codes: "Iterable[pb.AppliedField]") -> tuple[AppliedField, ...]:
    """The fields without repetition, in the order of AppliedField. Fields of a newer protocol are skipped."""
    wanted = set(codes)
    return tuple(field for field, code in _APPLIED.items() if code in wanted)


def list_of(element: pa.DataType) -> pa.DataType:
    """The list type as Spark writes it."""
    return pa.list_(pa.field("element", element))


def rows_type(arguments: Sequence[pa.DataType], *, row_kinds: bool) -> pa.DataType:
    """The type of `rows` for arguments of these types."""
    kinds = [pa.field(ROW_KIND, CODE_TYPE)] if row_kinds else []
    return list_of(pa.struct([*kinds, *(pa.field(str(index), type_) for index, type_ in enumerate(arguments))]))


def applied_type(spec: FunctionSpec, fields: Iterable[AppliedField]) -> pa.DataType:
    """The type of a segment's result."""
    assert spec.accumulator is not None
    types = {
        AppliedField.ACCUMULATOR: spec.accumulator,
        AppliedField.STARTING_VALUE: spec.result,
        AppliedField.FINAL_VALUE: spec.result,
        AppliedField.UPDATED_VALUES: list_of(spec.result),
    }
    return pa.struct([pa.field(field.value, types[field]) for field in fields])


def checked_segments(spec: FunctionSpec, schema: pa.Schema) -> list[pa.DataType]:
    """Return the type to which each column of a bundle is converted, in the order of the schema.

    Raises StreamError ARGUMENT_COUNT or ARGUMENT_TYPE for rows that the function does not take, for
    accumulators of another type, and for columns that segments do not have.
    """
    targets = []
    for field in schema:
        if field.name == KEY and pa.types.is_struct(field.type):
            targets.append(normalized(field.type))
        elif field.name == ACCUMULATORS and pa.types.is_list(field.type):
            targets.append(list_of(_accumulator(spec, field.type.value_type)))
        elif field.name == ROWS and pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            row = list(field.type.value_type)
            kinds = bool(row) and row[0].name == ROW_KIND
            if kinds and row[0].type != CODE_TYPE:
                raise _refused(spec, f"{ROW_KIND} is {spelled(row[0].type)}, not {spelled(CODE_TYPE)}")
            arguments = spec.check_arguments([part.type for part in row[kinds:]])
            targets.append(rows_type(arguments, row_kinds=kinds))
        else:
            raise _refused(spec, f"segments have no column {field.name!r} of type {spelled(field.type)}")
    if not targets:
        raise _refused(spec, "a segment has accumulators or rows")
    return targets


def _accumulator(spec: FunctionSpec, found: pa.DataType) -> pa.DataType:
    assert spec.accumulator is not None
    if normalized(found) != spec.accumulator:
        raise _refused(spec, f"expected an accumulator {spelled(spec.accumulator)}, found {spelled(found)}")
    return spec.accumulator


def _refused(spec: FunctionSpec, problem: str) -> StreamError:
    return StreamError(ErrorKind.PROTOCOL, ErrorCode.ARGUMENT_TYPE, f"function {spec.key}: {problem}")
