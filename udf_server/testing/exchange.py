"""Exchange: both directions of one Execute stream, without a network."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pyarrow as pa

from remote_udf.arrow import BatchWriter, read_columns, write_schema
from remote_udf.errors import StreamError
from remote_udf.functions import VALUE, FunctionSpec
from remote_udf.messages import encode, read_error, read_response
from remote_udf.outcomes import RowError, read_errors
from remote_udf.segments import AppliedField, applied_to_proto, applied_type
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import PROTOCOL_VERSION
from udf_server.testing.results import RunResult

__all__ = ["Exchange"]


class Exchange:
    """Both directions of one stream, in memory."""

    def __init__(
        self, spec: FunctionSpec, columns: Mapping[str, pa.Array], rows: int, *, batch_rows: int,
        options: Mapping[str, str], applied: Sequence[AppliedField] = (), partition: int = 0,
        together: asyncio.Barrier | None = None,
    ) -> None:  # fmt: skip
        """`applied` says what to return for the segments of an aggregate function.

        With `together`, rows are sent once as many streams have been opened as the barrier has parties.
        """
        self._partition, self._together = partition, together
        self._spec = spec
        self._columns = list(columns.values())
        self._rows = rows
        self._batch_rows = batch_rows
        self._options = options
        self._applied = applied
        self._result = applied_type(spec, applied) if applied else spec.result
        self._schema = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
        self._opened = asyncio.Event()
        self._unordered = False
        self._parts: list[tuple[list[int], pa.Array]] = []
        self._errors: dict[int, RowError] = {}
        self._error: StreamError | None = None
        self._counts = pb.StreamCounts()

    async def requests(self) -> AsyncIterator[bytes]:
        spec = self._spec
        opening = pb.Open(
            protocol_version=PROTOCOL_VERSION, function=spec.name, version=spec.version,
            arguments=write_schema(self._schema), options=self._options,
            applied=applied_to_proto(self._applied),
            context=pb.CallContext(operation_id="test", stage=-1, partition=self._partition, micro_batch=-1),
        )  # fmt: skip
        yield encode(pb.ExecuteRequest(open=opening))
        await self._opened.wait()
        if self._together is not None:
            try:
                await (self._together.abort() if self._error is not None else self._together.wait())
            except asyncio.BrokenBarrierError:
                return  # another stream was refused
        if self._error is not None:
            return
        for sequence, first in enumerate(range(0, self._rows, self._batch_rows)):
            rows = min(self._batch_rows, self._rows - first)
            data = None
            if self._columns:
                sliced = [column.slice(first, rows) for column in self._columns]
                data = BatchWriter(self._schema).write(pa.RecordBatch.from_arrays(sliced, schema=self._schema))
            yield encode(pb.ExecuteRequest(batch=pb.Batch(sequence=sequence, first_row=first, rows=rows)), data)
        yield encode(pb.ExecuteRequest(finish=pb.Finish()))

    async def receive(self, message: bytes) -> None:
        envelope, data = read_response(message)
        kind = envelope.WhichOneof("response")
        if kind == "opened":
            self._unordered = envelope.opened.options.get("output-mode") == "unordered"
            self._opened.set()
        elif kind == "result":
            assert data is not None
            self._take(envelope.result, data)
        elif kind == "finished":
            self._counts = envelope.finished.counts
        elif kind == "error":
            self._error = read_error(envelope.error)
            self._opened.set()

    def _take(self, result: pb.Result, data: memoryview) -> None:
        value = pa.field(VALUE, self._result)
        fields = [pa.field("row", pa.int64(), nullable=False), value] if self._unordered else [value]
        columns = read_columns(data, pa.schema(fields), result.rows)
        if self._unordered:
            rows = columns[0].to_pylist()
        else:
            rows = list(range(result.first_row, result.first_row + result.rows))
        self._parts.append((rows, columns[-1]))
        if result.errors:
            self._errors |= {rows[index]: error for index, error in read_errors(result.errors).items()}

    def result(self) -> RunResult:
        """The outcomes; raises StreamError if the stream failed, AssertionError if rows were lost."""
        if self._error is not None:
            raise self._error
        rows = [row for part, _ in self._parts for row in part]
        if sorted(rows) != list(range(self._rows)):
            raise AssertionError(f"{self._rows} rows went in, these came out: {sorted(rows)}")
        arrays = [array for _, array in self._parts]
        values = pa.concat_arrays(arrays) if arrays else pa.nulls(0, self._result)
        order = pa.array(sorted(range(len(rows)), key=rows.__getitem__), pa.int64())
        return RunResult(values.take(order), self._errors, self._counts)
