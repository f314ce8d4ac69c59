"""What the commands of `udf-server` show: functions, the outcome of a call, the health of a server, its cache."""

import base64
import contextlib
import inspect
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from remote_udf.outcomes import RowError
from remote_udf.segments import AppliedField
from udf_server.aggregate.base import BundledKeySegment
from udf_server.aggregate.declaration import Aggregate
from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import Store, StoreError
from udf_server.declaring.functions import Function
from udf_server.hosting.function_options import Configured, explained
from udf_server.hosting.registry import Registry
from udf_server.page.catalogue import facts_of
from udf_server.page.texts import argument_columns
from udf_server.serving.config import ServerConfig
from udf_server.stores.file import FileStore
from udf_server.stores.opening import store_from_url
from udf_server.testing import FunctionEnvironment

__all__ = [
    "cleared_cache", "described", "evaluate", "exported_cache", "health_url", "is_well", "listed", "options_shown",
    "shown_of", "stats_of_cache",
]  # fmt: skip

LEAST_SIGNATURE = LEAST_DESCRIPTION = 24
"""Characters of signatures and descriptions that are shown on any terminal."""
WIDEST_SIGNATURE = 64
"""Without a width, signatures that are longer move the rest of their own line only."""


def listed(functions: Sequence[Mapping[str, str]], width: int | None = None) -> str:
    """A line per function: signature, version, plugin, first line of the description; group and owner if any has one.

    If lines would be longer than `width`, signatures and descriptions are cut. Without a width nothing is.
    """
    columns = [
        each for each in ("signature", "version", "group", "plugin", "owner")
        if each not in ("group", "owner") or any(facts.get(each) for facts in functions)
    ]  # fmt: skip
    rows = [
        [*(facts.get(column, "") for column in columns), facts["description"].partition("\n")[0]] for facts in functions
    ]
    rows.insert(0, ["FUNCTION", *(column.upper() for column in columns[1:]), ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    if width is None:
        widths[0] = min(widths[0], WIDEST_SIGNATURE)
        return "\n".join("  ".join((*map(str.ljust, row, widths), row[-1])).rstrip() for row in rows)
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths) - LEAST_DESCRIPTION, LEAST_SIGNATURE))
    return "\n".join(_fitted("  ".join((*map(_fitted, row, widths), row[-1])), width).rstrip() for row in rows)


def shown_of(registry: Registry) -> list[dict[str, str]]:
    """What a list has of each function, for people and programs."""
    return [
        {
            "name": spec.name, "version": spec.version, "kind": spec.kind, "signature": spec.signature,
            "plugin": registry.plugins[spec.key], "owner": spec.owner, "description": spec.description,
        }
        for spec in (function.spec for function in registry)
    ]  # fmt: skip


def options_shown(function: Function, settings: Configured) -> str:
    """Each option of a function on a server with these settings: its value, and where the value comes from."""
    shown = ((name, value or "not set", source) for name, value, source in explained(function, settings))
    rows = [("OPTION", "VALUE", "FROM"), *shown]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = ["  ".join((*map(str.ljust, row, widths), row[-1])) for row in rows]
    return "\n".join((function.spec.signature, "", *lines))


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 3]}..."


def described(function: Function, plugin: str) -> str:
    """Everything about one function."""
    spec = function.spec
    facts = {"version": spec.version, **facts_of(spec, plugin, {"defined in": function.origin})}
    lines = [spec.signature, "", *(f"{name + ':':15}{value}" for name, value in facts.items())]
    if spec.description:
        lines += ["", inspect.cleandoc(spec.description)]
    return "\n".join(lines)


async def evaluate(function: Function, arguments: Sequence[str]) -> tuple[Any, RowError | None]:
    """The outcome of one call; of an aggregate function, over one row. Arguments are as in `argument_columns`.

    Raises StreamError ARGUMENT_COUNT or ARGUMENT_TYPE.
    """
    columns = argument_columns(function, arguments)
    async with FunctionEnvironment() as environment:
        if isinstance(function, Aggregate):
            row = tuple(column.to_pylist(maps_as_pydicts="strict")[0] for column in columns)
            segment = BundledKeySegment((), [row])
            applied = await environment.apply(function, [segment], applied=[AppliedField.FINAL_VALUE])
            value = applied.applied[0]
            return value and value.final_value, applied.errors.get(0)
        result = await environment.run(function, *columns, rows=1)
    return result.values.to_pylist(maps_as_pydicts="strict")[0], result.errors.get(0)


WAIT_SECONDS = 3.0
"""Timeout of the request. It is well below the timeouts that orchestrators use for health checks."""


def health_url(config: ServerConfig, *, alive: bool = False) -> str:
    """The URL of the readiness check, or with `alive` of the liveness check. Raises InvalidConfig for port 0."""
    if config.metrics_port == 0:
        raise InvalidConfig("setting 'metrics_port': 0 picks a free port, which only the server itself knows")
    host = config.metrics_host
    try:
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    except ValueError:
        pass  # the host is a name
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{config.metrics_port}/{'livez' if alive else 'readyz'}"


def is_well(url: str) -> tuple[bool, str]:
    """Whether the check succeeds, and a message. It does not raise: if there is no answer, the check fails."""
    # No proxy is used, because the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=WAIT_SECONDS) as answer:
            return True, f"{url}: {answer.read(80).decode(errors='replace').strip()}"
    except urllib.error.HTTPError as error:
        with error:
            return False, f"{url}: {error.code} {error.reason}"
    except OSError as error:
        return False, f"{url}: {getattr(error, 'reason', error)}"


async def stats_of_cache(config: ServerConfig) -> str:
    """A line for each function: its entries in the cache of these settings, and their bytes."""
    async with _cache(config) as store:
        found = await store.stats()
    lines = [f"{each.function}: {each.entries:,} entries, {each.bytes:,} bytes" for each in found]
    return "\n".join(lines) or "the cache is empty"


async def cleared_cache(config: ServerConfig, function: str | None) -> int:
    """Remove the entries of a function, such as "classify@1", or all. Returns their number."""
    async with _cache(config) as store:
        return await store.clear(function)


async def exported_cache(config: ServerConfig) -> AsyncIterator[str]:
    """A line of JSON for each entry: function, key (hexadecimal) and entry (base64)."""
    async with _cache(config) as store:
        async for function, key, entry in store.export():
            line = {"function": function, "key": key.hex(), "entry": base64.b64encode(entry).decode()}
            yield json.dumps(line)


@contextlib.asynccontextmanager
async def _cache(config: ServerConfig) -> AsyncIterator[Store]:
    if config.cache_url.startswith("memory:"):
        raise InvalidConfig(
            "setting 'cache_url' is memory: such a cache is in the server's process only and ends with it; its metrics "
            "begin with udf_cache_"
        )
    store = store_from_url(config.cache_url, config.cache_max_bytes)
    if isinstance(store, FileStore) and not store.path.exists():
        raise InvalidConfig(
            f"setting 'cache_url': there is no cache at {store.path}; a server creates it when it starts"
        )
    await store.open()
    try:
        yield store
    except StoreError as error:
        raise InvalidConfig(f"the store of the setting 'cache_url' fails: {error}") from None
    finally:
        await store.close()
