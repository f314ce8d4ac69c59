"""The lookups run against a real Redis server on this machine."""

import asyncio
import contextlib
import importlib.metadata
import logging
import secrets
import shutil
import socket
import subprocess
import time

import pytest
import redis

from remote_udf.errors import StreamError
from udf_redis import redis_get, redis_hash
from udf_redis.pipelining import RedisLookups
from udf_redis.settings import RedisSettings
from udf_server.testing import FunctionEnvironment

SECRET = "s3cr3t-pa55"

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server, a Debian package")


class RedisServer:
    """A server that requires a password and stores nothing on disk."""

    def __init__(self):
        # Below those that the kernel gives to whoever asks for any: it must stay free while the server is stopped.
        self.port = 0
        while not self.port:
            port = 20_000 + secrets.randbelow(10_000)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                self.port = port
        self.client = redis.Redis(port=self.port, password=SECRET)
        self.start()

    @property
    def url(self):
        return f"redis://:{SECRET}@127.0.0.1:{self.port}/0"

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--save", "", "--requirepass", SECRET]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(1000):
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture(scope="module")
def running():
    server = RedisServer()
    yield server
    server.client.close()
    server.stop()


@pytest.fixture
def server(running, monkeypatch):
    """Empties the server, and sets the variables of the plugin to its address."""
    running.client.flushall()
    monkeypatch.setenv("UDF_REDIS_URL", running.url)
    return running


async def run(function, keys, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, keys, **options)


async def test_strings_are_looked_up_and_what_is_not_there_is_null(server):
    server.client.mset({"a": "1", "b": "für", "": "empty"})
    result = await run(redis_get, ["a", "b", "absent", None, "", "a"])
    assert result.to_pylist() == ["1", "für", None, None, "empty", "1"]


async def test_hashes_are_maps(server):
    server.client.hset("h", mapping={"name": "lamp", "price": "9.50"})
    result = await run(redis_hash, ["h", "absent", "h"])
    lamp = [("name", "lamp"), ("price", "9.50")]
    assert result.values.to_pylist() == [lamp, None, lamp]


async def test_a_key_that_holds_something_else_is_an_error_of_its_row(server):
    server.client.rpush("list", "x")
    server.client.set("bytes", b"\xff\xfe")
    server.client.set("a", "1")
    result = await run(redis_get, ["a", "list", "bytes", "a"])
    assert result.values.to_pylist() == ["1", None, None, "1"]
    assert result.errors[1].message.startswith("LookupRefused: GET list: WRONGTYPE Operation against a key")
    assert result.errors[2].message.startswith("LookupRefused: GET bytes: the answer is not text in UTF-8")
    assert [error.attempts for error in result.errors.values()] == [1, 1]


async def test_keys_have_the_prefix(server, monkeypatch):
    server.client.set("app:a", "1")
    monkeypatch.setenv("UDF_REDIS_KEY_PREFIX", "app:")
    assert (await run(redis_get, ["a", "app:a"])).to_pylist() == ["1", None]


async def test_many_rows_travel_in_few_pipelines(server):
    keys = [f"k{number}" for number in range(5_000)]
    server.client.mset({key: f"v{key}" for key in keys})
    before = server.client.info("stats")["total_reads_processed"]
    result = await run(redis_get, keys)
    # A thousand rows are five pipelines, which the server may read in several chunks; a few commands are handshakes.
    assert server.client.info("stats")["total_reads_processed"] - before < 100
    assert result.to_pylist() == [f"vk{number}" for number in range(5_000)]


async def test_equal_keys_in_flight_are_asked_once(server):
    server.client.set("a", "1")
    server.client.config_resetstat()
    assert (await run(redis_get, ["a"] * 900)).to_pylist() == ["1"] * 900
    assert server.client.info("commandstats")["cmdstat_get"]["calls"] <= 10


async def test_a_pipeline_holds_no_more_than_allowed(server, monkeypatch):
    monkeypatch.setenv("UDF_REDIS_PIPELINE_ROWS", "7")
    monkeypatch.setenv("UDF_REDIS_CONNECTIONS", "2")
    server.client.mset({f"k{number}": str(number) for number in range(300)})
    result = await run(redis_get, [f"k{number}" for number in range(300)])
    assert result.to_pylist() == [str(number) for number in range(300)]
    assert len(server.client.client_list()) <= 1 + 2


