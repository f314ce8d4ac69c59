"""Posting: code on other threads calls something on an event loop."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

__all__ = ["poster"]


def poster(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a function that calls something on the loop, from any thread.

    If the loop is closed, the server has stopped, and the call is ignored.
    """

    def post(callback: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(callback, *arguments)

    return post
