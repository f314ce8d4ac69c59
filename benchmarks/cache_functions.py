"""Functions of the suite `cache`."""

import asyncio
import time

import pyarrow as pa

import udf_server as udf

LOOKUP_SECONDS = 0.01
calls = [0]
"""The number of calls of `paid` in this process."""


@udf.scalar
async def paid(x: int) -> int:
    """A request that takes 10 ms and costs money."""
    calls[0] += 1
    await asyncio.sleep(LOOKUP_SECONDS)
    return x


@udf.scalar
async def paid_calls(x: int) -> int:
    """The number of calls of `paid` in this process so far."""
    return calls[0]


@udf.scalar(vectorized=True)
def computed(x: pa.Int64Array) -> pa.Int64Array:
    """A microsecond of work per row."""
    until = time.perf_counter() + len(x) * 1e-6
    while time.perf_counter() < until:
        pass
    return x


@udf.hookimpl
def udf_functions():  # type: ignore[no-untyped-def] # a plugin's file need not be typed
    return [paid, paid_calls, computed]
