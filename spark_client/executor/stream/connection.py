"""Connection is one Execute stream on one server, from Open to its end. It handles messages, not rows."""

import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator

import pyarrow as pa

from remote_udf.arrow import BatchWriter, Buffers, read_schema
from remote_udf.effective_options import AggregateOptions, ScalarOptions, resolve
from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, RemoteUdfError, StreamError
from remote_udf.functions import VALUE
from remote_udf.messages import Message, encode, read_error, read_response
from remote_udf.options import AT_MOST, CAPS, OutputMode
from remote_udf.shared_memory import SharedMemory, SharedMemoryClosed, offer_memory
from remote_udf.threads import THREADS, Threads
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.calls import AggregateCall, ProcessTableCall, ScalarCall
from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Place, Transport, TransportLost
from spark_client.executor.stream.chunks import Chunk
from spark_client.executor.stream.ports import Elsewhere, process_ports
from spark_client.executor.stream.silence import SilenceWatch, process_watch
from spark_client.executor.stream.task import TaskInfo

__all__ = ["Connection"]

SILENT_INTERVALS, SILENT_SECONDS = 3, (2.0, 15.0)
"""A server is given up after this many progress intervals without a message, within these bounds."""
HEADROOM = 4096
"""Bytes of a message that are reserved for its envelope."""


