"""Outbox holds the messages of one stream until they are written to its client."""

import asyncio
from collections.abc import Awaitable, Callable

from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from udf_server.runners.outputs import Output
from udf_server.runners.room import Room
from udf_server.streams.accounting import RowAccounts

__all__ = ["Outbox"]


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
