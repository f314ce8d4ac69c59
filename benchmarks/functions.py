"""The functions that are measured: a plugin, loaded by file name."""

import asyncio
import time

import pyarrow as pa

import udf_server as udf

LOOKUP_SECONDS = 0.01
STRAGGLER_SECONDS = 1.0
"""What one row in a hundred takes in `straggle`."""


@udf.scalar
async def look_up(x: int) -> int:
    """Simulates a request to a service that takes 10 ms."""
    await asyncio.sleep(LOOKUP_SECONDS)
    return x


@udf.scalar
async def straggle(x: int) -> int:
    """The same, but one row in a hundred takes half a second."""
    await asyncio.sleep(STRAGGLER_SECONDS if x % 100 == 50 else LOOKUP_SECONDS)
    return x


@udf.scalar(timeout="10 min")
def stuck(x: int) -> int:
    """Does not return within any timeout."""
    time.sleep(600)
    return x


@udf.scalar
async def async_identity(x: int) -> int:
    """A call per row that does nothing, on the event loop."""
    return x


@udf.scalar
def sync_identity(x: int) -> int:
    """A call per row that does nothing, on a thread."""
    return x


@udf.scalar(vectorized=True)
def convert(x: pa.Int64Array) -> pa.Int64Array:
    """Everything a row-wise function costs but its calls: values to Python objects and back."""
    return pa.array(x.to_pylist(), pa.int64())


@udf.scalar(vectorized=True)
def first_of_two(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    """Takes two columns and returns one unchanged, which shows the cost of the transport."""
    return a
