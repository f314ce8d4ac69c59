"""A stream in memory, whose messages a test sends one by one."""

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from remote_udf.arrow import BatchWriter, write_schema
from remote_udf.messages import encode, read_response
from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import PROTOCOL_VERSION
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.declaring.functions import Function
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.limits.limiter import Limiter
from udf_server.security.access import ANYBODY, Caller
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.streams.services import Admission, StreamLimits, StreamServices

__all__ = ["Talk", "batch", "eventually", "finish", "opening"]

LONGS = pa.schema([("a0", pa.int64())])


def opening(function: str = "f", schema: pa.Schema = LONGS, protocol: int = PROTOCOL_VERSION, **fields: Any) -> bytes:
    """An Open message for a function of one bigint, or as the fields say."""
    arguments = fields.pop("arguments", None) or write_schema(schema)
    request = pb.Open(protocol_version=protocol, function=function, arguments=arguments, **fields)
    return encode(pb.ExecuteRequest(open=request))


def batch(
    sequence: int, first_row: int, values: Iterable[int], rows: int | None = None, schema: pa.Schema = LONGS
) -> bytes:
    """A Batch message of one column; `rows` is what it claims to hold."""
    column = pa.array(list(values), schema.field(0).type)
    data = BatchWriter(schema).write(pa.RecordBatch.from_arrays([column], schema=schema))
    message = pb.Batch(sequence=sequence, first_row=first_row, rows=len(column) if rows is None else rows)
    return encode(pb.ExecuteRequest(batch=message), data)


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds; for states without a notification, such as a metric."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


def finish() -> bytes:
    return encode(pb.ExecuteRequest(finish=pb.Finish()))


class Talk:
    """The client's side of one stream with a server of these functions.

    Leaving it ends the stream as a lost client would.
    """

    def __init__(
        self, *functions: Function, limits: StreamLimits | None = None, host: FunctionHost | None = None,
        caller: Caller = ANYBODY, clock: Callable[[], float] = time.monotonic, cache: OutcomeCache | None = None,
        admission: Admission | None = None, guard: Limiter | None = None, metrics: ServerMetrics | None = None,
    ) -> None:  # fmt: skip
        """Several may share a host, which the first to leave closes, unless there is a cache: its calls may go on."""
        self.metrics = metrics or ServerMetrics()
        self.host = host or FunctionHost(Registry([("test", function) for function in functions]))
        self._caller, self._clock, self._cache, self._admission = caller, clock, cache, admission
        self._limits, self._guards = limits or StreamLimits(), {} if guard is None else {guard.key: guard}
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.reads = asyncio.Event()
        """Cleared to have the client read nothing."""
        self.reads.set()
        self.writes = 0
        """Messages that the server has begun to write."""

    async def __aenter__(self) -> "Talk":
        services = StreamServices(
            self.host, self.metrics, self._limits, self._admission or Admission(), guards=self._guards,
            cache=self._cache, clock=self._clock,
        )  # fmt: skip
        stream = ExecuteStream(services, caller=self._caller)
        self._running = weakref.ref(stream)
        self._task = asyncio.create_task(stream.run(self._incoming(), self._outgoing))
        return self

    async def lose(self) -> None:
        """Ends the stream as gRPC does if a client is gone. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None  # a task that was cancelled refers to its frames, and the frames to the stream

    async def __aexit__(self, *exception: object) -> None:
        await self.lose()
        if self._cache is None:
            await self.host.close()

    async def _incoming(self) -> Any:
        while (message := await self._requests.get()) is not None:
            yield message

    async def _outgoing(self, message: bytes) -> None:
        self.writes += 1
        await self.reads.wait()
        self._answers.put_nowait(message)

    @property
    def running(self) -> ExecuteStream | None:
        """The stream; None once it is freed, because this object does not reference it."""
        return self._running()

    def send(self, *messages: bytes | None) -> None:
        """None closes the client's side."""
        for message in messages:
            self._requests.put_nowait(message)

    @property
    def stream(self) -> ExecuteStream:
        """The server's side; do not keep a reference to it."""
        found = self._running()
        assert found is not None
        return found

    @property
    def unread(self) -> int:
        """The number of sent messages that the server has not read."""
        return self._requests.qsize()

    async def receive(self, *, progress: bool = False) -> pb.ExecuteResponse:
        """The next message, without its data; Progress is passed over unless asked for."""
        while True:
            envelope, _ = read_response(await asyncio.wait_for(self._answers.get(), 20))
            if progress or envelope.WhichOneof("response") != "progress":
                return envelope

    async def open(self, function: str = "f", **fields: Any) -> pb.Opened:
        self.send(opening(function, **fields))
        answer = await self.receive()
        assert answer.WhichOneof("response") == "opened", answer
        return answer.opened

    async def ended(self) -> None:
        """Returns once the server has ended the stream by itself."""
        assert self._task is not None
        await asyncio.wait_for(asyncio.shield(self._task), 20)

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0
