"""Execute without a network: a server of functions in this process, and its client.

The web UI, the test kits of both ends and the target `local:` use it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from remote_udf.arrow import BatchWriter, read_columns, write_schema
from remote_udf.errors import StreamError
from remote_udf.functions import VALUE, FunctionSpec
from remote_udf.messages import encode, read_error, read_response
from remote_udf.outcomes import RowError, read_errors
from remote_udf.segments import AppliedField, applied_to_proto, applied_type
from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1.service_pb2 import ListFunctionsResponse
from remote_udf.version import PROTOCOL_VERSION, __version__
from udf_server.base.errors import PluginError
from udf_server.base.metrics import ServerMetrics
from udf_server.declaring.functions import Function
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.plugins.loading import build_plugin_manager, load_functions, report_of
from udf_server.plugins.sources import Sources
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.streams.services import StreamLimits, StreamServices

__all__ = ["Exchange", "InProcessServer", "functions_of"]


class InProcessServer:
    """Serves functions to this process. They run as on a server, including hooks, options and deadlines."""

    def __init__(self, functions: Iterable[Function], *, seed: int, message_bytes: int) -> None:
        """`seed` is for the jitter of retries. Raises FunctionClash if two functions have the same name and version."""
        drawn = random.Random(seed)
        self.host, self.metrics = FunctionHost(Registry([("local", each) for each in functions])), ServerMetrics()
        limits = StreamLimits(message_bytes=message_bytes)
        self._services = StreamServices(self.host, self.metrics, limits, new_random=lambda: drawn)
        self.code = ""
        """Identifies the code of the functions, if it is looked at; see ListFunctionsResponse."""

    async def execute(self, requests: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Serve one stream."""
        await ExecuteStream(self._services).run(requests, write)

    def list_functions(self) -> ListFunctionsResponse:
        """List the functions."""
        return ListFunctionsResponse(
            functions=[function.spec.to_proto() for function in self.host.registry],
            server_version=__version__,
            protocol_versions=[PROTOCOL_VERSION],
            code=self.code,
        )


def functions_of(plugin: str) -> tuple[list[Function], Sources]:
    """The functions of a module ("geo_udfs") or file ("./geo_udfs.py"), and what tells whether its code was edited.

    Raises PluginError, which names it and has the traceback of what it raised.
    """
    sources = Sources(watched=True)
    try:
        manager = build_plugin_manager([plugin], entry_points=False, sources=sources)
        return [function for _, function in load_functions(manager)], sources
    except PluginError as error:
        sources.forget()
        raise type(error)(report_of(error)) from None


class Exchange:
    """The client of one stream: it sends rows and collects their outcomes."""

    def __init__(
        self, spec: FunctionSpec, columns: Mapping[str, pa.Array], rows: int, *, context: pb.CallContext,
        batch_rows: int = 1, options: Mapping[str, str] = MappingProxyType({}), applied: Sequence[AppliedField] = (),
        together: asyncio.Barrier | None = None,
    ) -> None:  # fmt: skip
        """Create an exchange.

        Args:
            spec: The function.
            columns: The arguments of the rows, by name.
            rows: The number of rows.
            context: What the function is told about the call.
            batch_rows: The number of rows of a batch.
            options: Options of the call, as canonical text.
            applied: What to return for the segments of an aggregate function.
            together: Rows are sent once as many streams have been opened as the barrier has parties.
        """
        self._context, self._together = context, together
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
        """The messages of the client, which wait for those of the server."""
        spec = self._spec
        opening = pb.Open(
            protocol_version=PROTOCOL_VERSION, function=spec.name, version=spec.version,
            arguments=write_schema(self._schema), options=self._options,
            applied=applied_to_proto(self._applied),
            context=self._context,
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
        """Take a message of the server."""
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

    @property
    def answered(self) -> int:
        """The number of rows with an outcome. Raises StreamError if the stream failed."""
        if self._error is not None:
            raise self._error
        return sum(len(part) for part, _ in self._parts)

    def outcomes(self) -> tuple[pa.Array, Mapping[int, RowError], pb.StreamCounts]:
        """The values in the order of the rows, the errors by row, and what the server counted.

        Raises StreamError if the stream failed, AssertionError if rows were lost.
        """
        if self._error is not None:
            raise self._error
        rows = [row for part, _ in self._parts for row in part]
        if sorted(rows) != list(range(self._rows)):
            raise AssertionError(f"{self._rows} rows went in, these came out: {sorted(rows)}")
        arrays = [array for _, array in self._parts]
        values = pa.concat_arrays(arrays) if arrays else pa.nulls(0, self._result)
        order = pa.array(sorted(range(len(rows)), key=rows.__getitem__), pa.int64())
        return values.take(order), self._errors, self._counts
