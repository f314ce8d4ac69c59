"""Our side of the comparison with peers: a plugin with the functions of `flight_server`, loaded by its file name."""

import asyncio
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf

POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])


@dataclass
class Point:
    x: float
    y: float


@udf.scalar
def add_row(a: int, b: int) -> int:
    return a + b


@udf.scalar
async def add_async(a: int, b: int) -> int:
    return a + b


@udf.scalar(vectorized=True)
def add_batch(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    return pc.add(a, b)


@udf.scalar
def gcd_row(a: int, b: int) -> int:
    return math.gcd(a, b)


@udf.scalar
async def gcd_async(a: int, b: int) -> int:
    return math.gcd(a, b)


@udf.scalar(vectorized=True)
def gcd_batch(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    return pa.array(np.gcd(a.to_numpy(), b.to_numpy()))


@udf.scalar
def upper_row(text: str) -> str:
    return text.upper()


@udf.scalar(vectorized=True)
def upper_batch(text: pa.StringArray) -> pa.StringArray:
    return pc.utf8_upper(text)


@udf.scalar
def swap_row(point: Point) -> Point:
    return Point(point.y, point.x)


@udf.scalar(vectorized=True)
def swap_batch(point: Annotated[pa.StructArray, POINT]) -> Annotated[pa.StructArray, POINT]:
    x, y = point.flatten()
    return pa.StructArray.from_arrays([y, x], ["x", "y"])


@udf.scalar
async def look_up(x: int) -> int:
    """Simulates a request to a service that takes 10 ms."""
    await asyncio.sleep(0.01)
    return x
