"""For the tests of plugin authors: run a function without a server, and make it fail on purpose."""

import asyncio
import functools
import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from remote_udf.arrow import BatchWriter, read_columns, write_schema
from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import VALUE
from remote_udf.messages import encode, read_response
from remote_udf.options import canonical
from remote_udf.outcomes import RowError, read_errors
from remote_udf.v1 import message_pb2 as pb
from udf_server.accounting import StreamLimits
from udf_server.errors import RetryableError
from udf_server.functions import Function
from udf_server.hosting import FunctionHost
from udf_server.metrics import ServerMetrics
from udf_server.registry import Registry
from udf_server.server import running_server
from udf_server.session import PROTOCOL_VERSION
from udf_server.stream import ExecuteStream

__all__ = ["FaultInjector", "FunctionEnvironment", "RunResult", "running_server"]


@dataclass(frozen=True)
class RunResult:
    """Outcomes of rows: `values` has one per row, null where `errors`, by row, says why there is none."""

    values: pa.Array
    errors: Mapping[int, RowError]
    counts: pb.StreamCounts

    def to_pylist(self) -> list[Any]:
        """The values; raises AssertionError, with the first error, if a row failed."""
        for row, error in sorted(self.errors.items()):
            raise AssertionError(f"row {row}: {error.code}: {error.message}\n{error.traceback}")
        return self.values.to_pylist(maps_as_pydicts="strict")


class FunctionEnvironment:
    """Runs functions as a server would, with their options, hooks and deadlines, but without one.

    ```python
    async with FunctionEnvironment() as environment:
        result = await environment.run(geocode, ["Main St 1", None], timeout="1 s")
        assert result.to_pylist() == [Point(1.0, 2.0), None]
    ```
    """

    def __init__(self, *, seed: int = 0, message_bytes: int = 64 << 20) -> None:
        """`seed` is for the jitter of retries."""
        self._random = random.Random(seed)
        self._limits = StreamLimits(message_bytes=message_bytes)
        self._metrics = ServerMetrics()
        self._hosts: dict[int, FunctionHost] = {}

    async def __aenter__(self) -> "FunctionEnvironment":
        return self

    async def __aexit__(self, *exception: object) -> None:
        for host in self._hosts.values():
            await host.close()

    async def run(
        self,
        function: Function,
        *arguments: Any,
        rows: int | None = None,
        batch_rows: int | None = None,
        **options: Any,
    ) -> RunResult:
        """Calls the function for every row of the arguments: a list or Arrow array each, of one length.

        `rows` is needed for a function without arguments only. `batch_rows` cuts the input into
        batches of so many rows, as a client might. Options are those of a call. Outcomes are in the
        order of the rows, whatever the output mode.

        Raises StreamError for what a server refuses: wrong arguments or options, a hook that fails.
        """
        if arguments and len({len(argument) for argument in arguments}) > 1:
            raise ValueError(f"arguments of different lengths: {[len(argument) for argument in arguments]}")
        columns = [self._column(function, position, argument) for position, argument in enumerate(arguments)]
        count = len(columns[0]) if columns else rows or 0
        host = self._hosts.setdefault(id(function), FunctionHost(Registry([("test", function)])))
        exchange = _Exchange(function, columns, count, batch_rows or max(count, 1), options)
        await ExecuteStream(host, self._metrics, self._limits, random=self._random).run(
            exchange.requests(), exchange.receive
        )
        return exchange.result()

    @staticmethod
    def _column(function: Function, position: int, values: Any) -> pa.Array:
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        if isinstance(values, pa.Array):
            return values
        function.spec.check_count(max(position + 1, function.spec.required_parameters))
        for codec in function.parameters[min(position, len(function.parameters) - 1)]:
            try:
                return codec.encode(list(values))
            except (TypeError, ValueError, OverflowError, pa.ArrowException):
                continue
        return pa.array(list(values))