class Connection:
    """One Execute stream. One thread may send while another reads."""

    def __init__(
        self,
        call: ScalarCall,
        arguments: pa.Schema,
        task: TaskInfo,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        avoid: Container[str] = (),
        place: Place | None = None,
        *,
        threads: Threads = THREADS,
        watch: SilenceWatch | None = None,
    ) -> None:
        """Request a stream at this place; otherwise servers in `avoid` are used only if there are no others.

        `open` waits for the answer. Raises TransportLost. `watch` calls `check_silence` at intervals; the default is
        the watch of the process.
        """
        self._arguments = arguments
        self._writer = BatchWriter(arguments)
        self._clock = clock
        self._watch = watch or process_watch()
        self._waiting_since: float | None = None
        self._last_message = clock()
        self._silent_after = call.config.connect_seconds
        self._open_until = math.inf
        self._given_up = False
        self._sequence = 0
        self.opened_at = clock()
        self.finished = self._at_end = False
        self.rows_sent = 0
        # The window of rows in flight bounds this queue.
        self._requests: queue.SimpleQueue[bytes | None] = threads.queue()
        self._responses = transport.execute(_until_none(self._requests), avoid, *([place] if place else []))
        self.server = self._responses.server
        """The address of the server."""
        self._offered = offer_memory() if call.config.shared_memory and self._responses.same_host else None
        self._shared: SharedMemory | None = None
        self._memory_lock = threading.Lock()
        """Any thread may close the connection while another one opens it."""
        self._call = call
        request = call.to_proto(arguments, task.to_proto(call.operation_id, call.config.session))
        if self._offered is not None:
            request.shared_memory.CopyFrom(self._offered.offer)
        self._may_move = request.takes_port = place is None and process_ports().may_try(self.server, clock())
        request.route = "" if place is None else place.route
        self._requests.put(encode(pb.ExecuteRequest(open=request)))

    def open(self, seconds: float, first_seconds: float | None = None) -> None:
        """Wait up to `seconds` for Opened. The first message must arrive within `first_seconds`.

        A server whose function takes long to open sends Progress meanwhile. Raises StreamError if the server refuses,
        Elsewhere if it names another port, TransportLost if it is unresponsive or lost. Then the stream is closed.
        """
        self._silent_after = seconds if first_seconds is None else first_seconds
        self._open_until = self._clock() + seconds
        self._watch.add(self)
        try:
            self._agree(self._read_opened())
        except BaseException:
            self.close(cancel=True)
            raise
        finally:
            with self._memory_lock:
                self._end_offer()

    def _agree(self, opened: pb.Opened) -> None:
        """Apply the options and limits that the server has decided."""
        if opened.estimate != self._call.config.estimates:
            # No row was sent yet, so nothing was called.
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.UNSUPPORTED_PROTOCOL,
                f"function {self._call.spec.key}: the server is too old for estimates; update it",
            )  # fmt: skip
        if isinstance(self._call, (AggregateCall, ProcessTableCall)):
            self.bundles: AggregateOptions | None = resolve(AggregateOptions, opened.options)
            self.options = self.bundles.for_segments()
        else:
            self.bundles = None
            self.options = resolve(ScalarOptions, opened.options)
        self.lowered = {
            name: opened.options[name] for name, asked in self._call.options.items()
            if f"{AT_MOST}{name}" in CAPS and opened.options.get(name, asked) != asked
        }  # fmt: skip
        """The options of the call that the server has lowered, and their values in force."""
        with self._memory_lock:
            if opened.shared_memory and self._offered is not None:
                self._shared = self._offered.accepted()
        self.load = ServerLoad.read(opened.load) if opened.HasField("load") else None
        """What the server has to do; None from an older server."""
        self.budget = opened.budget
        """Where the server counts the budget; empty if it does not."""
        self.ordered = self.options.output_mode is OutputMode.ORDERED
        result = read_schema(opened.result)
        if len(result) != 1:
            raise ProtocolViolation(f"the server announced results of {len(result)} columns instead of one")
        value = result.field(0).with_name(VALUE)
        self.schema = pa.schema([value] if self.ordered else [pa.field("row", pa.int64(), nullable=False), value])
        self.payload_bytes = opened.max_message_bytes - HEADROOM
        """Maximum size of the Arrow data of one message, in bytes."""
        self.message_rows = min(self.options.batch_rows, opened.max_batch_rows or self.options.batch_rows)
        """Maximum number of rows of one message."""
        interval = opened.progress_interval.ToNanoseconds() / 1e9
        self._silent_after = min(max(SILENT_INTERVALS * interval, SILENT_SECONDS[0]), SILENT_SECONDS[1])

    def payload(self, chunk: Chunk) -> Buffers | None:
        """The chunk's arguments; None if the function is called without arguments."""
        if not chunk.columns:
            return None
        table = pa.Table.from_arrays(list(chunk.columns), schema=self._arguments)
        # The chunks of columns are joined: that costs less than reading each of them costs the server.
        return self._writer.write(table.combine_chunks())

    def send(self, chunk: Chunk, payload: Buffers | None, waited: float) -> None:
        """Send the chunk and set its position in the stream."""
        chunk.first_row = self.rows_sent
        batch = pb.Batch(sequence=self._sequence, first_row=chunk.first_row, rows=len(chunk.rows))
        if waited:
            batch.waited.FromNanoseconds(round(waited * 1e9))
        self._sequence += 1
        self.rows_sent += len(chunk.rows)
        self._requests.put(encode(pb.ExecuteRequest(batch=batch), payload, self._shared))

    def send_finish(self) -> None:
        """Tell the server that no more chunks follow."""
        self.finished = True
        self._requests.put(encode(pb.ExecuteRequest(finish=pb.Finish())))

    def read(self) -> Message[pb.ExecuteResponse]:
        """Wait for the next message. Raises StreamError for an Error message, TransportLost if the server is lost."""
        message = self._next("the stream ended before its last message")
        if message.envelope.HasField("error"):
            raise read_error(message.envelope.error)
        return message

    def check_silence(self) -> None:
        """Give up the connection if a thread waits for the server and the server is unresponsive."""
        since = self._waiting_since
        now = self._clock()
        if since is not None and (now - max(since, self._last_message) > self._silent_after or now > self._open_until):
            self._given_up = True
            self._responses.cancel()

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        """Skip the server for the next connections, because it was lost or refuses streams; see Responses."""
        self._responses.distrust(seconds, leave=leave)

    def close(self, *, cancel: bool) -> None:
        """Close the stream. With `cancel`, the server stops the calls in flight. Safe to call twice.

        Without `cancel`, Finished was read, and this waits for the end of the stream.
        """
        self._requests.put(None)
        if cancel or not self._has_ended():
            self._responses.cancel()
        self._watch.discard(self)
        with self._memory_lock:
            self._end_offer()
            if self._shared is not None:
                self._shared.close()

    def _has_ended(self) -> bool:
        """Whether the server sends no more. gRPC keeps a call, and a thread, as long as a message is unread."""
        if not self._at_end:
            try:
                self._next("the stream has ended")
            except (TransportLost, RemoteUdfError):
                self._at_end = True
        return self._at_end

    def _end_offer(self) -> None:
        """Close the descriptor of the memory that was offered. Needs the lock."""
        if self._offered is not None:
            self._offered.close()
            self._offered = None

    def _read_opened(self) -> pb.Opened:
        while True:
            envelope, _ = self._next("the server ended the stream at once")
            if envelope.HasField("error"):
                raise read_error(envelope.error)
            if envelope.HasField("opened"):
                self._open_until = math.inf
                return envelope.opened
            if envelope.HasField("elsewhere") and self._may_move:
                raise Elsewhere(envelope.elsewhere.port, envelope.elsewhere.route)
            if not envelope.HasField("progress"):
                raise ProtocolViolation(f"the server answered Open with {envelope.WhichOneof('response')}")
            self._silent_after = SILENT_SECONDS[1]

    def _next(self, ended: str) -> Message[pb.ExecuteResponse]:
        """The next message of any kind. `ended` is the error message if the stream ends instead."""
        self._waiting_since = self._clock()
        try:
            message = read_response(next(self._responses), self._shared)
        except StopIteration:
            raise TransportLost(ended) from None
        except SharedMemoryClosed:
            raise TransportLost("the stream was closed meanwhile") from None
        except TransportLost:
            if not self._given_up:
                raise
            raise TransportLost(f"the server has said nothing for {round(self._silent_after, 2):.4g} s") from None
        finally:
            self._waiting_since = None
        self._last_message = self._clock()
        return message


def _until_none(requests: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (message := requests.get()) is not None:
        yield message
