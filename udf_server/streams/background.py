"""What runs beside the reading of a stream: its writer, the heartbeats and other tasks, until the stream ends."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine

from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import FunctionMetrics
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.runners.outputs import Output
from udf_server.runners.room import Room
from udf_server.runners.runner import Runner
from udf_server.streams.accounting import RowAccounts

__all__ = ["Background", "Heartbeats", "Outbox"]


class Background:
    """The background tasks of one stream."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, tasks: asyncio.TaskGroup, coroutine: Coroutine[None, None, None], fail: Callable[[BaseException], None]
    ) -> asyncio.Task[None]:
        """Run a coroutine until the stream ends. If it raises, `fail` gets the exception.

        The stream then ends with an Error message, not with a broken connection.
        """

        async def guarded() -> None:
            try:
                await coroutine
            except Exception as error:
                fail(error)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            coroutine.close()  # needed if the task was cancelled before it began

        task = tasks.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()


class Outbox:
    """Queues messages until the client reads them. Use it on the server's event loop only.

    The stream's Room bounds the queued results: while it is full, no new call begins. Other messages are few.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[Output | bytes | None] = asyncio.Queue()
        self._accounts: RowAccounts | None = None
        self._room: Room | None = None
        self._writing: float | None = None
        self.wrote = clock()
        """Time at which the last result was written."""

    @property
    def idle(self) -> bool:
        """Whether the queue is empty."""
        return self._queue.empty()

    def stuck_for(self, now: float) -> float:
        """Seconds for which the client has not read the message being written; 0.0 if none is being written."""
        return 0.0 if self._writing is None else now - self._writing

    def results(self, accounts: RowAccounts, room: Room) -> None:
        """Set where written results are counted as answered, and where they return their room. Call before `emit`."""
        self._accounts, self._room = accounts, room

    def put(self, response: pb.ExecuteResponse) -> None:
        self._queue.put_nowait(encode(response))

    def emit(self, output: Output) -> None:
        assert self._accounts is not None
        self._accounts.ready(output)
        self._queue.put_nowait(output)

    def close(self) -> None:
        """End `run` after the messages that are queued."""
        self._queue.put_nowait(None)

    def drop(self) -> None:
        """Discard the messages that were not written. Call when the stream has ended."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write messages until `close`."""
        while (item := await self._queue.get()) is not None:
            self._writing = self._clock()
            if isinstance(item, bytes):
                await write(item)
                self._writing = None
                continue
            assert self._accounts is not None and self._room is not None
            try:
                await write(item.message)
                self._writing = None
            finally:
                # This is in `finally` because a client that has its results may be gone before this write returns.
                self._room.give_back(item.size)
                self._accounts.answer(item)
            self.wrote = self._clock()
            # The next message may come much later, and this one may be large.
            del item


PROGRESS_SECONDS = (0.2, 5.0)
"""Progress is sent at a third of the row deadline, within these bounds."""


class Heartbeats:
    """Tells a waiting client that its stream is alive, and finds out whether the client is. Use it on the loop."""

    def __init__(self, outbox: Outbox, clock: Callable[[], float], load: Callable[[], pb.Load | None]) -> None:
        self._outbox = outbox
        self._clock = clock
        self._load = load
        self._began = self._progressed = self._heard = clock()
        """When the stream began, when the last Progress message was sent, and when the last message was received."""
        self.progress_seconds = PROGRESS_SECONDS[1]
        """Interval of the Progress messages."""

    def heard(self) -> None:
        """Note that a message was received."""
        self._heard = self._clock()

    def opened(self, timeout: float) -> None:
        """Note that the function has been opened. `timeout` is the timeout of its rows."""
        self.progress_seconds = min(max(timeout / 3, PROGRESS_SECONDS[0]), PROGRESS_SECONDS[1])
        # The client can send rows only from now on, and opening may have taken longer than the idle limit.
        self.heard()

    def send(self, rows_done: int = 0, *, draining: bool = False) -> None:
        """Send Progress."""
        progress = pb.Progress(rows_done=rows_done, draining=draining, load=self._load())
        self._outbox.put(pb.ExecuteResponse(progress=progress))

    async def send_while_opening(self) -> None:
        """Send Progress while a function's `open` hook runs: without it the client assumes that the server hangs."""
        for pause in itertools.chain(PROGRESS_SECONDS[:1], itertools.repeat(PROGRESS_SECONDS[1])):
            await asyncio.sleep(pause)
            self.send()

    async def watch(
        self, runner: Runner, hosted: HostedFunction, metrics: FunctionMetrics, accounts: RowAccounts
    ) -> None:
        """Check deadlines, and send Progress while the client waits."""
        while True:
            if not accounts.unanswered_rows:
                await accounts.some_unanswered()
                self._progressed = self._clock()
            await asyncio.sleep(min(runner.tick_seconds, self.progress_seconds))
            if not accounts.unanswered_rows:
                continue
            runner.tick()
            metrics.show("calls_lost", hosted.lost_calls)
            # If messages wait to be sent, the client does not read: no Progress is added, so that the queue is bounded.
            quiet = self._clock() - max(self._progressed, self._outbox.wrote)
            if quiet >= self.progress_seconds and self._outbox.idle:
                self._progressed = self._clock()
                self.send(rows_done=accounts.rows_done)

    def idle(self, opening: float | None, idle: float, accounts: RowAccounts | None) -> str:
        """Why the client counts as idle, or an empty text. `opening` is the limit for its Open; None after that."""
        now = self._clock()
        if stuck := self._outbox.stuck_for(now):
            return f"nothing was read for {idle:g} s" if stuck > idle else ""
        if opening is not None and now - self._began > opening:
            return f"nothing was opened for {opening:g} s"
        if accounts and not accounts.unanswered_rows and now - max(self._heard, self._outbox.wrote) > idle:
            return f"nothing was sent for {idle:g} s"
        return ""
