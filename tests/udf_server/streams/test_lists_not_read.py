"""Lists of functions that a client does not read: few exist at a time, and other callers are not affected."""

import asyncio
import struct
from pathlib import Path

import udf_server as udf
from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.functions.directory import list_functions
from tests.fuzz.http2 import Peer
from tests.udf_server.security.test_callers import callers
from tests.udf_server.talk import eventually
from udf_server.streams.service import LISTS_AT_ONCE

__all__ = ["callers"]

LIST = "/remote_udf.v1.UdfService/ListFunctions"


@udf.scalar
async def listed(x: int) -> int:
    return x


async def test_a_caller_that_reads_nothing_has_few_lists_and_holds_up_nobody_else(serve, callers):
    path, security = callers("etl", "adhoc")
    serving = await asyncio.to_thread(serve, listed, access_file=path)
    config = ClientConfig(serving.target, 10.0, security["adhoc"])
    token = await asyncio.to_thread(Path(security["etl"].token_file).read_text)
    port = int(serving.target.rpartition(":")[2])
    async with Peer(port, [("authorization", f"Bearer {token}")], window=0) as peer:
        streams = [peer.open(LIST) for _ in range(LISTS_AT_ONCE * 3)]
        for stream in streams:
            await peer.send(stream, struct.pack(">BI", 0, 0))
            peer.half_close(stream)
        await eventually(lambda: sum(stream.begun for stream in streams) >= LISTS_AT_ONCE)
        # The server has served these later calls, so it has seen all of those.
        found = await asyncio.to_thread(list_functions, config)
        assert found.find("listed").name == "listed"
        assert sum(stream.begun for stream in streams) == LISTS_AT_ONCE
        # Some callers leave, others read.
        peer.reset(streams[0])
        peer.reset(streams[-1])
        peer.widen(1 << 16)
        for stream in streams[1:-1]:
            assert await peer.wait(stream, 10)
            assert stream.status == "0"
            (message,) = stream.messages()
            assert service_pb2.ListFunctionsResponse.FromString(message).functions[0].name == "listed"
