"""Functions of the suite of the fleet. They write when they were called to a file, if the environment names one."""

import asyncio
import os
import random
import time
from pathlib import Path

import udf_server as udf

LOOKUP_SECONDS = 0.01
WAIT_SECONDS = 0.02
PRICES = (0.0005, 0.001, 0.001, 0.0015)
"""What calls of `priced` cost, in turn."""
_PATH = os.environ.get("FLEET_TIMES")
_FILE = Path(f"{_PATH}.{os.getpid()}").open("w", buffering=1) if _PATH else None  # noqa: SIM115 - it stays open


@udf.scalar(timeout="10 min")
async def lookup(x: int) -> int:
    """A look-up of ten milliseconds."""
    await asyncio.sleep(LOOKUP_SECONDS)
    return x


@udf.scalar(timeout="10 min")
def waiting(x: int) -> int:
    """A look-up that blocks its thread."""
    time.sleep(WAIT_SECONDS)
    return x


@udf.scalar(timeout="10 min", deterministic=False)
def timed(x: int) -> list[float]:
    """When the call began and ended. It waits and blocks its thread, for a time that differs, as real ones do."""
    began = time.monotonic()
    time.sleep(WAIT_SECONDS * random.uniform(0.5, 1.5))
    return [began, time.monotonic()]


@udf.scalar(timeout="10 min")
async def limited(x: int) -> int:
    """A call that the service behind it counts."""
    if _FILE is not None:
        _FILE.write(f"{time.monotonic()}\n")
    return x


@udf.scalar(timeout="10 min")
async def counted(x: int) -> int:
    """A look-up that the service behind it counts while it runs."""
    began = time.monotonic()
    await asyncio.sleep(LOOKUP_SECONDS)
    if _FILE is not None:
        _FILE.write(f"{began} {time.monotonic()}\n")
    return x


@udf.scalar(timeout="10 min")
async def priced(x: int, context: udf.CallContext) -> int:
    """A look-up that costs money, more or less."""
    await asyncio.sleep(LOOKUP_SECONDS)
    amount = PRICES[x % len(PRICES)]
    context.spend(usd=amount)
    if _FILE is not None:
        _FILE.write(f"{amount}\n")
    return x


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of the suite."""
    return [lookup, waiting, timed, limited, counted, priced]
