"""Shared fixtures of the tests of streams."""

import contextlib
from pathlib import Path

import pytest_asyncio

from remote_udf.sockets import socket_directory
from tests.udf_server.grouped import CANCELLED, STARTED, Groups
from tests.udf_server.talk import eventually


@pytest_asyncio.fixture
async def groups():
    """Starts the two processes, with settings."""
    STARTED.clear()
    CANCELLED.clear()
    async with contextlib.AsyncExitStack() as running:
        folder = running.enter_context(socket_directory("udf-"))

        async def start(**settings):
            made = Groups(Path(folder), **settings)
            for server in (made.geo, made.main):
                await server.start()
                running.push_async_callback(server.stop, 0.0)
            running.push_async_callback(eventually, lambda: not made.main.service.streams)
            return made

        yield start
