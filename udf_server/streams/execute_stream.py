"""ExecuteStream: the I/O around a Session and a ServedCall, from the first message of a stream to the last."""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.messages import read_request
from remote_udf.shared_memory import SharedMemory
from remote_udf.spans import NO_SPAN, Headers, Span
from remote_udf.tracing import start_span
from remote_udf.v1 import message_pb2 as pb
from udf_server.cache.cached_runner import CachedRunner
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.runners.runner import InputBatch
from udf_server.security.access import ANYBODY, Caller
from udf_server.streams.background import Background, Heartbeats, Outbox
from udf_server.streams.opening import Opening, open_function, opened_message
from udf_server.streams.served_call import ServedCall
from udf_server.streams.services import StreamServices
from udf_server.streams.session import Feed, Session, Start, Stop
from udf_server.streams.stream_reports import StreamProgress, as_stream_error, error_message, stream_refused

__all__ = ["ExecuteStream"]

log = logging.getLogger(__name__)
ORPHAN_SECONDS = 5.0
"""Calls of a stream that was lost are cancelled this long after their timeout, whatever they do."""


class ExecuteStream:
    """Serves one stream. Call `run` once.

    One exit stack releases what the stream holds (shared memory, calls in flight, room in the server's limits, its
    span) when `run` returns or raises. The garbage collector runs too rarely to rely on.
    """

    def __init__(
        self,
        services: StreamServices,
        *,
        caller: Caller = ANYBODY,
        headers: Headers = (),
        load: Callable[[], pb.Load | None] = lambda: None,
    ) -> None:
        """`load` returns that of the server, for the client; None to tell none."""
        self._services = services
        self._limits, self._cache, self._clock = services.limits, services.cache, services.clock
        self._caller = caller
        self._headers = headers
        self._span: Span = NO_SPAN
        self._began = self._clock()
        self._wanted: str | None = None
        """The function that Open names; None before Open."""
        self._draining = False
        self._held = contextlib.ExitStack()
        """Releases what the stream holds when it ends. Code that acquires something registers its release here."""
        self._shared: SharedMemory | None = None
        self._session = Session(self._limits.unanswered_rows)
        self.call: ServedCall | None = None
        """None before the function is open."""
        self._outbox = Outbox(self._clock)
        self._held.callback(self._outbox.drop)
        self._load = load
        self._heartbeats = Heartbeats(self._outbox, self._clock, load)
        self._background = Background()
        self._error: BaseException | None = None
        """The error of a task or a call that ended the stream."""
        self._main: asyncio.Task[None] | None = None
        """The task that serves the client; None while it must not be cancelled."""
        self._writer: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks of calls that go on after the stream was lost."""

    async def run(self, requests: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Read and answer messages until the stream has ended, whatever the client sends.

        If it is cancelled, as gRPC does when the client is gone, it cancels the calls that are running. Calls whose
        outcomes are kept become orphans of the cache instead, if the client is gone or has cancelled.
        """
        end = "disconnected"
        with self._held as held:
            try:
                end = await self._run(requests, write)
            except BaseException as error:
                # The task that runs this keeps its exception, the exception keeps the frames with the task group, and
                # the task group refers to the task: the stream would be part of a reference cycle.
                traceback.clear_frames(error.__traceback__)
                raise
            finally:
                if self.call is not None:
                    self.call.report(end, self._clock() - self._began)
                self._span.end("" if end in {"finished", "cancelled"} else end)
                self._pass_calls_on(held)

    async def _run(self, requests: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> str:
        """Serve the stream. Returns how it ended."""
        async with asyncio.TaskGroup() as tasks:
            writer = self._writer = tasks.create_task(self._outbox.run(write))
            last, end = await self._serve(requests, tasks)
            self._session.ended()
            self._outbox.put(last)
            self._outbox.close()
            await asyncio.wait((writer,))
            self._background.cancel()
        return end

    async def _serve(self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> tuple[pb.ExecuteResponse, str]:
        """Serve the stream. Returns its last message, and how it ended."""
        self._main = asyncio.current_task()
        try:
            try:
                return await self._exchange(requests, tasks)
            except asyncio.CancelledError:
                if self._error is None or self._main is None:
                    raise
                # _fail cancelled this task, not gRPC: the client may never send a message that would resume it.
                self._main.uncancel()
                failure, self._error = self._error, None
                try:
                    raise failure from None
                finally:
                    del failure  # its traceback refers to this frame
            finally:
                self._main = None
        except Exception as error:
            if self.call is not None:
                self.call.cancel()
            return self._failed(error), "failed"
        finally:
            self._end_calls()

    def _end_calls(self) -> None:
        """Cancel the calls that run, except for those whose outcomes are kept, if the cache has room for them."""
        if self.call is None:
            return
        runner = self.call.runner
        if isinstance(runner, CachedRunner) and self._cache is not None:
            runner.let_go()
            if runner.running and self._cache.orphans.has_room(sum(runner.running.values()), self._caller.identity):
                return
        self.call.cancel()

    def _pass_calls_on(self, held: contextlib.ExitStack) -> None:
        """Pass the calls that go on without this stream to the cache, with all that is held for them."""
        call, cache = self.call, self._cache
        runner = call.runner if call is not None else None
        if call is None or cache is None or not isinstance(runner, CachedRunner) or not runner.running:
            return
        if self._writer is not None and not self._writer.done():
            # Python closes a stream that nobody runs any more.
            return
        call.accounts.reduce_to(runner.running)
        self._outbox.drop()
        calls = self._orphaned(runner, runner.options.timeout + ORPHAN_SECONDS)
        cache.orphans.take(sum(runner.running.values()), self._caller.identity, calls, held.pop_all())

    async def _orphaned(self, runner: CachedRunner, seconds: float) -> None:
        """Watch the deadlines of calls that go on without this stream, until they have ended."""
        self._main = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                until = self._clock() + seconds
                while self._clock() < until and not await runner.ended(runner.tick_seconds):
                    runner.tick()
                self._background.cancel()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # as in `run`
            raise
        finally:
            # The task refers to the stream, and the stream must not refer to the task.
            self._main = self._tasks = None

    def _failed(self, error: Exception) -> pb.ExecuteResponse:
        """Log and count the error that ended the stream. Returns the Error message for the client."""
        refusal = as_stream_error(error)
        function = self.call.hosted.spec.key if self.call else ""
        if refusal.code is ErrorCode.INTERNAL:
            log.error("stream failed", exc_info=error, extra={"function": function})
        elif self.call is not None:
            log.warning("stream refused", extra={"function": function, "code": refusal.code, "why": refusal.message})
        if self.call is None:
            stream_refused(self._caller, self._wanted or "", refusal)
            self._services.metrics.rejected.labels(refusal.code).inc()
        return error_message(refusal)

    async def _exchange(
        self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup
    ) -> tuple[pb.ExecuteResponse, str]:
        async for message in requests:
            self._heartbeats.heard()
            request = read_request(message, self._shared)
            action = self._session.receive(request)
            if isinstance(action, Start):
                await self._open(action.open, tasks)
            elif isinstance(action, Feed):
                await self._feed(action.batch, len(message) + request.envelope.shared.bytes)
            elif isinstance(action, Stop):
                return self._cancelled()
            elif await self._drained(requests, tasks):
                assert self.call is not None
                accounts = self.call.accounts
                finished = pb.Finished(counts=accounts.balanced(), times=accounts.times())
                return pb.ExecuteResponse(finished=finished), "finished"
            else:
                return self._cancelled()
        # The client closed its side without Finish: it wants no more results, and may not read the answer.
        return self._cancelled()

    async def _open(self, request: pb.Open, tasks: asyncio.TaskGroup) -> None:
        self._wanted = request.function
        context = request.context
        self._span = start_span(
            "udf-server", f"udf.stream {request.function[:200]}", self._headers, server=True,
            function=request.function[:200], operation_id=context.operation_id, job=context.job, stage=context.stage,
            partition=context.partition, task_attempt=context.task_attempt, micro_batch=context.micro_batch,
        )  # fmt: skip
        alive = tasks.create_task(self._heartbeats.send_while_opening())
        try:
            opening = await open_function(self._services, request, self._caller, self._held)
        finally:
            alive.cancel()
        call = self.call = ServedCall(
            self._services, opening, request, self._held, caller=self._caller, span=self._span
        )
        runner = call.start(
            self._outbox, fail=self._fail, spawn=lambda coroutine: self._spawn(coroutine, self._tasks or tasks)
        )
        self._held.callback(self._leave, call)
        self._shared = call.shared
        self._heartbeats.opened(opening.bound.options.timeout)
        self._spawn(self._heartbeats.watch(runner, call.hosted, call.metrics, call.accounts), tasks)
        self._session.opened()
        self._outbox.put(self._answer(opening, request))
        if self._draining:
            self.drain()

    def _answer(self, opening: Opening, request: pb.Open) -> pb.ExecuteResponse:
        """The Opened message."""
        answer = opened_message(opening, self._limits.message_bytes, self._heartbeats.progress_seconds)
        answer.opened.shared_memory = self._shared is not None
        answer.opened.max_batch_rows = self._limits.unanswered_rows
        if self._services.budgets is not None and request.HasField("budget"):
            answer.opened.budget = self._services.budgets.identity
        answer.opened.estimate = request.estimate
        if (load := self._load()) is not None:
            answer.opened.load.CopyFrom(load)
        return answer

    def _leave(self, call: ServedCall) -> None:
        call.leave()
        self._error = None

    async def _feed(self, batch: InputBatch, size: int) -> None:
        """Pass a batch to the runner once there is room for it."""
        call = self.call
        assert call is not None and call.runner is not None
        await call.accounts.receive(batch, size)
        call.runner.feed(batch)

    async def _drained(self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> bool:
        """Wait until every row is answered. Returns False if the client cancels first."""
        assert self.call is not None
        answered = self._spawn(self.call.accounts.all_answered(), tasks)
        more: asyncio.Task[bytes | None] = tasks.create_task(_next(requests))
        try:
            await asyncio.wait((answered, more), return_when=asyncio.FIRST_COMPLETED)
            if not answered.done() and (message := more.result()) is not None:
                # After Finish only Cancel is legal; anything else raises here.
                self._session.receive(read_request(message))
                return False
            await answered
            return True
        finally:
            # The client may wait for this server's answer and send nothing.
            more.cancel()

    @property
    def progress(self) -> StreamProgress | None:
        """What the stream has answered, for the session of its caller; None before it is opened."""
        return self.call.progress if self.call else None

    @property
    def waiting_seconds(self) -> float | None:
        """How long its oldest message has waited for a first call of the function; None without unanswered rows."""
        return self.call.waiting_seconds if self.call else None

    @property
    def results_held(self) -> tuple[HostedFunction | None, int]:
        """The function of the stream, and the bytes of its unsent results."""
        call = self.call
        return (call.hosted, call.room.held if call.room else 0) if call else (None, 0)

    def end_if_idle(self, opening: float, idle: float) -> None:
        """End the stream if the client sends no Open for `opening` seconds, or is idle for `idle` seconds.

        The client of an idle stream opens a new stream when it has rows again.
        """
        accounts = self.call.accounts if self.call else None
        if not (why := self._heartbeats.idle(opening if self._wanted is None else None, idle, accounts)):
            return
        self._fail(StreamError(ErrorKind.WORKER, ErrorCode.IDLE, f"the stream is idle: {why}", retryable=True))
        if self._outbox.stuck_for(self._clock()) and self._writer is not None:
            # Otherwise the writer waits forever for a client that does not read.
            self._writer.cancel()

    def drain(self) -> None:
        """Tell the client that the server is about to stop, so that it changes servers between two batches."""
        self._draining = True
        if self.call is not None:
            self._heartbeats.send(rows_done=self.call.accounts.rows_done, draining=True)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._main is not None:
                self._main.cancel()

    def _spawn(self, coroutine: Coroutine[None, None, None], tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        return self._background.spawn(tasks, coroutine, self._fail)

    def _cancelled(self) -> tuple[pb.ExecuteResponse, str]:
        counts = self.call.accounts.counts if self.call else None
        return pb.ExecuteResponse(cancelled=pb.Cancelled(counts=counts)), "cancelled"


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    """The next message, or None at the end."""
    return await anext(requests, None)
