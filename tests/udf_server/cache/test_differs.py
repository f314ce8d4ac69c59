"""Two servers of one target with different caches: the second one warns."""

import asyncio
import contextlib
import logging
import time

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.threads import THREADS
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.endpoints import Endpoints
from spark_client.executor.stream.seen_caches import MOST_FUNCTIONS, SeenCaches
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import GrpcTransport
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import running_server


@udf.scalar(cache_ttl="1 h")
async def f(a: int) -> int:
    return a


def opened_on_each(targets, **options):
    """Open two streams, on one server after the other, as a task of Spark may."""
    config, caches = ClientConfig("both"), SeenCaches()
    endpoints = Endpoints("both", resolve=lambda _: [(target, "") for target in targets])
    schema = pa.schema([("a", pa.int64())])
    avoid = set()
    for _ in range(2 * len(targets)):
        if len(avoid) == len(targets):
            avoid = set()
        call = ScalarCall(f.spec, 1, options, "call", config)
        transport = GrpcTransport(config, endpoints=endpoints)
        connection = Connection(
            call, schema, TaskInfo(), transport, time.monotonic, avoid=avoid, threads=THREADS, caches=caches
        )
        connection.open(20)
        connection.close(cancel=True)
        avoid.add(connection.server)


@pytest.mark.parametrize(
    ("same", "options", "warnings"), [(False, {}, 2), (False, {"cache-ttl": "0 s"}, 0), (True, {}, 0)]
)
async def test_servers_with_different_caches_warn_once(same, options, warnings, tmp_path, caplog):
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for number in range(2):
            url = f"file://{tmp_path}/{0 if same else number}"
            config = ServerConfig(port=0, metrics_port=0, cache_url=url)
            servers.append(await stack.enter_async_context(running_server(config, Registry([("test", f)]))))
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(opened_on_each, [server.target for server in servers], **options)
        lines = [record for record in caplog.records if "has another cache" in record.message]
    assert len(lines) == warnings, "each of them follows the other"
    assert {record.function for record in lines} <= {"f@1"}


def test_a_server_that_was_restarted_is_not_another_one_and_functions_are_bounded():
    caches = SeenCaches()
    caches.note("t", "f@1", "a:1", "memory 1")
    assert caches.elsewhere("t", "f@1", "a:1") == ""
    assert caches.elsewhere("t", "f@1", "b:1") == "memory 1"
    assert caches.elsewhere("t", "g@1", "b:1") == caches.elsewhere("u", "f@1", "b:1") == ""
    for number in range(MOST_FUNCTIONS):
        caches.note("t", f"h{number}", "a:1", "x")
    assert caches.elsewhere("t", "f@1", "b:1") == ""
