"""Outbox: the messages of one stream on their way to its client."""

import asyncio
from collections.abc import Awaitable, Callable

from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from udf_server.runners.outputs import Output
from udf_server.runners.room import Room
from udf_server.streams.accounting import RowAccounts

__all__ = ["Outbox"]


class Outbox:
    """Lives on the server's event loop. Results wait here until the client reads; others are few.

    The room that results take bounds them: while it is full, the function makes no more.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[Output | bytes | None] = asyncio.Queue()
        self._accounts: RowAccounts | None = None
        self._room: Room | None = None
        self._writing: float | None = None
        self.wrote = clock()
        """When the last result was written."""

    @property
    def idle(self) -> bool:
        """Nothing waits to be written."""
        return self._queue.empty()

    def stuck_for(self, now: float) -> float:
        """For how many seconds the client has not read the next message; 0.0 if there is none for it."""
        return 0.0 if self._writing is None else now - self._writing

    def results(self, accounts: RowAccounts, room: Room) -> None:
        """Results may come. They are booked as answered, and give their room back, when they were written."""
        self._accounts, self._room = accounts, room

    def put(self, response: pb.ExecuteResponse) -> None:
        self._queue.put_nowait(encode(response))

    def emit(self, output: Output) -> None:
        assert self._accounts is not None
        self._accounts.ready(output)
        self._queue.put_nowait(output)

    def close(self) -> None:
        """Nothing more comes."""
        self._queue.put_nowait(None)

    def drop(self) -> None:
        """Lets go of what was not written: the stream has ended."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes until `close`."""
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
                # Also when cut off here: a client that has what it wants may be gone before this write returns.
                self._room.give_back(item.size)
                self._accounts.answer(item)
            self.wrote = self._clock()
            # The next one may be long in coming, and this one large.
            del item
