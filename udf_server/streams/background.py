"""Background: what runs beside the conversation of a stream, until the stream ends."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Background", "poster"]


class Background:
    """Tasks of one stream."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, tasks: asyncio.TaskGroup, coroutine: Coroutine[Any, Any, None], fail: Callable[[BaseException], None]
    ) -> asyncio.Task[None]:
        """Runs something until the stream ends; `fail` gets what it raises.

        A failure then ends the stream with an Error, not with a broken connection.
        """

        async def guarded() -> None:
            try:
                await coroutine
            except Exception as error:
                fail(error)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            coroutine.close()  # one that was cancelled before it began

        task = tasks.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    def cancel(self) -> None:
        """Cancels all of them."""
        for task in self._tasks:
            task.cancel()


def poster(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Calls something on the loop from any thread; in vain once the loop is closed, for then the server has stopped."""

    def post(callback: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *arguments)

    return post
