"""Keying reads the arguments of batches and computes the keys of their rows, beside the event loop."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from udf_server.base.errors import FunctionBlocked
from udf_server.base.threads import SMALL_BYTES, Token, done_aside
from udf_server.cache.keys import RowKeys
from udf_server.hosting.thread_executor import ThreadExecutor
from udf_server.runners.outputs import Mask
from udf_server.runners.runner import InputBatch, RunnerSetup

__all__ = ["Keying"]

SMALL_ROWS = 128
"""A small batch has at most this number of rows."""
HASHED_ROWS = 2_048
"""At most this number of rows are hashed at once, because no call of a function ends meanwhile."""

QUEUE_TIMES = 10
"""`cache_key` may wait for a thread for this many times `cache-timeout`: a busy function needs its cache most."""

T = TypeVar("T")
_Keys = tuple[Sequence[pa.Array], list[bytes | None], Mask | None]


class Keying:
    """Columns, keys and skipped rows of the batches of one stream."""

    def __init__(self, setup: RunnerSetup, keys: RowKeys) -> None:
        self._setup = setup
        self._keys = keys

    async def read(self, batch: InputBatch) -> _Keys:
        """The arguments, the key of each row, and the rows that are skipped. Raises ProtocolViolation.

        If the author's `cache_key` takes longer than `cache-timeout` from its call, no row has a key.
        """
        if self._setup.function.cache_key is not None:
            return await self._by_author(batch)
        if _is_small(batch):
            columns, rows, skipped = self._read(batch)
            return columns, self._keys.hashed(rows), skipped
        run, keys = asyncio.get_running_loop().run_in_executor, list[bytes | None]()
        columns, rows, skipped = await run(None, self._read, batch)
        for start in range(0, batch.rows, HASHED_ROWS):
            keys += await run(None, self._keys.hashed, rows[start : start + HASHED_ROWS])
        return columns, keys, skipped

    def _read(self, batch: InputBatch) -> "tuple[Sequence[pa.Array], Sequence[bytes | None], Mask | None]":
        columns = self._setup.arguments.columns(batch)
        return columns, self._keys.bytes_of(columns, batch.rows), self._keys.skipped(columns)

    async def _by_author(self, batch: InputBatch) -> _Keys:
        """The author's code runs on a thread of the function, because it may block."""
        loop, setup = asyncio.get_running_loop(), self._setup
        columns = await done_aside(not _is_small(batch), setup.arguments.columns, batch)
        keys: asyncio.Future[list[bytes | None]] = loop.create_future()
        began: asyncio.Future[None] = loop.create_future()
        # Whoever takes the first decides whether the job begins; the second, who ends it.
        waiting, running = Token(), Token()
        executor, limit = setup.hosted.thread_executor, setup.options.cache_timeout

        def job() -> bool:
            if not waiting.take():
                return True
            setup.post(_resolve, began, None)
            found: list[bytes | None] = [None] * batch.rows
            try:
                found = self._keys.of(columns, batch.rows)
            finally:
                setup.post(_resolve, keys, found)
            return running.take()

        executor.submit(setup.party, job)
        try:
            await asyncio.wait([began], timeout=limit * QUEUE_TIMES)
            if begun := not waiting.take():
                await asyncio.wait([keys], timeout=limit)
        except asyncio.CancelledError:
            if not waiting.take():
                loop.call_later(limit, _give_up, executor, running)
            raise
        if keys.done():
            return columns, keys.result(), self._keys.skipped(columns)
        if begun:
            _give_up(executor, running)
        return columns, [None] * batch.rows, self._keys.skipped(columns)


def _is_small(batch: InputBatch) -> bool:
    return batch.rows <= SMALL_ROWS and (batch.data is None or len(batch.data) <= SMALL_BYTES)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _give_up(executor: ThreadExecutor, running: Token) -> None:
    """Write off the thread of a job that has begun and has not ended."""
    if running.take():
        with contextlib.suppress(FunctionBlocked):  # the cache fails open, and the calls of the function report it
            executor.write_off()
