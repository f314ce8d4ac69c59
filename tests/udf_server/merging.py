"""Functions whose calls are merged, for the tests of that."""

import asyncio
from typing import Any

import udf_server as udf
from udf_server.hosting.executors import Executors
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.testing import ManualClock

__all__ = ["DELAY", "host_of", "recorded"]

DELAY = "1 min"
"""Streams that are open are waited for, so that tests do not depend on speed; nothing waits once all have sent rows."""


def recorded(calls: list[list[int]], **options: Any) -> udf.Function:
    """A list function that notes the rows of each of its calls."""

    @udf.scalar(batched=True, **{"max_queue_delay": DELAY, "name": "f", **options})
    async def f(a: list[int]) -> list[int]:
        calls.append(a)
        await asyncio.sleep(0)
        return [each + 1 for each in a]

    return f


def host_of(function: udf.Function, clock: ManualClock | None = None) -> FunctionHost:
    executors = Executors(clock=clock, later=clock.later) if clock is not None else None
    return FunctionHost(Registry([("test", function)]), executors=executors)
