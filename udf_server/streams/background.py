"""Background tasks of a stream: they run beside its exchange of messages until the stream ends."""

import asyncio
from collections.abc import Callable, Coroutine

__all__ = ["Background"]


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
