"""The plugin of a server with those functions of a user's file that CONFORMANCE_OFFER names."""

import asyncio
import functools
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import udf_server as udf
from tests.conformance.given import Given
from udf_process import FromChangelog, ToChangelog
from udf_server.declaring.functions import Function

__all__ = ["FILE_VARIABLE", "OFFER_VARIABLE", "OPEN_VARIABLE", "counted", "udf_functions"]

FILE_VARIABLE, OFFER_VARIABLE = "CONFORMANCE_FUNCTIONS", "CONFORMANCE_OFFER"
OPEN_VARIABLE = "CONFORMANCE_OPEN"
"""A file for the largest number of calls that were open at once."""


@udf.hookimpl
def udf_functions() -> list[Any]:
    given = Given(Path(os.environ[FILE_VARIABLE]))
    offered = [given.at(reference).function for reference in json.loads(os.environ[OFFER_VARIABLE])]
    functions = [counted(function) for function in offered if function is not None]
    taken = {function.spec.name for function in functions}
    return [*functions, *(each for each in (ToChangelog(), FromChangelog()) if each.name not in taken)]


class _Open:
    """Counts open calls of a server, and writes the largest number to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._now, self._most = path, threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            self._now += 1
            if self._now > self._most:
                self._most = self._now
                self._path.write_text(str(self._most))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


_open = _Open(Path(os.environ[OPEN_VARIABLE])) if os.environ.get(OPEN_VARIABLE) else None


def counted(function: Function) -> Function:
    """Counts the open calls of a scalar function; returns any other function unchanged."""
    if _open is None or str(function.spec.kind) != "scalar" or function.emits:
        return function
    opened, call = _open, function.call

    @functools.wraps(call)
    async def waiting(*arguments: Any, **keywords: Any) -> Any:
        with opened:
            return await call(*arguments, **keywords)

    @functools.wraps(call)
    def plain(*arguments: Any, **keywords: Any) -> Any:
        with opened:
            return call(*arguments, **keywords)

    wrapped: Callable[..., Any] = waiting if asyncio.iscoroutinefunction(call) else plain
    return replace(function, call=wrapped)
