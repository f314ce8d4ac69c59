"""ExecuteStream: the I/O around a Session and a Runner, from the first message of a stream to the last."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import Execution
from remote_udf.messages import read_request
from remote_udf.options import OutputMode
from remote_udf.shared_memory import SharedMemory, SharedMemoryRefused, attach
from remote_udf.spans import NO_SPAN, Headers, Span
from remote_udf.tracing import start_span
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import FunctionMetrics, ServerMetrics
from udf_server.base.posting import poster
from udf_server.batching.merged_rows import MergedRows
from udf_server.budgets.budgets import Budgets
from udf_server.cache.cached_runner import CachedRunner
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.function_host import FunctionHost, HostedFunction
from udf_server.runners.async_rows import AsyncRows
from udf_server.runners.outputs import OutputWriter
from udf_server.runners.room import Room
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.threaded_rows import ThreadedRows
from udf_server.runners.vectorized import Vectorized
from udf_server.security.access import ANYBODY, Caller
from udf_server.streams.accounting import RowAccounts, StreamLimits
from udf_server.streams.admission import Admission
from udf_server.streams.audit import stream_ended, stream_refused
from udf_server.streams.background import Background
from udf_server.streams.heartbeats import Heartbeats
from udf_server.streams.opening import SecondRefused, open_function, opened_message
from udf_server.streams.outbox import Outbox
from udf_server.streams.session import Feed, Session, Start, Stop
from udf_server.streams.session_progress import StreamProgress
from udf_server.streams.stream_errors import as_stream_error, error_message

__all__ = ["ExecuteStream"]

log = logging.getLogger(__name__)
_RUNNERS: dict[Execution, type[Runner]] = {
    Execution.ASYNC_ROWS: AsyncRows,
    Execution.THREADED_ROWS: ThreadedRows,
    Execution.VECTORIZED: Vectorized,
    Execution.BATCHED: Vectorized,
}


ORPHAN_SECONDS = 5.0
"""Calls of a stream that was lost are cancelled this long after their timeout, whatever they do."""


class ExecuteStream:
    """Serves one stream. Call `run` once.

    One exit stack releases what the stream holds (shared memory, calls in flight, room in the server's limits, its
    span) when `run` returns or raises. The garbage collector runs too rarely to rely on.
    """

    def __init__(
        self,
        host: FunctionHost,
        metrics: ServerMetrics,
        limits: StreamLimits,
        *,
        caller: Caller = ANYBODY,
        admission: Admission | None = None,
        cache: OutcomeCache | None = None,
        budgets: Budgets | None = None,
        headers: Headers = (),
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        load: Callable[[], pb.Load | None] = lambda: None,
    ) -> None:
        """`load` returns that of the server, for the client; None to tell none."""
        self._host = host
        self._server_metrics = metrics
        self._limits = limits
        self._caller = caller
        self._admission = admission or Admission()
        self._cache = cache
        self._budgets = budgets
        self._headers = headers
        self._span: Span = NO_SPAN
        self._began = clock()
        self._opened: pb.Open | None = None
        self._draining = False
        self._held = contextlib.ExitStack()
        """Releases what the stream holds when it ends. Code that acquires something registers its release here."""
        self._shared: SharedMemory | None = None
        self._clock = clock
        self._random = random or Random()
        self._session = Session(limits.unanswered_rows)
        self._hosted: HostedFunction | None = None
        self._runner: Runner | None = None
        self._room: Room | None = None
        self._metrics: FunctionMetrics | None = None
        self._accounts: RowAccounts | None = None
        self._outbox = Outbox(clock)
        self._held.callback(self._outbox.drop)
        self._load = load
        self._heartbeats = Heartbeats(self._outbox, clock, load)
        self._background = Background()
        self._error: BaseException | None = None
        """The error of a task or a call that ended the stream."""
        self._main: asyncio.Task[Any] | None = None
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
                self._report(end)
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
            if self._runner is not None:
                self._runner.cancel()
            return self._failed(error), "failed"
        finally:
            self._end_calls()

    def _end_calls(self) -> None:
        """Cancel the calls that run, except for those whose outcomes are kept, if the cache has room for them."""
        runner = self._runner
        if isinstance(runner, CachedRunner) and self._cache is not None:
            runner.let_go()
            if runner.running and self._cache.orphans.has_room(sum(runner.running.values()), self._caller.identity):
                return
        if runner is not None:
            runner.cancel()

    def _pass_calls_on(self, held: contextlib.ExitStack) -> None:
        """Pass the calls that go on without this stream to the cache, with all that is held for them."""
        runner = self._runner
        if not isinstance(runner, CachedRunner) or not runner.running or self._accounts is None or self._cache is None:
            return
        if self._writer is not None and not self._writer.done():
            # Python closes a stream that nobody runs any more.
            return
        self._accounts.reduce_to(runner.running)
        self._outbox.drop()
        calls = self._orphaned(runner, runner.options.timeout + ORPHAN_SECONDS)
        self._cache.orphans.take(sum(runner.running.values()), self._caller.identity, calls, held.pop_all())

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
        function = self._hosted.spec.key if self._hosted else ""
        if isinstance(error, SecondRefused):
            log.debug("second stream refused", extra={"why": refusal.message})
            return error_message(refusal)
        if refusal.code is ErrorCode.INTERNAL:
            log.error("stream failed", exc_info=error, extra={"function": function})
        else:
            log.warning("stream refused", extra={"function": function, "code": refusal.code, "why": refusal.message})
        if self._hosted is None:
            wanted = self._opened.function if self._opened else ""
            stream_refused(self._caller, wanted, refusal.code)
            self._server_metrics.rejected.labels(refusal.code).inc()
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
                assert self._accounts is not None
                counts = self._accounts.balanced()
                return pb.ExecuteResponse(finished=pb.Finished(counts=counts, times=self._accounts.times())), "finished"
            else:
                return self._cancelled()
        # The client closed its side without Finish: it wants no more results, and may not read the answer.
        return self._cancelled()

    async def _open(self, request: pb.Open, tasks: asyncio.TaskGroup) -> None:
        self._opened = request
        context = request.context
        self._span = start_span(
            "udf-server", f"udf.stream {request.function[:200]}", self._headers, server=True,
            function=request.function[:200], operation_id=context.operation_id, job=context.job, stage=context.stage,
            partition=context.partition, task_attempt=context.task_attempt, micro_batch=context.micro_batch,
        )  # fmt: skip
        alive = tasks.create_task(self._heartbeats.send_while_opening())
        try:
            opening = await open_function(
                self._host, request, self._server_metrics, self._caller, self._budgets, self._held
            )
        finally:
            alive.cancel()
        spec = opening.hosted.spec
        self._hosted = opening.hosted
        self._metrics = self._server_metrics.function(spec.name, spec.version)
        self._metrics.stream_opened()
        self._accounts = RowAccounts(
            self._limits, self._metrics, self._clock, admission=self._admission, function=spec.key, span=self._span,
            caller=self._caller, count=self._server_metrics.caller_answered(self._caller.name), budgets=opening.budgets,
        )  # fmt: skip
        self._held.callback(self._accounts.drop)
        self._span.event("opened")
        party = self._caller.party(context.job[:200])
        self._held.callback(party.close)
        self._shared = self._attached(request)
        ordered = opening.options.output_mode is OutputMode.ORDERED
        emits = opening.function.emits
        rooms = self._admission.rooms
        self._room = room = Room(
            self._limits.result_bytes, rooms, self._metrics.results_waited, self._hosted.executors.threads
        )
        self._held.callback(room.close)
        self._outbox.results(self._accounts, room)
        setup = RunnerSetup(
            hosted=opening.hosted,
            function=opening.function,
            context=opening.context,
            options=opening.options,
            arguments=opening.arguments,
            writer=OutputWriter(
                opening.function.spec.result,
                ordered=ordered,
                max_message_bytes=self._limits.message_bytes,
                room=room,
                shared=self._shared,
                what="state and timers of this segment take" if emits else "the value of this row takes",
                spending=opening.context.spending,
            ),
            emit=self._outbox.emit,
            began=self._accounts.began,
            retried=self._accounts.retried,
            fail=self._fail,
            post=poster(asyncio.get_running_loop()),
            room=room,
            takes_parts=emits and request.takes_parts,
            spawn=lambda coroutine: self._spawn(coroutine, self._tasks or tasks),
            metrics=self._metrics,
            party=party,
            clock=self._clock,
            random=self._random,
        )
        self._runner = self._made_runner(setup, alone=bool(opening.budgets) or request.estimate)
        self._held.callback(self._leave, self._runner)
        self._heartbeats.opened(opening.options.timeout)
        self._spawn(self._heartbeats.watch(self._runner, opening.hosted, self._metrics, self._accounts), tasks)
        self._session.opened()
        answer = opened_message(opening, self._limits.message_bytes, self._heartbeats.progress_seconds)
        answer.opened.shared_memory = self._shared is not None
        answer.opened.max_batch_rows = self._limits.unanswered_rows
        if self._cache is not None and isinstance(self._runner, CachedRunner):
            self._cache.compare(spec.key, request.cache)
            answer.opened.cache = self._cache.store.identity
        if self._budgets is not None and request.HasField("budget"):
            answer.opened.budget = self._budgets.identity
        answer.opened.estimate = request.estimate
        if (load := self._load()) is not None:
            answer.opened.load.CopyFrom(load)
        self._outbox.put(answer)
        if self._draining:
            self.drain()

    def _made_runner(self, setup: RunnerSetup, *, alone: bool) -> Runner:
        """The runner of the stream's calls, behind the cache if the call has one.

        If `alone`, its rows do not join calls of other streams: of those no single job could be refused its part by its
        budget, and estimates are no calls.
        """
        make = MergedRows if setup.hosted.merging is not None and not alone else _RUNNERS[setup.function.spec.execution]
        if self._cache is None or not setup.options.cache_ttl:
            return make(setup)
        return CachedRunner(setup, make, self._cache, self._caller.identity)

    def _attached(self, request: pb.Open) -> SharedMemory | None:
        """The memory that a caller on this host offers; None if it offers none, or if it cannot be opened from here."""
        assert self._metrics is not None
        if not request.HasField("shared_memory") or not self._limits.shared_memory or not self._caller.same_host:
            return None
        try:
            shared = attach(request.shared_memory, self._limits.message_bytes)
        except SharedMemoryRefused as refused:
            # The caller may run in another container or as another user. Shared memory is optional.
            log.debug("no shared memory", extra={"function": request.function[:200], "why": str(refused)})
            return None
        self._held.callback(shared.close)
        self._metrics.memory_shared()
        return shared

    def _leave(self, runner: Runner) -> None:
        """Cancel the runner and drop the reference to it, because it refers to the stream: that would be a cycle."""
        runner.cancel()
        self._runner = self._error = None

    async def _feed(self, batch: InputBatch, size: int) -> None:
        """Pass a batch to the runner once there is room for it."""
        assert self._runner is not None and self._accounts is not None
        await self._accounts.receive(batch, size)
        self._runner.feed(batch)

    async def _drained(self, requests: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> bool:
        """Wait until every row is answered. Returns False if the client cancels first."""
        assert self._accounts is not None
        answered = self._spawn(self._accounts.all_answered(), tasks)
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
        if self._opened is None or self._accounts is None:
            return None
        return StreamProgress(self._opened.context.session, self._accounts.counts, self._accounts.unanswered_rows)

    @property
    def waiting_seconds(self) -> float | None:
        """How long its oldest message has waited for a first call of the function; None without unanswered rows."""
        if self._accounts is None or not self._accounts.unanswered_rows:
            return None
        since = self._accounts.waits_since()
        return 0.0 if since is None else self._clock() - since

    @property
    def results_held(self) -> tuple[HostedFunction | None, int]:
        """The function of the stream, and the bytes of its unsent results."""
        return self._hosted, self._room.held if self._room else 0

    def end_if_idle(self, opening: float, idle: float) -> None:
        """End the stream if the client sends no Open for `opening` seconds, or is idle for `idle` seconds.

        The client of an idle stream opens a new stream when it has rows again.
        """
        if not (why := self._heartbeats.idle(opening if self._opened is None else None, idle, self._accounts)):
            return
        self._fail(StreamError(ErrorKind.WORKER, ErrorCode.IDLE, f"the stream is idle: {why}", retryable=True))
        if self._outbox.stuck_for(self._clock()) and self._writer is not None:
            # Otherwise the writer waits forever for a client that does not read.
            self._writer.cancel()

    def drain(self) -> None:
        """Tell the client that the server is about to stop, so that it changes servers between two batches."""
        self._draining = True
        if self._accounts is not None:
            self._heartbeats.send(rows_done=self._accounts.rows_done, draining=True)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            if self._main is not None:
                self._main.cancel()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        return self._background.spawn(tasks, coroutine, self._fail)

    def _cancelled(self) -> tuple[pb.ExecuteResponse, str]:
        counts = self._accounts.counts if self._accounts else None
        return pb.ExecuteResponse(cancelled=pb.Cancelled(counts=counts)), "cancelled"

    def _report(self, end: str) -> None:
        if self._hosted is None or self._metrics is None or self._accounts is None:
            return
        counts = self._accounts.counts
        self._span.set(
            end=end,
            rows=counts.rows_in,
            ok=counts.rows_ok,
            failed=counts.rows_failed,
            calls=counts.calls,
            retries=counts.retries,
        )
        self._metrics.rows_dropped(self._accounts.unanswered_rows)
        self._metrics.stream_ended(end)
        stream_ended(self._caller, self._hosted.spec.key, end, counts, self._clock() - self._began)


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    """The next message, or None at the end."""
    return await anext(requests, None)
