"""A server with a group in this process: a process at its address, one of the group, and a client of bytes."""

import asyncio

from grpc import aio

import udf_server as udf
from remote_udf.messages import read_response
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.membership import Membership
from udf_server.serving.server import Server
from udf_server.streams.routes import packed_specs, write_routes
from udf_server.streams.service import SERVICE_NAME

__all__ = ["CANCELLED", "STARTED", "Client", "Groups", "in_thread", "newer", "other", "own", "route_of", "waits"]

STARTED, CANCELLED = asyncio.Event(), asyncio.Event()


@udf.scalar
async def own(x: int) -> int:
    return x - 1


@udf.scalar
async def other(x: int) -> int:
    return x + 1


@udf.scalar(name="own", version="2")
async def newer(x: int) -> int:
    return x - 2


@udf.scalar(timeout="120 s")
async def waits(x: int) -> int:
    STARTED.set()
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        CANCELLED.set()
        raise
    return x


def route_of(functions, *sockets, port=0):
    packed = packed_specs(each.spec for each in functions)
    return {"sockets": list(map(str, sockets)), "functions": packed, **({"port": port} if port else {})}


class Groups:
    """A process at the main address, which has `own`, and one of the group `geo`, which has the others."""

    def __init__(self, folder, port=0, **settings):
        self.port = port
        self.socket, self.routes = folder / "geo-0", folder / "routes"
        self.config = ServerConfig(port=0, metrics_port=0, page=False, **settings)
        functions = (other, newer, waits)
        write_routes(self.routes, {"geo": route_of(functions, self.socket, port=port)})
        self.geo = self._server(functions, socket=self.socket, **({"port": port} if port else {}))
        self.main = self._server([own], routes=self.routes)

    def _server(self, functions, **where):
        membership = Membership("geo" if "socket" in where else "default", alone=True, **where)
        return Server(self.config, Registry([("test", each) for each in functions]), membership=membership)

    @property
    def target(self):
        return self.main.target


class Client:
    """A client that sends and reads bytes."""

    def __init__(self, target, **call):
        self._channel = aio.insecure_channel(target)
        self.call = self._channel.stream_stream(f"/{SERVICE_NAME}/Execute")(**call)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        await self._channel.close()

    async def send(self, *messages):
        for message in messages:
            await self.call.write(message)

    async def receive(self, kind):
        """The next message of this kind; others are passed over."""
        while (message := await self.call.read()) is not aio.EOF:
            envelope = read_response(message).envelope
            if envelope.WhichOneof("response") == kind:
                return getattr(envelope, kind)
        raise AssertionError(f"the stream has ended without {kind}: {await self.call.code()}")


async def in_thread(function, *arguments):
    return await asyncio.to_thread(function, *arguments)
