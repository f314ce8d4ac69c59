"""Functions of the suite `batching`. All use one simulated device, which makes one call at a time."""

import asyncio
import threading
import time

import pyarrow as pa

import udf_server as udf

CALL_SECONDS, ROW_SECONDS = 0.02, 10e-6
BATCH_ROWS = 256
QUEUE_DELAY = 0.005
MESSAGE_ROWS = 8
SLOW_SECONDS, USUAL_SECONDS = 1.0, 0.01

_device = threading.Lock()
_seen: dict[int, int] = {}
_counts = {"calls": 0}


def _on_device(rows: int) -> None:
    with _device:
        time.sleep(CALL_SECONDS + rows * ROW_SECONDS)


@udf.scalar(vectorized=True)
def per_stream(x: pa.Int64Array) -> pa.Int64Array:
    """A model whose calls have rows of one stream."""
    _on_device(len(x))
    return x


@udf.scalar(vectorized=True, batch_rows=BATCH_ROWS, max_queue_delay=f"{QUEUE_DELAY * 1000:g} ms", instances=1)
def merged(x: pa.Int64Array) -> pa.Int64Array:
    """The same model, whose calls have rows of all streams."""
    _on_device(len(x))
    return x


async def _request(x: int) -> int:
    """One row of a hundred takes a second the first time."""
    _counts["calls"] += 1
    first = _seen.setdefault(x, 0) == 0
    _seen[x] += 1
    await asyncio.sleep(SLOW_SECONDS if first and x % 100 == 50 else USUAL_SECONDS)
    return x


@udf.scalar(buffer_capacity=50)
async def unhedged(x: int) -> int:
    return await _request(x)


@udf.scalar(buffer_capacity=50, idempotent=True, hedge_after="50 ms")
async def hedged(x: int) -> int:
    return await _request(x)


@udf.scalar(buffer_capacity=50, idempotent=True, hedge_after="50 ms", max_attempts=5, fixed_delay="10 ms")
async def overloaded(x: int) -> int:
    """A service that is slow and refuses every tenth request."""
    _counts["calls"] += 1
    _seen[x] = _seen.get(x, 0) + 1
    if x % 10 == 0 and _seen[x] == 1:
        raise udf.RetryableError("busy")
    await asyncio.sleep(0.1)
    return x


@udf.scalar
async def calls(x: int) -> int:
    """The number of requests in this process so far."""
    return _counts["calls"]


@udf.hookimpl
def udf_functions():  # type: ignore[no-untyped-def] # a plugin's file need not be typed
    return [per_stream, merged, unhedged, hedged, overloaded, calls]
