"""Messages of a hostile client: valid messages in which one thing is changed."""

import functools
import io
import random
import struct

import numpy as np
import pyarrow as pa

from remote_udf.arrow import BatchWriter, write_schema
from remote_udf.messages import encode
from remote_udf.process_calls import segments_schema
from remote_udf.process_planning import TableGiven, plan_process_call
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import PROTOCOL_VERSION
from tests.fuzz.served import LISTS, Counted
from udf_server.process.declaration import declare_process

__all__ = ["MESSAGE_BYTES", "STREAM_ROWS", "Conversation", "inflated"]

MESSAGE_BYTES = 256 << 10
STREAM_ROWS = 20_000
"""Limits of the server, which are small so that they are easy to reach."""
INFLATED = 512 << 20
LIES = (0, 1, 2, 7, -1, -8, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
"""Numbers that replace a length, a position or an offset."""
SCALARS = {
    "longs": pa.int64(), "texts": pa.string(), "vectors": pa.int64(), "lists": LISTS, "nothings": pa.list_(pa.null()),
    "maps": pa.map_(pa.string(), pa.list_(pa.float64())), "sleeping": pa.int64(), "blocking": pa.int64(),
    "failing": pa.int64(), "growing": pa.int64(),
}  # fmt: skip
SLOW = ("sleeping", "blocking")
TOTALS = pa.schema(
    [("rows", pa.list_(pa.struct([("0", pa.int64())]))), ("accumulators", pa.list_(pa.list_(pa.int64())))]
)


class Conversation:
    """The messages of one stream, each with a description. Equal random numbers give equal messages."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._odd = draw.choice((0.0, 0.1, 0.5))
        self.said: list[tuple[str, list[bytes]]] = []
        function = draw.choice([*SCALARS, "texts", "texts", "totals", "counted", "counted"])
        fields = {}
        if function == "totals":
            self._schema, fields = TOTALS, {"applied": [1, 3]}
        elif function == "counted":
            self._schema, process = _process(draw)
            fields = {"process": process}
        else:
            # A column of nulls is a valid argument of every function.
            self._schema = pa.schema([("x", pa.null() if draw.random() < 0.2 else SCALARS[function])])
        # A slow function with that number of rows is valid, but it would keep the stream open for minutes.
        self._many = () if function in SLOW else (1_000, STREAM_ROWS)
        self._open(function, fields)
        self._sequence = self._first = 0
        if function == "texts" and draw.random() < 0.4:
            self._batch(0)
        if draw.random() < 0.1:
            self._small_batches(draw.choice((100, 2_000)))
        for _ in range(draw.choice((0, 1, 1, 2, 4, 12))):
            self._batch()
        if draw.random() < 0.5:
            self._say("finish", encode(pb.ExecuteRequest(finish=pb.Finish())))
        if draw.random() < 0.2:
            reason = "x" * draw.choice((0, 10, 200_000))
            self._say("cancel", encode(pb.ExecuteRequest(cancel=pb.Cancel(reason=reason))))
        for _ in range(draw.choice((0, 0, 0, 1))):
            word, message = _envelope(draw)
            self.said.insert(draw.randrange(len(self.said) + 1), (word, [message]))

    def _say(self, word: str, messages: bytes | list[bytes]) -> None:
        self.said.append((word, messages if isinstance(messages, list) else [messages]))

    def _open(self, function: str, fields: dict) -> None:
        draw = self._draw
        opening = pb.Open(protocol_version=PROTOCOL_VERSION, function=function, **fields)
        word = f"open {function}"
        opening.arguments = write_schema(self._schema)
        match draw.randrange(14):
            case 0:
                opening.arguments, how = _odd_schema(draw)
                word += f" with {how}"
            case 1:
                for number in range(draw.choice((1, 100, 9_000))):
                    opening.options[f"o{number}"] = "1 s"
                word += " with odd options"
            case 2:
                opening.options["buffer-capacity"] = draw.choice(("1", "1000000000", "-1"))
                opening.options["output-mode"] = "unordered"
            case 3:
                opening.shared_memory.process = draw.choice((0, 1, -1, 1 << 40))
                opening.shared_memory.descriptor = draw.choice((0, 1, 2, 9, -1))
                opening.shared_memory.bytes = draw.choice((8192, 1 << 26, -1, (1 << 63) - 1))
                opening.shared_memory.token = bytes(draw.choice((0, 32, 100_000)))
                word += " with memory that is not there"
            case 4:
                opening.takes_parts = True
        self._say(word, encode(pb.ExecuteRequest(open=opening)))

    def _small_batches(self, count: int) -> None:
        """Batches of one row each: what the server keeps per batch besides its bytes must be bounded, too."""
        columns = [_column(self._draw, field.type, 1) for field in self._schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        data = b"".join(map(bytes, BatchWriter(self._schema).write(batch)))
        messages = [
            encode(pb.ExecuteRequest(batch=pb.Batch(sequence=number, first_row=number, rows=1)), [data])
            for number in range(count)
        ]
        self._say(f"{count} batches of a row each", messages)
        self._sequence = self._first = count

    def _batch(self, kind: int | None = None) -> None:
        draw, schema = self._draw, self._schema
        if kind is None:
            kind = draw.randrange(10) if draw.random() < self._odd else 10
        rows = STREAM_ROWS + 1 if kind == 9 else draw.choice((1, 3, 100, *self._many))
        word, claimed = f"batch of {rows} rows", rows
        if kind == 0:
            claimed, data = inflated(schema, draw.choice(("zstd", "zstd", "lz4")))
            word = f"inflating batch of {claimed} rows"
            if draw.random() < 0.5:
                data, how = _lying_body(draw, data)
                word += how
        else:
            columns = [_column(draw, field.type, rows) for field in schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            data = b"".join(map(bytes, BatchWriter(schema).write(batch)))
            if len(data) > MESSAGE_BYTES and draw.random() < 0.9:
                cut = max(1, rows * MESSAGE_BYTES // len(data) // 2)
                data = b"".join(map(bytes, BatchWriter(schema).write(batch.slice(0, cut))))
                word, claimed = f"batch of {cut} rows, {len(data)} bytes", cut
        if kind == 1:
            claimed = draw.choice((0, -1, claimed + 1, claimed * 2, *LIES))
            word += f", said to be {claimed}"
        elif kind in (2, 3):
            data, how = _lying_metadata(draw, data)
            word += how
        elif kind in (4, 5):
            data, how = _lying_body(draw, data)
            word += how
        elif kind == 6:
            times = draw.choice((2, 100, 1_001))
            data, claimed, word = (data * times)[: MESSAGE_BYTES - 100], claimed * times, f"{word}, {times} times"
        elif kind == 7:
            data = data[: draw.randrange(len(data) + 1)]
            word += f", cut to {len(data)} bytes"
        message = pb.Batch(sequence=self._sequence, first_row=_bounded(self._first), rows=_bounded(claimed))
        if draw.random() < 0.05:
            message.waited.seconds, message.waited.nanos = draw.choice(LIES), draw.choice((0, -5, 1 << 30))
        request = pb.ExecuteRequest(batch=message)
        if draw.random() < 0.05:
            request.shared.position, request.shared.bytes = draw.choice(LIES), draw.choice(LIES)
            word += ", said to be in shared memory"
        self._say(word, encode(request, [data]))
        self._sequence += 1
        self._first += claimed


def _bounded(number: int) -> int:
    return max(-(1 << 63), min(number, (1 << 63) - 1))


def _column(draw: random.Random, type_: pa.DataType, rows: int) -> pa.Array:
    """Values of the type; if an element takes no memory, there may be very many of them."""
    if pa.types.is_null(type_):
        return pa.nulls(rows)
    if pa.types.is_map(type_):
        return pa.nulls(rows, type_)
    if pa.types.is_list(type_):
        inner = type_.value_type
        if _takes_nothing(inner):
            count = draw.choice((0, 1, rows, 100_000, (1 << 20) - 1, 1 << 21))
        else:
            count = draw.choice((0, min(rows, 100)))
        offsets = np.full(rows + 1, count, np.int32)
        offsets[: 1 + draw.randrange(max(rows, 1))] = 0
        return pa.ListArray.from_arrays(pa.array(offsets), _column(draw, inner, count), type=type_)
    if pa.types.is_struct(type_):
        if not type_.num_fields:
            return pa.StructArray.from_buffers(type_, rows, [None])
        return pa.StructArray.from_arrays([_column(draw, field.type, rows) for field in type_], fields=list(type_))
    if pa.types.is_integer(type_):
        # The values do not matter: a row of this type always has the same size.
        return pa.array(np.zeros(rows, type_.to_pandas_dtype()), type_)
    return pa.array(["x" * draw.choice((0, 1, 200_000 // max(rows, 1)))] * rows, type_)


def _takes_nothing(type_: pa.DataType) -> bool:
    return pa.types.is_null(type_) or (pa.types.is_struct(type_) and all(_takes_nothing(field.type) for field in type_))


def _process(draw: random.Random) -> tuple[pa.Schema, pb.ProcessCall]:
    """A call with a table of few or of very many columns, whose names no other call has."""
    name, wide = f"{draw.getrandbits(40):x}", draw.choice((0, 1, 5, 400))
    inner = draw.choice((pa.null(), pa.int64(), pa.struct([]), pa.list_(pa.null())))
    table = pa.schema([("k", pa.int64()), *((f"{name}{number}", inner) for number in range(wide))])
    spec = declare_process(Counted).spec
    call = plan_process_call(spec, {"rows": TableGiven(table, ["k"], ())}, {}, [])
    message = call.to_proto()
    match draw.randrange(8):
        case 0:
            message.tables[0].partition_by.extend([draw.choice((0, 99, -1))] * draw.choice((1, 20_000)))
        case 1:
            message.scalars = draw.randbytes(50)
        case 2:
            message.tables.extend([message.tables[0]] * 30)
        case 3:
            message.broadcast_state = message.scalars
    return segments_schema(spec, call), message


def _odd_schema(draw: random.Random) -> tuple[bytes, str]:
    match draw.randrange(5):
        case 0:
            depth, type_ = draw.choice((30, 120, 1_000)), pa.int64()
            for _ in range(depth):
                type_ = pa.list_(type_) if draw.random() < 0.5 else pa.struct([("x", type_)])
            return write_schema(pa.schema([("x", type_)])), f"a type {depth} deep"
        case 1:
            count = draw.choice((100, 1_500))
            return write_schema(pa.schema([(f"c{number}", pa.int64()) for number in range(count)])), f"{count} columns"
        case 2:
            odd = draw.choice((
                pa.list_view(pa.int64()), pa.run_end_encoded(pa.int32(), pa.int64()), pa.string_view(),
                pa.dictionary(pa.int32(), pa.string()), pa.large_list(pa.int64()), pa.list_(pa.null(), 1 << 30),
                pa.dense_union([pa.field("a", pa.int64())]), pa.decimal256(70, 3), pa.list_(pa.int64(), 0),
            ))  # fmt: skip
            return write_schema(pa.schema([("x", odd)])), f"a column of {odd}"
        case 3:
            data, how = _lying_metadata(draw, write_schema(pa.schema([("x", pa.list_(pa.int64()))])))
            return data, f"a schema{how}"
        case _:
            return write_schema(pa.schema([("x", pa.int64(), True, {"k": "v" * 100_000})])), "much metadata"


def _envelope(draw: random.Random) -> tuple[str, bytes]:
    """A message that is no Batch: with many, deep, unknown or no fields."""
    count = draw.choice((65, 5_000, 60_000))
    match draw.randrange(6):
        case 0:
            return f"{count} unknown numbers", b"\xf8\x07\x01" * count
        case 1:
            return f"{count} empty unknown texts", b"\xfa\x07\x00" * count
        case 2:
            return f"{count} opening groups", b"\x3b" * count
        case 3:
            nested = b""
            while len(nested) < count:
                nested = b"\x0a" + _varint(len(nested)) + nested
            return f"fields {count} bytes deep", nested
        case 4:
            # The fields of Open: options, context and tables.
            inner = draw.choice((b"\x2a\x00", b"\x32\x00", b"\x4a\x02\x0a\x00", b"\x42\x01\x01")) * (count // 2)
            return f"an open with {count // 2} fields", b"\x0a" + _varint(len(inner)) + inner
        case _:
            return "noise", draw.randbytes(draw.choice((0, 1, 100, 10_000)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _lying_metadata(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """Replace 64-bit numbers in the metadata of a record batch: its length, those of its arrays, offsets of buffers."""
    if len(data) < 16:
        return data, ""
    changed = bytearray(data)
    end = min(8 + struct.unpack_from("<I", changed, 4)[0], len(changed)) // 8
    said = []
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, lie = draw.randrange(1, max(end, 2)) * 8, draw.choice(LIES)
        struct.pack_into("<q", changed, min(place, len(changed) - 8), lie)
        said.append(f"{lie} at {place}")
    return bytes(changed), f", whose metadata has {', '.join(said)}"


def _lying_body(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """Replace 32-bit numbers in the buffers, many of which are offsets."""
    changed = bytearray(data)
    start = min(8 + struct.unpack_from("<I", changed, 4)[0], len(changed) - 4) if len(changed) >= 8 else 0
    count = (len(changed) - start) // 4
    if count <= 0:
        return data, ""
    for _ in range(draw.choice((1, 2, 10))):
        place = start + 4 * draw.randrange(count)
        struct.pack_into("<I", changed, place, draw.choice(LIES) & 0xFFFFFFFF)
    return bytes(changed), ", whose body has numbers that are not so"


@functools.lru_cache(maxsize=32)
def inflated(schema: pa.Schema, codec: str) -> tuple[int, bytes]:
    """A small batch of this schema that becomes as large as possible when it is read."""

    def zeros(type_: pa.DataType, rows: int) -> pa.Array:
        if pa.types.is_struct(type_) and type_.num_fields:
            return pa.StructArray.from_arrays([zeros(field.type, rows) for field in type_], fields=list(type_))
        if pa.types.is_integer(type_):
            return pa.array(np.zeros(rows, type_.to_pandas_dtype()), type_)
        if pa.types.is_string(type_):
            offsets = pa.py_buffer(np.linspace(0, INFLATED, rows + 1).astype(np.int32))
            return pa.Array.from_buffers(type_, rows, [None, offsets, pa.py_buffer(bytes(INFLATED))])
        return pa.nulls(rows, type_)

    rows = STREAM_ROWS
    batch = pa.RecordBatch.from_arrays([zeros(field.type, rows) for field in schema], schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        start = sink.tell()
        writer.write_batch(batch)
        end = sink.tell()
    return rows, sink.getvalue()[start:end]