class _Exchange:
    """Both directions of one stream, in memory."""

    def __init__(
        self, function: Function, columns: list[pa.Array], rows: int, batch_rows: int, options: Mapping[str, Any]
    ) -> None:
        self._function = function
        self._columns = columns
        self._rows = rows
        self._batch_rows = batch_rows
        self._options = canonical(options, source="FunctionEnvironment.run")
        self._schema = pa.schema([pa.field(f"a{i}", column.type) for i, column in enumerate(columns)])
        self._opened = asyncio.Event()
        self._unordered = False
        self._parts: list[tuple[list[int], pa.Array]] = []
        self._errors: dict[int, RowError] = {}
        self._error: StreamError | None = None
        self._counts = pb.StreamCounts()

    async def requests(self) -> AsyncIterator[bytes]:
        spec = self._function.spec
        opening = pb.Open(
            protocol_version=PROTOCOL_VERSION, function=spec.name, version=spec.version,
            arguments=write_schema(self._schema), options=self._options,
            context=pb.CallContext(operation_id="test", stage=-1, partition=0, micro_batch=-1),
        )  # fmt: skip
        yield encode(pb.ExecuteRequest(open=opening))
        await self._opened.wait()
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
            self._unordered = envelope.opened.options["output-mode"] == "unordered"
            self._opened.set()
        elif kind == "result":
            assert data is not None
            self._take(envelope.result, data)
        elif kind == "finished":
            self._counts = envelope.finished.counts
        elif kind == "error":
            error = envelope.error
            self._error = StreamError(
                {1: ErrorKind.USER, 2: ErrorKind.WORKER}.get(error.kind, ErrorKind.PROTOCOL),
                ErrorCode(error.code), error.message, traceback=error.traceback, retryable=error.retryable,
            )  # fmt: skip
            self._opened.set()

    def _take(self, result: pb.Result, data: memoryview) -> None:
        value = pa.field(VALUE, self._function.spec.result)
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
        if self._error is not None:
            raise self._error
        rows = [row for part, _ in self._parts for row in part]
        if sorted(rows) != list(range(self._rows)):
            raise AssertionError(f"{self._rows} rows went in, these came out: {sorted(rows)}")
        arrays = [array for _, array in self._parts]
        values = pa.concat_arrays(arrays) if arrays else pa.nulls(0, self._function.spec.result)
        order = pa.array(sorted(range(len(rows)), key=rows.__getitem__), pa.int64())
        return RunResult(values.take(order), self._errors, self._counts)


class FaultInjector:
    """Wraps a function so that some of its calls are slow, fail or hang; which ones, the seed decides.

    Rates are shares of calls from 0 to 1. An injected error is a RetryableError; a hang lasts
    `hang_seconds`, long enough to run into the deadline.
    """

    def __init__(
        self, seed: int, *, latency: float = 0.0, latency_rate: float = 1.0, error_rate: float = 0.0,
        hang_rate: float = 0.0, hang_seconds: float = 3600.0,
    ) -> None:  # fmt: skip
        self._random = random.Random(seed)
        self._latency, self._latency_rate = latency, latency_rate
        self._error_rate, self._hang_rate, self._hang_seconds = error_rate, hang_rate, hang_seconds
        self.injected = 0
        """Errors and hangs so far."""

    def wrap(self, function: Function) -> Function:
        """A copy of the function with faults; the original is left alone."""
        if inspect.iscoroutinefunction(function.call):
            call = self._async(function.call)
        else:
            call = self._sync(function.call)
        return replace(function, call=call)

    def _fate(self) -> tuple[float, bool]:
        """How long to wait before the call, and whether it fails instead."""
        wait = self._latency if self._random.random() < self._latency_rate else 0.0
        hangs, fails = self._random.random() < self._hang_rate, self._random.random() < self._error_rate
        self.injected += hangs or fails
        return wait + (self._hang_seconds if hangs else 0.0), fails

    def _async(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        async def faulty(*arguments: Any, **keywords: Any) -> Any:
            wait, fails = self._fate()
            if wait:
                await asyncio.sleep(wait)
            if fails:
                raise RetryableError("injected fault")
            return await call(*arguments, **keywords)

        return faulty

    def _sync(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def faulty(*arguments: Any, **keywords: Any) -> Any:
            wait, fails = self._fate()
            if wait:
                time.sleep(wait)
            if fails:
                raise RetryableError("injected fault")
            return call(*arguments, **keywords)

        return faulty
