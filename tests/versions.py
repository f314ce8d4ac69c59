"""A function in two versions."""

import udf_server as udf

__all__ = ["feels_1", "feels_2"]


@udf.scalar(name="feels", version="1")
async def feels_1(x: int) -> int:
    return x + 1


@udf.scalar(name="feels", version="2")
async def feels_2(x: int) -> int:
    return x + 2
