"""What an operator sees of the cache: commands, settings, encryption."""

import asyncio
import base64
import json
import socket
import threading

import pytest
from click.testing import CliRunner

import udf_server as udf
from udf_server.base.errors import InvalidConfig
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.commands.cli import main
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.server import Server
from udf_server.stores.entries import sealing
from udf_server.stores.opening import store_from_url
from udf_server.testing import FunctionEnvironment

KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/cache"


async def labelled(url, rows, key=None):
    """Runs a function behind a cache. Returns how often it was called."""
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def label(a: int) -> str:
        called.append(a)
        return f"secret label {a}"

    sealed = sealing("KEY", {"KEY": key}) if key else None
    cache = OutcomeCache(store_from_url(url, 1 << 20), ServerMetrics(), sealing=sealed)
    await cache.open()
    async with FunctionEnvironment(cache=cache) as environment:
        result = await environment.run(label, rows, cache_timeout="10 s")
    assert result.to_pylist() == [f"secret label {row}" for row in rows]
    await cache.close()
    return len(called)


def run(*arguments):
    result = CliRunner().invoke(main, ["cache", *arguments])
    return result.exit_code, result.output


def test_commands_show_export_and_clear_entries(url):
    asyncio.run(labelled(url, [1, 2, 3]))
    code, text = run("stats", "--cache-url", url)
    assert code == 0 and text.startswith("label@1: 3 entries, ")
    lines = [json.loads(line) for line in run("export", "--cache-url", url)[1].splitlines()]
    assert {line["function"] for line in lines} == {"label@1"}
    assert all(b"secret label" in base64.b64decode(line["entry"]) for line in lines)
    assert run("clear", "--cache-url", url, "--function", "other@1") == (0, "0 entries removed\n")
    assert run("clear", "--cache-url", url, "--function", "label@1") == (0, "3 entries removed\n")
    assert run("stats", "--cache-url", url) == (0, "the cache is empty\n")


def test_commands_refuse_what_they_cannot_do(url):
    assert "in the server's process only" in run("stats")[1]
    assert "either --function or --all" in run("clear", "--cache-url", url)[1]
    assert "write the version too" in run("clear", "--cache-url", url, "--function", "label")[1]


@pytest.mark.parametrize("command", [("stats",), ("export",), ("clear", "--all")])
def test_commands_refuse_a_folder_without_a_cache_and_do_not_create_it(tmp_path, command):
    code, text = run(*command, "--cache-url", f"file://{tmp_path}/mistyped")
    assert code == 1 and f"there is no cache at {tmp_path}/mistyped/outcomes.sqlite3" in text
    assert not [*tmp_path.iterdir()]


def test_an_encrypted_cache_has_no_value_in_clear_and_hits(url, tmp_path):
    assert [asyncio.run(labelled(url, [1, 2], KEY)) for _ in range(2)] == [2, 0]
    written = b"".join(path.read_bytes() for path in (tmp_path / "cache").iterdir())
    assert b"secret label" not in written


def test_entries_of_another_key_or_in_clear_are_misses(url):
    other = base64.b64encode(b"x" * 32).decode()
    assert [asyncio.run(labelled(url, [1, 2], key)) for key in (None, KEY, other, other)] == [2, 2, 2, 0]
    assert asyncio.run(labelled(url, [1, 2])) == 2


def test_an_entry_of_another_row_does_not_decrypt():
    seal, unseal = sealing("KEY", {"KEY": KEY})
    assert unseal(seal(b"value", b"row 1"), b"row 1") == b"value"
    assert unseal(seal(b"value", b"row 1"), b"row 2") == b""
    assert unseal(b"", b"row 1") == b""


@pytest.mark.parametrize("key", ["", "c2hvcnQ=", "not base64 at all"])
def test_a_key_that_is_not_valid_is_refused_without_showing_it(key):
    with pytest.raises(InvalidConfig, match="UDF_KEY does not have 32 bytes") as refused:
        sealing("UDF_KEY", {"UDF_KEY": key})
    assert not key or key not in str(refused.value)


def test_the_table_cache_of_the_file_and_the_environment_are_the_same_settings(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('[cache]\nurl = "file:///tmp/x"\nmax_bytes = "20 GB"\nencryption_variable = "K"\n')
    config = load_config(file, {"UDF_CONFIG_CACHE_URL": "redis://:s3cret@cache/0"})
    assert (config.cache_url, config.cache_max_bytes) == ("redis://:s3cret@cache/0", 20 << 30)
    assert config.cache_encryption_variable == "K"
    assert "s3cret" not in repr(config)
    file.write_text('[cache]\nurll = "x"\n')
    with pytest.raises(InvalidConfig, match="did you mean 'cache_url'"):
        load_config(file)
    file.write_text('cache = "x"\n')
    with pytest.raises(InvalidConfig, match="not a table"):
        load_config(file)
    file.write_text('[cache]\nmax_bytes = "20 litres"\n')
    with pytest.raises(InvalidConfig, match="is not a size"):
        load_config(file)


async def test_a_store_that_was_cleared_has_no_entries_for_a_server_that_has_written_them(url):
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return a

    cache = OutcomeCache(store_from_url(url, 1 << 20), ServerMetrics())
    await cache.open()
    async with FunctionEnvironment(cache=cache) as environment:
        for calls in (1, 2):
            assert (await environment.run(f, [1], cache_timeout="20 s")).to_pylist() == [1]
            assert len(called) == calls
            async with asyncio.timeout(20):
                while not await cache.store.stats():  # noqa: ASYNC110 - an entry is written behind the answer
                    await asyncio.sleep(0.001)
            assert await cache.store.clear() == 1
    await cache.close()


async def test_a_server_that_cannot_listen_closes_its_cache(url):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = ServerConfig(port=taken.getsockname()[1], metrics_port=0, cache_url=url)
        with pytest.raises(InvalidConfig, match="cannot listen"):
            await Server(config, Registry([])).start()
    async with asyncio.timeout(10):
        while any(thread.name.startswith("udf-cache") for thread in threading.enumerate()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
