"""Budgets over real processes: the workers of one server, and servers that share a Redis."""

import dataclasses
import itertools
import os
import threading

import pytest

from spark_client.base.budget import SessionBudget
from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.stream import channels
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.limits.sharing.test_processes import server
from tests.udf_server.redis_process import RedisProcess, with_redis

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio
import os
import udf_server as udf

@udf.scalar(timeout="120 s", buffer_capacity=50)
async def held(x: int, context: udf.CallContext) -> int:
    await asyncio.sleep(0.005)
    context.spend(usd=0.01)
    return os.getpid()
"""
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _a_connection_for_each_channel(monkeypatch):
    options = (*channels.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)


def stream_outcomes(target, rows, budget):
    """Calls `held` over a connection of its own. Returns its outcomes and statistics."""
    name = f"B{next(NUMBERS)}"
    os.environ[name] = "t"
    config = ClientConfig(target, 20.0, Security(token_variable=name, allow_plaintext=True), budget=budget)
    spec = list_functions(config).find("held")
    call = dataclasses.replace(call_of(type("Held", (), {"spec": spec}), target), config=config)
    stream = stream_of(call, GrpcTransport(config))
    stream.submit(chunk_of(list(range(rows))))
    found = everything(stream)
    stream.finish()
    return list(found.values()), stream.statistics


def in_parallel(targets, rows, budget):
    found, threads = [], []
    for target in targets:
        threads.append(
            threading.Thread(target=lambda target=target: found.append(stream_outcomes(target, rows, budget)))
        )
        threads[-1].start()
    for thread in threads:
        thread.join(100)
    assert len(found) == len(targets)
    return found


def check(found, calls, processes):
    values = [value for outcomes, _ in found for value in outcomes if isinstance(value, int)]
    assert len(values) == calls
    assert set(values) <= processes
    assert len(set(values)) > 1
    refused = [value.code for outcomes, _ in found for value in outcomes if not isinstance(value, int)]
    assert set(refused) == {"BUDGET_SPENT"}


def test_worker_processes_share_the_budgets_of_jobs(plugin):
    with server(plugin(PLUGIN), "--processes", "2") as (_, ready, _):
        # The kernel chooses a process for each connection: of 8, one process had all in 1 of 128 runs.
        found = in_parallel([ready["target"]] * 24, 25, SessionBudget.of({"calls": 500}, "on-error"))
        check(found, 500, set(ready["processes"]))


@with_redis
def test_servers_with_a_redis_share_the_budgets_of_jobs(plugin):
    redis, path = RedisProcess().start(), plugin(PLUGIN)
    environment = {"UDF_CONFIG_COORDINATION_URL": redis.url}
    try:
        with server(path, environment=environment) as (_, one, _), server(path, environment=environment) as (_, two, _):
            targets, processes = [one["target"], two["target"]], {one["pid"], two["pid"]}
            check(in_parallel(targets * 4, 100, SessionBudget.of({"calls": 500}, "on-error")), 500, processes)
            found = in_parallel(targets * 4, 100, SessionBudget.of({"usd": 5}, "on-error"))
            # A stream whose rows were all refused has spent nothing.
            spent = sum(statistics.spent.get("usd", 0.0) for _, statistics in found)
            assert spent == pytest.approx(5.0, abs=0.02)  # each server may be wrong by a call
            check(found, round(spent / 0.01), processes)
            # Both servers are listed, and that is no reason to refuse a budget.
            both = ",".join(targets)
            stream_outcomes(both, 10, SessionBudget.of({"calls": 500}, "on-error"))
    finally:
        redis.stop()
