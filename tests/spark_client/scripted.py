"""Servers with scripted behaviour that a real one does not show: transports whose streams follow scripts."""

import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from remote_udf.arrow import BatchWriter, read_columns, write_schema
from remote_udf.effective_options import canonical
from remote_udf.errors import ErrorCode
from remote_udf.functions import VALUE
from remote_udf.messages import Message, encode, read_request
from remote_udf.outcomes import RowError, write_errors
from remote_udf.threads import Threads
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.calls import ErrorPolicy, ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Question, TransportLost
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Chunk
from spark_client.executor.stream.task import TaskInfo
from spark_client.testing import local_transport

X = pa.schema([pa.field("x", pa.int64())])
"""The arguments of most calls here."""
SILENCE = b"silence"
"""Yielded by a script: from here on nothing comes, until the client gives the stream up."""


class Clock:
    """A clock that advances only when it is set, or when a thread sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def call_of(function: Any, target: str = "test", *, connect_seconds: float = 10.0, arguments: int | None = 1,
            policy: Mapping[str, Any] | None = None, **options: Any) -> ScalarCall:  # fmt: skip
    """A call of the function as a query would hold it."""
    config = ClientConfig(target, connect_seconds, in_process=local_transport)
    texts = canonical(options, source="test")
    return ScalarCall(function.spec, arguments, texts, "operation", config, ErrorPolicy(**(policy or {})))


def chunk_of(values: Sequence[int | None], start: int = 0, owner: object = "owner") -> Chunk:
    """A chunk of one column of numbers."""
    column = pa.chunked_array([pa.array(values, pa.int64())])
    return Chunk(owner, range(start, start + len(values)), [column], column.nbytes)


class _Pause(threading.Event):
    def __init__(self, sleep: Callable[[float], object]) -> None:
        super().__init__()
        self._sleep = sleep

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._sleep(timeout)
        return self.is_set()


class Sleeping(Threads):
    """Threads that call `sleep` where they would wait for an event."""

    def __init__(self, sleep: Callable[[float], object]) -> None:
        self._sleep = sleep

    def event(self) -> threading.Event:
        return _Pause(self._sleep)


def stream_of(
    call: ScalarCall, transport: Any, schema: pa.Schema = X, sleep: Callable[[float], object] | None = None,
    task: TaskInfo | None = None, **arguments: Any,
) -> CallStream:  # fmt: skip
    """A stream of the call. Its pauses are calls of `sleep`, if that is given."""
    threads = {} if sleep is None else {"threads": Sleeping(sleep)}
    return CallStream(call, schema, task or TaskInfo(), transport, **threads, **arguments)


def everything(stream: CallStream) -> dict[int, Any]:
    """Receives until nothing is unanswered; row to value or RowError. A row answered twice is an error."""
    found: dict[int, Any] = {}
    while stream.unanswered:
        collect(stream.receive(), found)
    return found


def collect(answers: Sequence[Any], found: dict[int, Any]) -> None:
    for answer in answers:
        for index, row in enumerate(answer.rows):
            assert int(row) not in found, f"row {row} was answered twice"
            found[int(row)] = answer.errors.get(index, answer.values[index].as_py())


Requests = Iterator[Message[pb.ExecuteRequest]]
Script = Callable[[Requests], Iterator[bytes]]
"""Plays one stream: takes decoded requests, which it may have to wait for, and yields encoded responses."""


class Scripted:
    """The n-th stream is played by the n-th script, and further ones by the last."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.streams: list[Played] = []

    def servers(self) -> Sequence[str]:
        return (Played.server,)

    def ask_loads(self, server: str) -> Question | None:
        return None

    def heard_load(self, server: str, load: ServerLoad) -> None:
        pass

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = ()) -> "Played":
        script = self.scripts[min(len(self.streams), len(self.scripts) - 1)]
        self.streams.append(Played(script, requests))
        return self.streams[-1]


class ScriptedServers(Scripted):
    """Servers by address, each of which plays all of its streams by one script; taken in the order given."""

    def __init__(self, **scripts: Script) -> None:
        super().__init__()
        self.by_address = scripts

    def servers(self) -> Sequence[str]:
        return tuple(self.by_address)

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = ()) -> "Played":
        address = next((each for each in self.by_address if each not in avoid), next(iter(self.by_address)))
        played = Played(self.by_address[address], requests)
        played.server = address
        self.streams.append(played)
        return played


