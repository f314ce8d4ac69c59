"""A process waits for the loops of the functions that it closed before it exits."""

import asyncio
import subprocess
import sys
import threading

import pytest

from udf_server.hosting import loop_executor
from udf_server.hosting.loop_executor import LoopExecutor

WORKERS = 2_000
CANCELLED = f"""
import asyncio
import time

import udf_server as udf
from udf_server.testing import FunctionEnvironment

started, cleaned = [], []


@udf.scalar(buffer_capacity={WORKERS})
async def waits(x: int) -> int:
    started.append(x)
    try:
        await asyncio.Event().wait()
    finally:
        if x == 0:
            time.sleep(0.5)
        cleaned.append(x)


async def main():
    async with FunctionEnvironment() as environment:
        run = asyncio.create_task(environment.run(waits, list(range({WORKERS}))))
        while len(started) < {WORKERS}:
            await asyncio.sleep(0.01)
        run.cancel()
        await asyncio.wait([run])


asyncio.run(main())
print(len(cleaned))
"""


@pytest.mark.slow
def test_a_process_exits_after_the_cancelled_calls_have_cleaned_up():
    command = [sys.executable, "-c", CANCELLED]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{WORKERS}\n", "")


async def test_a_blocked_loop_is_given_up_without_blocking_the_loop_that_waits(monkeypatch):
    monkeypatch.setattr(loop_executor, "STOP_SECONDS", 0.05)
    executor, release = LoopExecutor("blocked"), threading.Event()
    executor.post(release.wait)
    executor.stop()
    waiting = asyncio.create_task(executor.ended())
    await asyncio.sleep(0)
    assert not waiting.done()  # this loop goes on
    await waiting
    release.set()
    monkeypatch.setattr(loop_executor, "STOP_SECONDS", 60)
    await asyncio.wait_for(executor.ended(), 10)
