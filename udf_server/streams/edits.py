"""Edits: a server whose plugins are edited in place serves a query only with the code that the files have now."""

import asyncio
import collections
import time
from collections.abc import Awaitable, Callable

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.plugins.sources import Sources

__all__ = ["Edits"]

MOST_RUNS = 1_000
"""Runs of queries that are remembered."""


class Edits:
    """Decides whether this process takes a stream. If the files were edited, a fresh process has to.

    The tasks of a query that runs keep the code with which it began, as long as no other query needs newer code. Use it
    on the event loop.
    """

    def __init__(
        self, sources: Sources, replace: Callable[[], Awaitable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`replace` starts a fresh process, and returns an empty text once that takes streams, or else why it fails."""
        self.code = sources.identity
        """Identifies the code of this process."""
        self._sources, self._replace, self._clock = sources, replace, clock
        self._runs: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()
        self._lock = asyncio.Lock()
        self._replaced = False
        self._failure, self._failed_at = "", -1.0
        """Why the last fresh process failed, and when it was started."""

    def replaced(self) -> None:
        """Take only further streams of queries that began here, because another process takes all others."""
        self._replaced = True

    async def require_current(self, session: str = "", run: str = "") -> None:
        """Return if this process takes a stream of this run of a query in this session, or tells its functions.

        Raises StreamError: SHUTTING_DOWN if another process has the current code, PLUGIN_FAILED if that does not start.
        """
        key, came = (session, run), self._clock()
        if not (run and key in self._runs):
            async with self._lock:
                await self._require_unedited(came)
        if run:
            self._runs[key] = None
            self._runs.move_to_end(key)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    async def _require_unedited(self, came: float) -> None:
        if not self._replaced:
            if not await asyncio.get_running_loop().run_in_executor(None, self._sources.edited):
                return
            if came > self._failed_at:  # what fails is tried again: a file may be repaired that nothing could import
                self._failed_at = self._clock()
                self._failure = await self._replace()
                self._replaced = self._replaced or not self._failure
            if self._failure:
                raise StreamError(ErrorKind.USER, ErrorCode.PLUGIN_FAILED, f"after an edit, {self._failure}")
        raise StreamError(
            ErrorKind.WORKER, ErrorCode.SHUTTING_DOWN, "a plugin was edited, so a fresh process serves it",
            retryable=True,
        )  # fmt: skip