class Played:
    """The client's end of a played stream."""

    same_host = False
    server = "the only one"

    def __init__(self, script: Script, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.received: list[pb.ExecuteRequest] = []
        self._messages = script(self._decoded())
        self.cancelled = threading.Event()

    def _decoded(self) -> Requests:
        for request in self.requests:
            message = read_request(request)
            self.received.append(message.envelope)
            yield message

    def __next__(self) -> bytes:
        if self.cancelled.is_set():
            raise TransportLost("cancelled")
        message = next(self._messages)
        if message is SILENCE:
            self.cancelled.wait()
            raise TransportLost("cancelled")
        return message

    def cancel(self) -> None:
        self.cancelled.set()

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        """Does nothing, because there is no other server."""

    @property
    def batches(self) -> list[pb.Batch]:
        return [request.batch for request in self.received if request.HasField("batch")]


def gone(requests: Requests) -> Iterator[bytes]:
    """Behaves like an unreachable server."""
    raise TransportLost("UNAVAILABLE: nobody there")
    yield


def honest(requests: Requests, *, ordered: bool = True, **options: Any) -> Iterator[bytes]:
    """Answers x with x + 1, as a server should."""
    next(requests)
    yield opened(ordered=ordered, **options)
    rows = 0
    for message in requests:
        if message.envelope.HasField("finish"):
            yield finished(rows)
            return
        batch = message.envelope.batch
        rows += batch.rows
        values = [x + 1 for x in numbers(message)]
        if ordered:
            yield result(batch.first_row, values)
        else:
            yield scattered(range(batch.first_row, batch.first_row + batch.rows), values)


def numbers(message: Message[pb.ExecuteRequest]) -> list[Any]:
    """The argument `x` of a batch."""
    assert message.data is not None
    return read_columns(message.data, X, message.envelope.batch.rows)[0].to_pylist()


def opened(*, ordered: bool = True, timeout: str = "180 s", max_message_bytes: int = 64 << 20,
           progress: float = 5.0, type_: pa.DataType | None = None,
           load: pb.Load | None = None, **options: Any) -> bytes:  # fmt: skip
    mode = "ordered" if ordered else "unordered"
    message = pb.Opened(
        version="1",
        result=write_schema(pa.schema([pa.field(VALUE, type_ or pa.int64())])),
        options=canonical({"timeout": timeout, "output-mode": mode, **options}, source="test"),
        max_message_bytes=max_message_bytes,
        load=load,
    )
    message.progress_interval.FromNanoseconds(round(progress * 1e9))
    return encode(pb.ExecuteResponse(opened=message))


def result(first_row: int, values: Sequence[Any], errors: Mapping[int, RowError] | None = None,
           skipped: int = 0, **counts: int) -> bytes:  # fmt: skip
    """Outcomes of consecutive rows. `counts` are `calls` and `retries`."""
    return _result(pb.Result(first_row=first_row, rows=len(values), skipped=skipped, **counts), [], values, errors)


def scattered(rows: Sequence[int | None], values: Sequence[Any],
              errors: Mapping[int, RowError] | None = None) -> bytes:  # fmt: skip
    """Outcomes of any rows, as with unordered output."""
    columns = [("row", pa.array(rows, pa.int64()))]
    return _result(pb.Result(rows=len(values)), columns, values, errors)


def _result(
    message: pb.Result, columns: list[Any], values: Sequence[Any], errors: Mapping[int, RowError] | None
) -> bytes:
    names, arrays = zip(*columns, (VALUE, pa.array(values, pa.int64())), strict=True)
    batch = pa.RecordBatch.from_arrays(list(arrays), names=list(names))
    if errors:
        message.errors = write_errors(errors)
    return encode(pb.ExecuteResponse(result=message), BatchWriter(batch.schema).write(batch))


def progress(rows_done: int = 0, *, draining: bool = False) -> bytes:
    return encode(pb.ExecuteResponse(progress=pb.Progress(rows_done=rows_done, draining=draining)))


def finished(rows_in: int, *, ok: int | None = None, failed: int = 0, skipped: int = 0, **calls: int) -> bytes:
    ok = rows_in - failed - skipped if ok is None else ok
    counts = pb.StreamCounts(rows_in=rows_in, rows_ok=ok, rows_failed=failed, rows_skipped=skipped, **calls)
    return encode(pb.ExecuteResponse(finished=pb.Finished(counts=counts)))


def refused(code: str = "OVERLOADED", *, kind: int = pb.Error.KIND_WORKER, retryable: bool = True,
            retry_after: float | None = None, message: str = "not now", traceback: str = "") -> bytes:  # fmt: skip
    error = pb.Error(kind=kind, code=code, message=message, retryable=retryable, traceback=traceback)
    if retry_after is not None:
        error.retry_after.FromNanoseconds(round(retry_after * 1e9))
    return encode(pb.ExecuteResponse(error=error))


def row_error(message: str = "no", code: ErrorCode = ErrorCode.FUNCTION_ERROR, **fields: Any) -> RowError:
    return RowError(code, message, **{"attempts": 1, **fields})
