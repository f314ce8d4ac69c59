"""ExecuteStream: the I/O around a Session and a Runner, from the first message of a stream to the last."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError, capped
from remote_udf.functions import Execution
from remote_udf.messages import encode, read_request
from remote_udf.options import OutputMode
from remote_udf.v1 import message_pb2 as pb
from udf_server.errors import FunctionBlocked
from udf_server.failures import describe, traceback_of
from udf_server.hosting import FunctionHost, HostedFunction
from udf_server.metrics import FunctionMetrics, ServerMetrics
from udf_server.opening import open_function, opened_message
from udf_server.runners.async_rows import AsyncRows
from udf_server.runners.outputs import Output, OutputWriter
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.threaded_rows import ThreadedRows
from udf_server.runners.vectorized import Vectorized
from udf_server.session import Feed, Session, Start, Stop

__all__ = ["ExecuteStream", "StreamLimits"]

log = logging.getLogger(__name__)

_RUNNERS: dict[Execution, type[Runner]] = {
    Execution.ASYNC_ROWS: AsyncRows,
    Execution.THREADED_ROWS: ThreadedRows,
    Execution.VECTORIZED: Vectorized,
}
PROGRESS_SECONDS = (0.2, 5.0)
"""Progress is sent at a third of the row deadline, within these bounds."""


@dataclass(frozen=True)
class StreamLimits:
    """What one stream may hold on the server. Reading stops beyond it until results were sent."""

    message_bytes: int = 64 << 20
    unanswered_rows: int = 1_000_000
    unanswered_bytes: int = 128 << 20


@dataclass
class _Pending:
    """A batch that is not answered in full."""

    rows: int
    size: int
    arrived: float


class ExecuteStream:
    """Serves one stream. `run` is called once."""

    def __init__(
        self,
        host: FunctionHost,
        metrics: ServerMetrics,
        limits: StreamLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self._host = host
        self._server_metrics = metrics
        self._limits = limits
        self._clock = clock
        self._random = random or Random()
        self._session = Session()
        self._hosted: HostedFunction | None = None
        self._runner: Runner | None = None
        self._metrics: FunctionMetrics | None = None
        self._counts = pb.StreamCounts()
        self._pending: dict[int, _Pending] = {}
        self._unanswered_rows = 0
        self._unanswered_bytes = 0
        # Not bounded by itself: holds no more than results of unanswered rows, which the limits bound.
        self._outgoing: asyncio.Queue[Output | bytes | None] = asyncio.Queue()
        self._background: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        """What ended the stream from within."""
        self._main: asyncio.Task[Any] | None = None
        """The task that talks to the client, while it can be interrupted."""
        self._wrote = clock()
        self._progress_seconds = PROGRESS_SECONDS[1]

    async def run(self, requests: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Reads and answers until the stream has ended, whatever the client sends.

        Cancelling it, as gRPC does when the client is gone, cancels what it has running.
        """
        end = "disconnected"
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write_all(write))
                last, end = await self._serve(requests, tasks)
                self._session.ended()
                self._outgoing.put_nowait(encode(last))
                self._outgoing.put_nowait(None)
                await writer
                for task in self._background:
                    task.cancel()
        finally:
            self._report(end)

    async def _serve(self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> tuple[pb.ExecuteResponse, str]:
        """The last message of the stream, and how it ended."""
        self._main = asyncio.current_task()
        try:
            try:
                return await self._exchange(requests, tasks)
            except asyncio.CancelledError:
                if self._error is None or self._main is None:
                    raise
                # Not gRPC cancelled this, but _fail, since the client may send nothing more to wake it.
                self._main.uncancel()
                raise self._error from None
            finally:
                self._main = None
        except StreamError as error:
            return _error_message(error), "failed"
        except ProtocolViolation as error:
            violation = StreamError(ErrorKind.PROTOCOL, ErrorCode.PROTOCOL_VIOLATION, str(error))
            return _error_message(violation), "failed"
        except FunctionBlocked as error:
            refusal = StreamError(ErrorKind.WORKER, ErrorCode.OVERLOADED, str(error), retryable=True)
            return _error_message(refusal), "failed"
        except Exception as error:
            log.exception("stream failed", extra={"function": self._hosted.spec.key if self._hosted else ""})
            bug = StreamError(
                ErrorKind.WORKER, ErrorCode.INTERNAL, f"the server failed: {describe(error)}",
                traceback=capped(traceback_of(error)),
            )  # fmt: skip
            return _error_message(bug), "failed"
        finally:
            if self._runner is not None:
                self._runner.cancel()

    async def _exchange(
        self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup
    ) -> tuple[pb.ExecuteResponse, str]:
        async for message in requests:
            action = self._session.receive(read_request(message))
            if isinstance(action, Start):
                await self._open(action.open, tasks)
            elif isinstance(action, Feed):
                await self._feed(action.batch, len(message))
            elif isinstance(action, Stop):
                return pb.ExecuteResponse(cancelled=pb.Cancelled(counts=self._counts)), "cancelled"
            elif await self._drained(requests, tasks):
                return pb.ExecuteResponse(finished=pb.Finished(counts=self._final_counts())), "finished"
            else:
                return pb.ExecuteResponse(cancelled=pb.Cancelled(counts=self._counts)), "cancelled"
        # The client closed its side without Finish: it wants no more, and may not listen.
        return pb.ExecuteResponse(cancelled=pb.Cancelled(counts=self._counts)), "cancelled"

    async def _open(self, request: pb.Open, tasks: asyncio.TaskGroup) -> None:
        opening = await open_function(self._host, request)
        spec = opening.hosted.spec
        self._hosted = opening.hosted
        self._metrics = self._server_metrics.function(spec.name, spec.version)
        self._metrics.stream_opened()
        ordered = opening.options.output_mode is OutputMode.ORDERED
        setup = RunnerSetup(
            hosted=opening.hosted,
            context=opening.context,
            options=opening.options,
            arguments=opening.arguments,
            writer=OutputWriter(spec.result, ordered=ordered, max_message_bytes=self._limits.message_bytes),
            emit=self._outgoing.put_nowait,
            fail=self._fail,
            post=_poster(asyncio.get_running_loop()),
            spawn=lambda coroutine: self._spawn(coroutine, tasks),
            metrics=self._metrics,
            clock=self._clock,
            random=self._random,
        )
        self._runner = _RUNNERS[spec.execution](setup)
        self._progress_seconds = min(max(opening.options.timeout / 3, PROGRESS_SECONDS[0]), PROGRESS_SECONDS[1])
        self._spawn(self._watch(self._runner), tasks)
        self._session.opened()
        answer = opened_message(opening, self._limits.message_bytes, self._progress_seconds)
        self._outgoing.put_nowait(encode(answer))

    async def _feed(self, batch: InputBatch, size: int) -> None:
        """Hands a batch to the runner once there is room for it."""
        assert self._runner is not None and self._metrics is not None
        arrived = self._clock()
        limits = self._limits
        await self._until(
            lambda: (
                not self._pending
                or (
                    self._unanswered_rows + batch.rows <= limits.unanswered_rows
                    and self._unanswered_bytes + size <= limits.unanswered_bytes
                )
            )
        )
        self._pending[batch.first_row] = _Pending(batch.rows, size, arrived)
        self._unanswered_rows += batch.rows
        self._unanswered_bytes += size
        self._counts.rows_in += batch.rows
        self._metrics.batch_received(batch.rows, size, self._clock() - arrived)
        self._runner.feed(batch)

    async def _drained(self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> bool:
        """Waits until every row is answered; False if the client cancels before."""
        answered = self._spawn(self._until(lambda: not self._pending), tasks)
        more: asyncio.Task[bytes | None] = tasks.create_task(_next(requests))
        await asyncio.wait((answered, more), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() and (message := more.result()) is not None:
            # After Finish only Cancel is legal; anything else raises here.
            self._session.receive(read_request(message))
            return False
        await answered
        more.cancel()
        return True

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, which results bring about."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._main is not None:
                self._main.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Runs something until the stream ends. A failure ends the stream with an Error, not a broken connection."""

        async def guarded() -> None:
            try:
                await coroutine
            except Exception as error:
                self._fail(error)

        task = tasks.create_task(guarded())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _watch(self, runner: Runner) -> None:
        """Deadlines, and signs of life while the client waits."""
        assert self._hosted is not None and self._metrics is not None
        while True:
            await asyncio.sleep(min(runner.tick_seconds, self._progress_seconds))
            if not self._pending:
                self._wrote = self._clock()
                continue
            runner.tick()
            self._metrics.calls_lost(self._hosted.lost_calls)
            if self._clock() - self._wrote >= self._progress_seconds:
                self._wrote = self._clock()
                done = self._counts.rows_in - self._unanswered_rows
                self._outgoing.put_nowait(encode(pb.ExecuteResponse(progress=pb.Progress(rows_done=done))))

    async def _write_all(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        while (item := await self._outgoing.get()) is not None:
            if isinstance(item, bytes):
                await write(item)
                continue
            await write(item.message)
            self._wrote = self._clock()
            self._account(item)
            self._changed.set()

    def _account(self, output: Output) -> None:
        """A Result was sent: its rows are answered."""
        assert self._metrics is not None
        counts, failed = self._counts, output.failed
        ok = output.rows - failed - output.skipped
        counts.rows_ok += ok
        counts.rows_failed += failed
        counts.rows_skipped += output.skipped
        self._unanswered_rows -= output.rows
        pending = self._pending[output.batch]
        pending.rows -= output.rows
        if pending.rows == 0:
            del self._pending[output.batch]
            self._unanswered_bytes -= pending.size
            self._metrics.batch_answered(self._clock() - pending.arrived)
        self._metrics.rows_answered(ok, failed, output.skipped, len(output.message))
        for code, count in output.codes.items():
            self._metrics.row_failed(code, count)

    def _final_counts(self) -> pb.StreamCounts:
        counts = self._counts
        counts.retries = self._runner.retries if self._runner else 0
        if counts.rows_in != counts.rows_ok + counts.rows_failed + counts.rows_skipped:
            raise RuntimeError(f"row accounting does not add up: {counts}")
        return counts

    def _report(self, end: str) -> None:
        if self._hosted is None or self._metrics is None:
            return
        self._counts.retries = self._runner.retries if self._runner else 0
        self._metrics.rows_dropped(self._unanswered_rows)
        self._metrics.stream_ended(end, self._counts)
        counts = self._counts
        log.info(
            "stream ended",
            extra={
                "function": self._hosted.spec.key, "end": end, "rows_in": counts.rows_in, "rows_ok": counts.rows_ok,
                "rows_failed": counts.rows_failed, "rows_skipped": counts.rows_skipped, "retries": counts.retries,
            },
        )  # fmt: skip


def _error_message(error: StreamError) -> pb.ExecuteResponse:
    kinds = {
        ErrorKind.USER: pb.Error.KIND_USER,
        ErrorKind.WORKER: pb.Error.KIND_WORKER,
        ErrorKind.PROTOCOL: pb.Error.KIND_PROTOCOL,
    }
    message = pb.Error(
        kind=kinds[error.kind],
        code=error.code,
        message=capped(error.message),
        traceback=error.traceback,
        retryable=error.retryable,
    )
    if error.retry_after is not None:
        message.retry_after.FromNanoseconds(round(error.retry_after * 1e9))
    return pb.ExecuteResponse(error=message)


def _poster(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Calls something on the loop from any thread; in vain once the loop is closed, for then the server has stopped."""

    def post(callback: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *arguments)

    return post


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    """The next message, or None at the end."""
    return await anext(requests, None)
