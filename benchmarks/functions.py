"""The measured functions. The server loads this plugin by its file name."""

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
    """Simulates the same request, but one row in a hundred takes half a second."""
    await asyncio.sleep(STRAGGLER_SECONDS if x % 100 == 50 else LOOKUP_SECONDS)
    return x


@udf.scalar(timeout="10 min")
def stuck(x: int) -> int:
    """Blocks for longer than any timeout."""
    time.sleep(600)
    return x


@udf.scalar
async def async_identity(x: int) -> int:
    """Does nothing, in a call per row on the event loop."""
    return x


@udf.scalar
def sync_identity(x: int) -> int:
    """Does nothing, in a call per row on a thread."""
    return x


@udf.scalar(vectorized=True)
def convert(x: pa.Int64Array) -> pa.Int64Array:
    """Converts values to Python objects and back: what a row-wise function costs without its calls."""
    return pa.array(x.to_pylist(), pa.int64())


@udf.scalar(vectorized=True)
def first_of_two(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    """Takes two columns and returns one unchanged, which measures the cost of the transport."""
    return a