async def test_a_server_that_is_not_there_is_worth_another_attempt_and_one_that_comes_back_answers(server):
    server.client.set("a", "1")
    lookups = RedisLookups(RedisSettings.from_environment())
    assert await lookups.get("a") == "1"
    server.stop()
    try:
        result = await run(redis_get, ["a"], max_attempts=2, initial_delay="1 ms", max_delay="1 ms")
        assert result.errors[0].attempts == 2
        assert "RetryableError: GET a: ConnectionError: " in result.errors[0].message
    finally:
        server.start()
    server.client.set("a", "2")
    # The first connection was lost with the previous server.
    found = [await asyncio.gather(lookups.get("a"), return_exceptions=True) for _ in range(3)]
    assert found[-1] == ["2"]
    await lookups.close()


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_allowed(server, monkeypatch):
    monkeypatch.setenv("UDF_REDIS_ATTEMPT_SECONDS", "0.05")
    server.client.client_pause(300)
    result = await run(redis_get, ["a"], max_attempts=1)
    assert "RetryableError: GET a: TimeoutError: " in result.errors[0].message
    server.client.client_unpause()


async def test_a_row_that_gives_up_costs_the_others_nothing(server):
    server.client.set("a", "1")
    lookups = RedisLookups(RedisSettings.from_environment())
    hasty, patient = asyncio.ensure_future(lookups.get("a")), asyncio.ensure_future(lookups.get("a"))
    await asyncio.sleep(0)
    hasty.cancel()
    assert await patient == "1"
    await lookups.close()
    await lookups.close()


async def test_a_wrong_password_is_refused_at_once_and_never_shown(server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = SECRET + "-not"
    monkeypatch.setenv("UDF_REDIS_URL", f"redis://127.0.0.1:{server.port}")
    monkeypatch.setenv("UDF_REDIS_PASSWORD", wrong)
    result = await run(redis_get, ["a"])
    assert result.errors[0].attempts == 1
    assert "LookupRefused: GET a: AuthenticationError: " in result.errors[0].message
    settings = RedisSettings.from_environment()
    lookups = RedisLookups(settings)
    shown = repr(settings) + repr(lookups) + caplog.text + result.errors[0].message + result.errors[0].traceback
    await lookups.close()
    assert SECRET not in shown
    assert f"at 127.0.0.1:{server.port}>" in shown


async def test_a_password_in_a_variable_of_its_own_is_used(server, monkeypatch):
    server.client.set("a", "1")
    monkeypatch.setenv("UDF_REDIS_URL", f"redis://127.0.0.1:{server.port}/0")
    monkeypatch.setenv("UDF_REDIS_PASSWORD", SECRET)
    assert (await run(redis_get, ["a"])).to_pylist() == ["1"]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("URL", "", "UDF_REDIS_URL is not set"),
        ("URL", f"http://:{SECRET}@x/", "UDF_REDIS_URL is not a redis, rediss or unix URL"),
        ("URL", f"redis://:{SECRET}@", "UDF_REDIS_URL is not a redis, rediss or unix URL"),
        ("URL", f"redis://:{SECRET}@x:port/", "UDF_REDIS_URL is not a URL"),
        ("URL", f"redis://:{SECRET}@x/cache", "UDF_REDIS_URL names a database that is not a number"),
        ("URL", f"redis://:{SECRET}@x/0?decode_responses=1", "UDF_REDIS_URL has options other than none"),
        ("URL", f"rediss://:{SECRET}@x/0?ssl_cert_reqs=none", "UDF_REDIS_URL has options other than ssl_ca_certs"),
        ("CONNECTIONS", "many", "UDF_REDIS_CONNECTIONS is not a whole number greater than zero"),
        ("PIPELINE_ROWS", "0", "UDF_REDIS_PIPELINE_ROWS is not a whole number greater than zero"),
        ("ATTEMPT_SECONDS", "nan", "UDF_REDIS_ATTEMPT_SECONDS is not a number greater than zero"),
    ],
)
async def test_a_wrong_setting_is_named_and_not_shown(server, monkeypatch, variable, value, message):
    monkeypatch.setenv(f"UDF_REDIS_{variable}", value)
    with pytest.raises(StreamError, match=message) as caught:
        await run(redis_get, ["x"])
    assert caught.value.code == "OPEN_FAILED"
    assert SECRET not in str(caught.value) + caught.value.traceback


def test_the_installed_package_is_a_plugin():
    (point,) = importlib.metadata.entry_points(group="udf_server", name="redis")
    assert [function.spec.name for function in point.load().udf_functions()] == ["redis_get", "redis_hash"]
