"""ProcessCall: one call of a process table function, by positions, as it is sent over the wire."""

import io
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from remote_udf.arrow import read_row, read_schema, write_schema
from remote_udf.errors import ProtocolViolation
from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import CODE_TYPE, ROW_KIND, ChangelogMode
from remote_udf.segments import KEY, ROWS, list_of
from remote_udf.v1 import message_pb2 as pb

__all__ = [
    "ADVANCE_TO", "NOW", "OUTPUT", "STATE", "TABLE", "TIME", "TIMERS", "VALUE_OF_ROW", "WATERMARKS", "OrderColumn",
    "ProcessCall", "TableCall", "processed_type", "segments_schema", "timers_type",
]  # fmt: skip

STATE = "state"
TIMERS = "timers"
WATERMARKS = "watermarks"
ADVANCE_TO = "advance_to"
NOW = "now"
OUTPUT = "output"
TABLE = "table"
TIME = "time"
ROW = "row"
VALUE_OF_ROW = "value"
TIMES = pa.int64()
"""Times and watermarks: microseconds since 1970, the precision of Spark's timestamps."""


@dataclass(frozen=True)
class OrderColumn:
    """A column of ORDER BY. By default nulls come first, as in Spark."""

    column: int
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True)
class TableCall:
    """A table that is passed to a call. Columns are positions in `schema`; `time_column` is -1 without on_time."""

    schema: pa.Schema
    partition_by: tuple[int, ...] = ()
    order_by: tuple[OrderColumn, ...] = ()
    time_column: int = -1
    changelog_mode: ChangelogMode = field(default_factory=ChangelogMode)
    upsert_key: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProcessCall:
    """One call. `scalars` has one row and a column per scalar argument; `broadcast_state` one row, or is None."""

    tables: tuple[TableCall, ...]
    scalars: pa.RecordBatch
    on_time: bool = False
    broadcast: bool = False
    broadcast_state: pa.RecordBatch | None = None

    @property
    def has_row_kinds(self) -> bool:
        """Whether any table is a changelog, so that rows have a kind."""
        return any(not table.changelog_mode.is_insert_only for table in self.tables)

    def key_type(self, spec: FunctionSpec) -> pa.DataType:
        """Return the struct of the key's columns, with the names in the first table with a key."""
        assert spec.process is not None
        for argument, table in zip(spec.process.tables, self.tables, strict=True):
            if argument.has_set_semantics:
                return pa.struct([table.schema.field(column) for column in table.partition_by])
        return pa.struct([])

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a record batch without columns loses its row.
        return _unpickled, (self.to_proto().SerializeToString(),)

    def to_proto(self) -> pb.ProcessCall:
        return pb.ProcessCall(
            tables=[_table_to_proto(table) for table in self.tables],
            scalars=_written(self.scalars), on_time=self.on_time, broadcast=self.broadcast,
            broadcast_state=_written(self.broadcast_state) if self.broadcast_state is not None else b"",
        )  # fmt: skip

    @classmethod
    def from_proto(cls, message: pb.ProcessCall) -> "ProcessCall":
        """Read a call. Raises ProtocolViolation if its record batches or schemas are not valid."""
        return cls(
            tuple(_table_from_proto(table) for table in message.tables), read_row(message.scalars), message.on_time,
            message.broadcast, read_row(message.broadcast_state) if message.broadcast_state else None,
        )  # fmt: skip


def _unpickled(data: bytes) -> ProcessCall:
    return ProcessCall.from_proto(pb.ProcessCall.FromString(data))


def timers_type() -> pa.DataType:
    """The type of pending timers."""
    return list_of(pa.struct([pa.field("name", pa.string()), pa.field(TIME, TIMES)]))


def segments_schema(spec: FunctionSpec, call: ProcessCall) -> pa.Schema:
    """Return the columns of segments of this call, in their order."""
    assert spec.process is not None
    row = [pa.field(TABLE, pa.int8())]
    if call.has_row_kinds:
        row.append(pa.field(ROW_KIND, CODE_TYPE))
    if call.on_time:
        row.append(pa.field(TIME, TIMES))
    row += [pa.field(str(index), pa.struct(list(table.schema))) for index, table in enumerate(call.tables)]
    state = spec.process.broadcast_state if call.broadcast else spec.process.state
    return pa.schema([
        pa.field(KEY, call.key_type(spec)), pa.field(STATE, pa.struct(list(state))),
        pa.field(TIMERS, timers_type()), pa.field(ROWS, list_of(pa.struct(row))),
        pa.field(WATERMARKS, list_of(TIMES)), pa.field(ADVANCE_TO, TIMES), pa.field(NOW, pa.int64()),
    ])  # fmt: skip


def processed_type(spec: FunctionSpec, *, broadcast: bool = False) -> pa.DataType:
    """Return the type of the result of processing a segment."""
    assert spec.process is not None
    state = spec.process.broadcast_state if broadcast else spec.process.state
    row = pa.struct([
        pa.field(ROW, pa.int32()), pa.field(ROW_KIND, CODE_TYPE), pa.field(TIME, TIMES),
        pa.field(VALUE_OF_ROW, spec.result),
    ])  # fmt: skip
    return pa.struct([
        pa.field(STATE, pa.struct(list(state))), pa.field(TIMERS, timers_type()), pa.field(OUTPUT, list_of(row))
    ])  # fmt: skip


def _table_to_proto(table: TableCall) -> pb.TableCall:
    return pb.TableCall(
        schema=write_schema(table.schema), partition_by=table.partition_by, time_column=table.time_column,
        order_by=[
            pb.OrderColumn(column=each.column, descending=each.descending, nulls_last=each.nulls_last)
            for each in table.order_by
        ],
        changelog_mode=table.changelog_mode.to_proto(), upsert_key=table.upsert_key,
    )  # fmt: skip


def _table_from_proto(message: pb.TableCall) -> TableCall:
    schema = read_schema(message.schema)
    named = (*message.partition_by, *(each.column for each in message.order_by), *message.upsert_key)
    if message.time_column != -1:
        named = (*named, message.time_column)
    for column in named:
        if not 0 <= column < len(schema):
            raise ProtocolViolation(f"column {column} of a table with {len(schema)} columns")
    return TableCall(
        schema, tuple(message.partition_by),
        tuple(OrderColumn(each.column, each.descending, each.nulls_last) for each in message.order_by),
        message.time_column, ChangelogMode.from_proto(message.changelog_mode), tuple(message.upsert_key),
    )  # fmt: skip


def _written(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return sink.getvalue()
