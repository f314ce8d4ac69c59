"""Scalar functions: the identity of each type in three forms, and functions with defaults."""

from typing import Any

import udf_server as udf
from tests.differential.plugin.suffixes import SUFFIXES


def _identities() -> list[udf.Function]:
    found = []
    for type_, suffix in SUFFIXES.items():

        async def same(x):
            return x

        def vectorized(x):
            return x

        def synchronous(x):
            return x

        declared: dict[str, Any] = {"parameters": f"x {type_}", "returns": type_, "cost": lambda x: {"calls": 1}}
        found.append(udf.scalar(name=f"same_{suffix}", **declared)(same))
        found.append(udf.scalar(name=f"vsame_{suffix}", vectorized=True, **declared)(vectorized))
        found.append(udf.scalar(name=f"dsame_{suffix}", **declared)(synchronous))
    return found


@udf.scalar(nulls="skip", cost=lambda x, y=1: {"calls": 1})
async def plus(x: int, y: int = 1) -> int:
    return x + y


@udf.scalar
async def one(i: int = 1) -> int:
    return i


@udf.scalar(parameters="x bigint, y string", returns="struct<x:bigint,y:string>")
async def pair(x, y):
    return {"x": x, "y": y}


@udf.scalar(rows=True, parameters="n bigint, s string", returns="a bigint, b string")
async def rows_of(n, s):
    for a in range(0 if n is None else n % 3):
        yield {"a": a, "b": s} if a < 2 else None


@udf.scalar(nulls="skip", returns="struct<s:string,d:double>")
async def looked_up(n: int) -> dict | None:
    found = {0: ("a", 0.5), 1: ("b", None), 2: (None, 2.5)}.get(n)
    return found and dict(zip(("s", "d"), found, strict=True))


@udf.scalar(returns="struct<value:bigint,confidence:double>")
async def guess(x: int | None, level: float) -> dict | None:
    """Right from a confidence of `level` on; fails and returns nulls for some numbers."""
    digit = 8 if x is None else x % 10
    if digit == 7:
        raise ValueError("no guess")
    if digit == 8:
        return None
    return {"value": None if digit == 3 else x + (digit / 10 < level), "confidence": digit / 10}


@udf.scalar(nulls="skip")
async def know(x: int, level: float) -> int:
    """What `guess` guesses, with a mark."""
    return x + 1000


@udf.scalar(nulls="skip", returns="struct<value:bigint,confidence:double>")
async def know_as_struct(x: int, level: float) -> dict:
    return {"value": x + 1000, "confidence": -1.0}


FUNCTIONS = (*_identities(), plus, one, pair, rows_of, looked_up, guess, know, know_as_struct)
