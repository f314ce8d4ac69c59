"""Posting: code on other threads calls something on an event loop."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVarTuple

__all__ = ["poster"]

Ts = TypeVarTuple("Ts")


def poster(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a function that calls something on the loop, from any thread.

    If the loop is closed, the server has stopped, and the call is ignored.
    """

    def post(callback: Callable[[*Ts], object], *arguments: *Ts) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *arguments)

    return post
