"""What the event loop shares with threads: a token that one of them takes, posting to the loop, work beside it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

__all__ = ["SMALL_BYTES", "Token", "done_aside", "poster"]

SMALL_BYTES = 32 << 10
"""Arguments and entries of at most this size are read on the event loop: passing them to a thread would take longer."""

Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class Token:
    """Decides which of several threads does what may be done once. No method waits."""

    __slots__ = ("_there",)

    def __init__(self, *, there: bool = True) -> None:
        """If it is not there, nobody can take it before `put`."""
        # Python pops an element in one step.
        self._there: list[None] = [None] if there else []

    def __bool__(self) -> bool:
        """Whether it is there."""
        return bool(self._there)

    def put(self) -> None:
        """Let one thread take it. Call once."""
        self._there.append(None)

    def take(self) -> bool:
        """Take it. Returns whether the caller was the first."""
        try:
            self._there.pop()
        except IndexError:
            return False
        return True


def poster(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a function that calls something on the loop, from any thread.

    If the loop is closed, the server has stopped, and the call is ignored.
    """

    def post(callback: Callable[[*Ts], object], *arguments: *Ts) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *arguments)

    return post


async def done_aside(aside: bool, work: Callable[[*Ts], Result], *arguments: *Ts) -> Result:
    """What `work` returns: on another thread if it is to be done aside, as it takes long, or else on the event loop."""
    if aside:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    return work(*arguments)
