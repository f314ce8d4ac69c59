"""Fixtures that the tests of the server share."""

import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import redis

from tests.udf_server.lying_redis import LyingRedis
from tests.udf_server.redis_process import WITH_REDIS, RedisProcess
from tests.udf_server.secured import Pki
from udf_server.streams.service import SERVICE_NAME
from udf_server.testing import FunctionEnvironment


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[FunctionEnvironment]:
    """Runs functions without a server; closed at the end of the test."""
    async with FunctionEnvironment() as environment:
        yield environment


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file of settings."""

    def write(text: str) -> Path:
        path = tmp_path / "server.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def lying() -> Iterator[LyingRedis]:
    """A Redis that answers what a test tells it to answer."""
    redis = LyingRedis()
    yield redis
    redis.close()


@pytest.fixture
def redis_process() -> Iterator[RedisProcess]:
    """A Redis that the test may stop and start."""
    process = RedisProcess().start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def running_redis() -> Iterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.stop()


@pytest.fixture
def module_redis(running_redis: RedisProcess) -> RedisProcess:
    """A Redis that the tests of a file share, with nothing but a key of another program."""
    with redis.Redis.from_url(running_redis.url) as client:
        client.flushall()
        client.set("another-program", "1")
    return running_redis


@pytest.fixture(params=["memory", "file", pytest.param("redis", marks=WITH_REDIS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A `cache_url` of each kind."""
    if request.param == "redis":
        return str(request.getfixturevalue("module_redis").url)
    return "memory:" if request.param == "memory" else f"file://{tmp_path}/kept"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """An authority with certificates in files."""
    return Pki(tmp_path)


@pytest.fixture
def access(tmp_path: Path) -> Callable[[str], str]:
    """Writes the access file."""

    def write(text: str) -> str:
        path = tmp_path / "access.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes the file of a client's token."""

    def write(token: str) -> str:
        path = tmp_path / "token"
        path.write_text(token + "\n")
        return str(path)

    return write


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """Opens a stream whose client sends these messages and then nothing until the test ends. Returns its answers."""
    end = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(end.set)

        def open_stream(target: str, *messages: bytes) -> Any:
            channel = stack.enter_context(
                grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
            )

            def requests() -> Iterator[bytes]:
                yield from messages
                end.wait()

            # The call is kept, because gRPC cancels a call without references.
            calls.append(channel.stream_stream(f"/{SERVICE_NAME}/Execute")(requests()))
            return calls[-1]

        calls: list[Any] = []
        yield open_stream
