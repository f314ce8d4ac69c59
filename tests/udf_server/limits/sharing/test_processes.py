"""Guards over real processes: the workers of one server, and servers that share a Redis, one of which is killed."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.stream import channels
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.redis_process import RedisProcess, with_redis
from tests.waiting import wait_until
from udf_server.limits.sharing.account import BUSY_SECONDS
from udf_server.limits.sharing.ledger import LEASE_SECONDS

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio
import os
import time
import udf_server as udf

@udf.scalar(timeout="120 s", buffer_capacity=20)
async def held(milliseconds: int) -> str:
    began = time.monotonic()
    await asyncio.sleep(milliseconds / 1000)
    return f"{os.getpid()} {began} {time.monotonic()}"
"""
NUMBERS = itertools.count()


@contextlib.contextmanager
def server(plugin, *flags, guard="max-concurrency = 2", environment=None):
    settings = Path(f"{plugin}.toml")
    settings.write_text(f"[guards.held]\n{guard}\n")
    command = [sys.executable, "-m", "udf_server", "serve", "--config", str(settings), "--plugin", plugin]
    command += ["--no-entry-points", "--port", "0", "--metrics-port", "0", "--drain-seconds", "2", *flags]
    log = Path(f"{plugin}.{next(NUMBERS)}.log")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **(environment or {})}
        )
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, json.loads(line), log
    finally:
        process.kill()
        process.communicate()


def intervals(target, rows, **options):
    """Calls `held` over a connection of its own. Returns the process of each call, when it began and when it ended."""
    name = f"T{next(NUMBERS)}"
    os.environ[name] = "t"
    config = ClientConfig(target, 20.0, Security(token_variable=name))
    spec = list_functions(config).find("held")
    stream = stream_of(call_of(type("Held", (), {"spec": spec}), target, **options), GrpcTransport(config))
    stream.submit(chunk_of(rows))
    texts = list(everything(stream).values())
    stream.finish()
    return [(int(pid), float(began), float(ended)) for pid, began, ended in map(str.split, texts)]


def in_parallel(targets, rows):
    found, threads = [], []
    for target in targets:
        threads.append(threading.Thread(target=lambda target=target: found.extend(intervals(target, rows))))
        threads[-1].start()
    for thread in threads:
        thread.join(100)
    return found


def most_at_once(calls):
    return max(sum(1 for _, other, end in calls if other <= began < end) for _, began, _ in calls)


@pytest.fixture(autouse=True)
def _a_connection_for_each_channel(monkeypatch):
    options = (*channels.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)


def test_worker_processes_share_the_guards_of_their_server(plugin):
    with server(plugin(PLUGIN), "--processes", "2") as (process, ready, log):
        # The kernel chooses a process for each connection: of 12, one process had all in 1 of 2,048 runs.
        calls = in_parallel([ready["target"]] * 24, [10] * 4)
        assert len(calls) == 96
        assert {pid for pid, _, _ in calls} == set(ready["processes"])
        assert most_at_once(calls) <= 2
        assert "limits apply per server" in log.read_text()
        process.terminate()
        assert process.wait(30) == 0


@with_redis
@pytest.mark.long
def test_a_server_that_is_killed_loses_what_it_has_leased(plugin):
    redis, path = RedisProcess().start(), plugin(PLUGIN)
    environment = {"UDF_CONFIG_COORDINATION_URL": redis.url}
    try:
        with (
            server(path, environment=environment) as (victim, dead, _),
            server(path, environment=environment) as (_, alive, log),
        ):
            holding = threading.Thread(target=_ignored, args=(dead["target"], [600_000] * 2), daemon=True)
            holding.start()
            # A Redis that is empty gives no permits at first: it may have lost those of servers that run.
            wait_until(lambda: 'udf_concurrency_limit{function="held",version="1"} 2.0' in _metrics(dead))
            time.sleep(1.0)
            killed = []

            def kill():
                killed.append(time.monotonic())
                os.kill(victim.pid, signal.SIGKILL)

            threading.Timer(1.5, kill).start()
            calls = in_parallel([alive["target"]], [10] * 5)
            assert len(calls) == 5
            # Nothing was called while the other server had all permits, nor until its lease ended.
            assert min(began for _, began, _ in calls) - killed[0] > LEASE_SECONDS - 2 * BUSY_SECONDS - 0.1
            assert "pa55" not in log.read_text()
            holding.join(60)  # a thread of this test must not use the random numbers of another one
            assert not holding.is_alive()
    finally:
        redis.stop()


def _metrics(ready):
    with urllib.request.urlopen(ready["metrics"] + "/metrics", timeout=20) as answer:
        return answer.read().decode()


def _ignored(target, rows):
    with contextlib.suppress(Exception):
        intervals(target, rows, timeout="30 s")
