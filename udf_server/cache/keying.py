"""Keying reads the arguments of batches and computes the keys of their rows, beside the event loop."""

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from udf_server.cache.keys import Mask, RowKeys
from udf_server.runners.runner import InputBatch, RunnerSetup

__all__ = ["Keying"]

SMALL_ROWS, SMALL_BYTES = 128, 32 << 10
"""A batch of at most this size is read on the event loop: passing it to a thread would take longer."""

_Keys = tuple[Sequence[pa.Array], list[bytes | None], Mask | None]


class Keying:
    """Columns, keys and skipped rows of the batches of one stream."""

    def __init__(self, setup: RunnerSetup, keys: RowKeys) -> None:
        self._setup = setup
        self._keys = keys

    async def read(self, batch: InputBatch) -> _Keys:
        """The arguments, the key of each row, and the rows that are skipped. Raises ProtocolViolation.

        If the author's `cache_key` takes longer than `cache-timeout`, no row has a key.
        """
        if self._setup.function.cache_key is not None:
            return await self._by_author(batch)
        if _is_small(batch):
            return self._read(batch)
        return await asyncio.get_running_loop().run_in_executor(None, self._read, batch)

    def _read(self, batch: InputBatch) -> _Keys:
        columns = self._setup.arguments.columns(batch)
        return columns, self._keys.of(columns, batch.rows), self._keys.skipped(columns)

    async def _by_author(self, batch: InputBatch) -> _Keys:
        """The author's code runs on a thread of the function, because it may block."""
        loop, setup = asyncio.get_running_loop(), self._setup
        columns = (
            setup.arguments.columns(batch)
            if _is_small(batch)
            else await loop.run_in_executor(None, setup.arguments.columns, batch)
        )
        keys: asyncio.Future[list[bytes | None]] = loop.create_future()
        # Whoever takes the element of the first decides whether the job begins; of the second, who ends it.
        waiting, running = [None], [None]

        def done(found: list[bytes | None]) -> None:
            if not keys.done():
                keys.set_result(found)

        def job() -> bool:
            if not _take(waiting):
                return True
            found: list[bytes | None] = [None] * batch.rows
            try:
                found = self._keys.of(columns, batch.rows)
            finally:
                setup.post(done, found)
            return _take(running)

        setup.hosted.thread_executor.submit(setup.party, job)
        try:
            async with asyncio.timeout(setup.options.cache_timeout):
                found = await keys
        except TimeoutError:
            found = [None] * batch.rows
            if not _take(waiting) and _take(running):
                setup.hosted.thread_executor.write_off()
        except asyncio.CancelledError:
            _take(waiting)
            raise
        return columns, found, self._keys.skipped(columns)


def _is_small(batch: InputBatch) -> bool:
    return batch.rows <= SMALL_ROWS and (batch.data is None or len(batch.data) <= SMALL_BYTES)


def _take(token: list[None]) -> bool:
    """Whether the caller is the first to take the element. Safe to call from any thread."""
    try:
        token.pop()
    except IndexError:
        return False
    return True
