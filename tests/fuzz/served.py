"""The functions that hostile clients call: a plugin that is loaded by file name."""

import asyncio
import time
from typing import Annotated

import pyarrow as pa

import udf_server as udf

TIMEOUT = "1 s"
LISTS = pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))


@udf.scalar(timeout="10 s")
async def quick(x: int) -> int:
    """For the neighbour, whose calls must be answered in time regardless of the attacks."""
    return x + 1


@udf.scalar(timeout=TIMEOUT)
async def longs(x: int) -> int:
    return x


@udf.scalar(timeout=TIMEOUT)
def texts(x: str) -> str:
    return x


@udf.scalar(vectorized=True, timeout=TIMEOUT)
def vectors(x: pa.Int64Array) -> pa.Int64Array:
    return x


@udf.scalar(parameters={"x": LISTS}, returns=pa.int64(), timeout=TIMEOUT)
async def lists(x):
    return None if x is None else len(x)


@udf.scalar(parameters={"x": pa.list_(pa.null())}, returns=pa.int64(), timeout=TIMEOUT)
def nothings(x):
    return None if x is None else len(x)


@udf.scalar(parameters={"x": pa.map_(pa.string(), pa.list_(pa.float64()))}, returns=pa.int64(), timeout=TIMEOUT)
def maps(x):
    return None if x is None else len(x)


@udf.scalar(timeout=TIMEOUT)
async def sleeping(x: int) -> int:
    """For rows that take some time."""
    await asyncio.sleep(0.3)
    return x


@udf.scalar(timeout=TIMEOUT)
def blocking(x: int) -> int:
    """For rows that block a thread."""
    time.sleep(0.01)
    return x


@udf.scalar(timeout=TIMEOUT)
def growing(x: int) -> str:
    return "x" * 20_000


@udf.scalar(timeout=TIMEOUT)
async def failing(x: int) -> int:
    raise ValueError("no " * 1_000)


class Totals(udf.AggregateFunction):
    options = {"timeout": TIMEOUT}  # noqa: RUF012

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator, x: int):
        accumulator[0] += x or 0

    def merge(self, accumulator, others):
        accumulator[0] += sum(other[0] or 0 for other in others)

    def get_value(self, accumulator) -> int:
        return accumulator[0]


class Counted(udf.ProcessTableFunction):
    """Accepts tables with any columns."""

    returns = "n bigint"
    options = {"timeout": TIMEOUT}  # noqa: RUF012

    def eval(self, ctx, seen: udf.ValueView[int], rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]):
        seen.set((seen.get() or 0) + 1)
        yield (seen.get(),)
