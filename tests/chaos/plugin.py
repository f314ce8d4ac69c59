"""The functions of the chaos tests: a plugin that is loaded by file name."""

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf

LEAK = []
"""Memory that `leaking` never releases."""


@udf.scalar(vectorized=True, timeout="2 min")
def fast(x: pa.Int64Array) -> pa.Int64Array:
    """For jobs with many rows."""
    return pc.add(pc.multiply(x, 3), 1)


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def slow(x: int) -> int:
    """For rows that wait, as most do."""
    await asyncio.sleep(0.01)
    return x * 3 + 1


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def slower(x: int) -> int:
    """For a job that lasts until it is stopped."""
    await asyncio.sleep(0.05)
    return x * 3 + 1


@udf.scalar(timeout="2 min", buffer_capacity=200)
async def straggling(x: int, context: udf.CallContext) -> int:
    """As on a degraded machine: the first attempt of one task takes ten times as long."""
    stream = context.stream
    await asyncio.sleep(0.1 if stream.partition == 0 and stream.task_attempt == 0 else 0.01)
    return x * 3 + 1


class Totals(udf.AggregateFunction):
    """Sum and count. Each key takes some time, so that bundles are in flight when a server is lost."""

    options = {"timeout": "2 min"}  # noqa: RUF012

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def accumulate(self, accumulator, x: int):
        accumulator[0] += x
        accumulator[1] += 1

    def merge(self, accumulator, others):
        time.sleep(0.0001)
        for other in others:
            accumulator[0] += other[0]
            accumulator[1] += other[1]

    def get_value(self, accumulator) -> int:
        return accumulator[0]


@dataclass
class Count:
    n: int = 0


class Numbered(udf.ProcessTableFunction):
    """Numbers the rows of a key; at the end of its input a timer emits their number."""

    returns = "n bigint, x bigint"

    def eval(
        self, ctx, count: Annotated[Count, udf.StateHint()],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        if not count.n:
            time.sleep(0.0001)
            ctx.register_on_time("end", 2**63 - 1)
        count.n += 1
        yield (count.n, rows["x"])

    def on_timer(self, ctx, count):
        yield (count.n, None)


class Running(udf.ProcessTableFunction):
    """Numbers the rows of a key."""

    returns = "n bigint, id bigint"

    def eval(
        self, ctx, count: Annotated[Count, udf.StateHint()],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        count.n += 1
        yield (count.n, rows["id"])


class Seen(udf.ProcessTableFunction):
    """The first row of a key within three seconds."""

    returns = "id bigint"

    def eval(
        self, ctx, seen: Annotated[udf.ValueView[int], udf.StateHint(ttl="3 s")],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        if seen.is_empty:
            seen.value = rows["id"]
            yield (rows["id"],)


@udf.scalar(vectorized=True, timeout="2 min")
def leaking(x: pa.Int64Array) -> pa.Int64Array:
    """Allocates memory and never releases it."""
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
    """A later version, which jobs that were planned before must not use."""
    return -x
