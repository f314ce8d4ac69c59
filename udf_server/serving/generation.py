"""One generation of a server whose plugins are edited: a process that serves the code of the moment of its start."""

import asyncio
import json
import os
import socket
import traceback
from collections.abc import Mapping
from typing import Any

import uvloop

from remote_udf.errors import RemoteUdfError
from udf_server.plugins.loading import report_of
from udf_server.plugins.sources import Sources
from udf_server.serving.config import ServerConfig
from udf_server.serving.membership import registry_of
from udf_server.serving.process_setup import tune_process
from udf_server.serving.server import Server
from udf_server.streams.entrance import Edits

__all__ = ["Messages", "serve_generation"]

READ_BYTES = 1 << 16


class Messages:
    """One end of a pair of sockets: JSON objects, one a line."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._unread = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. One whose reader has ended is lost."""
        try:
            self.end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self) -> list[dict[str, Any]] | None:
        """What has come, waiting for at least a part of a message; None at the end."""
        try:
            data = self.end.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


def serve_generation(config: ServerConfig, end: socket.socket, listening: socket.socket) -> int:
    """Import the plugins, serve until the parent replaces or stops this process, and return its exit status.

    The parent is told that the server is ready, or why it is not, and asked to replace this process after an edit.

    Args:
        config: The settings, with the address of this generation.
        end: The end of a pair of sockets whose other end the parent has.
        listening: The socket of the HTTP server, which all generations share.
    """
    parent = Messages(end)
    try:
        sources = Sources(watched=True)
        registry = registry_of(config, sources)
        link = _Link(parent)
        edits = Edits(sources, link.replace)
        server = Server(config, registry, share_port=not config.unix_socket, edits=edits, listening=listening)
        tune_process()
        uvloop.run(_serve(server, link, edits))
    except Exception as error:
        known = isinstance(error, RemoteUdfError)
        parent.send({"failed": report_of(error) if known else f"the server failed:\n{traceback.format_exc()}"})
        return 1
    return 0


async def _serve(server: Server, link: "_Link", edits: Edits) -> None:
    await server.start()
    loop = asyncio.get_running_loop()
    loop.add_reader(link.parent.end, link.receive)
    functions = [function.spec.key for function in server.registry]
    link.parent.send({"ready": {"target": server.target, "metrics": server.metrics_url, "functions": functions}})

    async def ended_after_replacement() -> None:
        await link.replaced.wait()
        edits.replaced()
        await server.give_way()

    ends = {loop.create_task(link.stopped.wait()), loop.create_task(ended_after_replacement())}
    _, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await server.stop()
    loop.remove_reader(link.parent.end)


class _Link:
    """What the parent says. Use it on the event loop."""

    def __init__(self, parent: Messages) -> None:
        self.parent = parent
        self.replaced, self.stopped = asyncio.Event(), asyncio.Event()
        self._answer: asyncio.Future[str] | None = None

    async def replace(self) -> str:
        """Have the parent start a fresh process. Returns an empty text once that serves, or else why it does not."""
        self._answer = asyncio.get_running_loop().create_future()
        self.parent.send({"edited": os.getpid()})
        return await self._answer

    def receive(self) -> None:
        messages = self.parent.receive()
        if messages is None:  # the parent has ended
            messages = [{"stop": True}]
        for message in messages:
            if "replaced" in message:
                self.replaced.set()
            elif "stop" in message:
                self.stopped.set()
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(message.get("failed", ""))
