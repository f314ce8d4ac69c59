"""The functions that chaos calls: a plugin, loaded by file name."""

import asyncio
import os

import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf

LEAK = []
"""What `leaking` never gives back."""


@udf.scalar(vectorized=True, timeout="2 min")
def fast(x: pa.Int64Array) -> pa.Int64Array:
    """For many rows."""
    return pc.add(pc.multiply(x, 3), 1)


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def slow(x: int) -> int:
    """For rows that wait, as most do."""
    await asyncio.sleep(0.01)
    return x * 3 + 1


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def slower(x: int) -> int:
    """For a job that lasts until somebody has come to end it."""
    await asyncio.sleep(0.05)
    return x * 3 + 1


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def straggling(x: int, context: udf.CallContext) -> int:
    """As on a sick machine: the first attempt of one task takes ten times as long."""
    stream = context.stream
    await asyncio.sleep(0.1 if stream.partition == 0 and stream.task_attempt == 0 else 0.01)
    return x * 3 + 1


@udf.scalar(vectorized=True, timeout="2 min")
def leaking(x: pa.Int64Array) -> pa.Int64Array:
    """Takes memory that it does not give back."""
    LEAK.append(os.urandom(400 * len(x)))
    return pc.add(pc.multiply(x, 3), 1)


@udf.scalar(timeout="2 min")
def half_bad(x: int) -> int:
    """Fails for odd numbers."""
    if x % 2:
        raise ValueError("odd " + "x" * 200)
    return x * 3 + 1


@udf.scalar(name="slow", version="2", timeout="2 min") if os.environ.get("CHAOS_VERSION") == "2" else (lambda f: None)
async def slow_2(x: int) -> int:
    """A later version, which jobs that were planned before must not get."""
    return -x
