"""Checks settings as a server does when it starts, and finds everything that it would refuse or warn of.

The messages are those of the start: the checks are its own functions, each called for one setting at a time.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from remote_udf.errors import RemoteUdfError
from remote_udf.function_names import split_name
from remote_udf.functions import FunctionKind, FunctionSpec
from udf_server.base.errors import InvalidConfig
from udf_server.declaring.functions import Function
from udf_server.hosting.function_options import EVERY, FunctionOptions, ignored_options
from udf_server.hosting.registry import Catalog, Registry, check_guards, check_weights
from udf_server.limits.limiter import Limiter
from udf_server.limits.sharing.claims import CoordinationFailed
from udf_server.limits.sharing.ledgers import ledgers_from_url
from udf_server.security.access import Access, access_rules
from udf_server.security.files import server_credentials
from udf_server.serving.config import ServerConfig, config_of, read_table
from udf_server.serving.devices import environment_of
from udf_server.serving.exposure import exposed
from udf_server.serving.groups import DEFAULT_GROUP
from udf_server.serving.interpreters import functions_of_groups
from udf_server.serving.membership import check_clashes, config_of_group, registry_of
from udf_server.serving.processes import Processes, warn_of_memory
from udf_server.serving.resources import worker_processes
from udf_server.serving.server import Server
from udf_server.stores.entries import sealing
from udf_server.stores.opening import KeyValueStores, store_from_url
from udf_server.streams.routes import GroupFunction

__all__ = ["Findings", "check_settings"]

log = logging.getLogger("udf_server")
Table = Mapping[str, object]


class Findings(logging.Handler):
    """What a server with these settings would refuse, and what it would warn of. It takes the warnings from the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.refused: list[str] = []
        self.warned: list[str] = []
        self.functions = 0
        """The number of functions that it would have."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note a warning, with its fields."""
        ours = vars(record).keys() - vars(logging.makeLogRecord({})).keys()
        fields = [f"{name}={value}" for name, value in vars(record).items() if name in ours]
        self.warn(f"{record.getMessage()}: {', '.join(fields)}" if fields else record.getMessage())

    def warn(self, text: str) -> None:
        """Note a warning, once."""
        if text not in self.warned:
            self.warned.append(text)

    def refuse(self, text: str) -> None:
        """Note why a server would not start, once."""
        if text not in self.refused:
            self.refused.append(text)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the block."""
        try:
            yield
        except RemoteUdfError as error:
            self.refuse(str(error))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take the warnings of the block."""
        before = log.propagate
        log.addHandler(self)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(self)
            log.propagate = before


def check_settings(file: Path | None, environment: Mapping[str, str], *, connect: bool = False) -> Findings:
    """Check the settings of a file and of the environment, the plugins that they name and the files that they name.

    With `connect`, each Redis is asked, too.
    """
    findings = Findings()
    with findings.listening(), findings.noted():
        config_with = functools.partial(config_of, file=file, environment=environment)
        config_with({})  # a wrong variable stops everything
        config = config_with(_valid({} if file is None else read_table(file), config_with, findings))
        _check_places(config, findings)
        _check_functions(config, findings)
        if connect:
            asyncio.run(_check_redis(config))
    return findings


def _valid(table: Table, accept: Callable[[Table], object], findings: Findings) -> Table:
    """The part of a table that is accepted. What is not accepted, alone and beside the rest, is noted."""
    kept: dict[str, object] = {}
    left, done = dict(table), False
    while not done:
        errors: dict[str, InvalidConfig] = {}
        for key, value in left.items():
            try:
                accept({**kept, key: value})
                kept[key] = value
            except InvalidConfig as refused:
                errors[key] = refused
        # What needs another key is tried again beside it.
        done = len(errors) in (0, len(left))
        left = {key: left[key] for key in errors}
    for key, error in errors.items():
        value = left[key]
        if not isinstance(value, dict) or not value:
            findings.refuse(str(error))
        elif inside := _valid(value, lambda part, key=key: accept({**kept, key: part}), findings):  # type: ignore[misc]
            kept[key] = inside
    return kept


def _check_places(config: ServerConfig, findings: Findings) -> None:
    """Check addresses, files and URLs."""
    for problem in exposed(config):
        findings.refuse(problem)
    warn_of_memory(config)
    checks: list[Callable[[], object]] = [
        functools.partial(Processes, config, worker_processes(config), []),
        functools.partial(store_from_url, config.cache_url, config.cache_max_bytes),
        *(functools.partial(environment_of, device, os.environ) for device in config.devices),
    ]
    if config.tls_certificate and config.tls_key:
        files = [Path(file) for file in (config.tls_certificate, config.tls_key, config.tls_client_ca) if file]
        checks.append(functools.partial(server_credentials, *files))
    if config.cache_encryption_variable:
        checks.append(functools.partial(sealing, config.cache_encryption_variable, os.environ))
    if config.coordination_url is not None:
        checks.append(functools.partial(ledgers_from_url, config.coordination_url, config.coordination_namespace))
    for check in checks:
        with findings.noted():
            check()
    with findings.noted():
        rules = access_rules(Path(config.access_file)) if config.access_file else None
        for name, caller in config.callers.items():
            with findings.noted():
                Access(rules, certificates=config.tls_client_ca is not None, settings={name: caller})


def _check_functions(config: ServerConfig, findings: Findings) -> None:
    """Check plugins, and what the settings say of functions."""
    registry = _loaded(config_of_group(config, DEFAULT_GROUP), findings)
    elsewhere: list[GroupFunction] = []
    for name, group in config.groups.items():
        with findings.noted():
            found = functions_of_groups(dataclasses.replace(config, groups={name: group}))
            elsewhere += [GroupFunction(_named(each), name) for each in found]
    catalog = Catalog[Function | GroupFunction]([*registry, *elsewhere])
    findings.functions = len(list(catalog))
    with findings.noted():
        check_clashes([function.spec for function in registry], elsewhere)
    _check_tables(config, registry, catalog, findings)
    if not findings.refused and not config.groups:
        with findings.noted():
            Server(config, registry)
    if not findings.functions:
        findings.warn("no function is served: install a plugin on this machine, or name one with 'plugin'")


def _check_tables(
    config: ServerConfig, registry: Registry, catalog: Catalog[Function | GroupFunction], findings: Findings
) -> None:
    """Check the tables of settings that name functions."""
    for name in config.guards:
        with findings.noted():
            check_guards([name], catalog)
    for name in dict.fromkeys(split_name(key)[0] for key in config.weights):
        with findings.noted():
            check_weights({key: share for key, share in config.weights.items() if split_name(key)[0] == name}, catalog)
    names = {function.spec.name for function in catalog}
    for ignored in ignored_options(registry, config.functions):
        name = ignored.setting.split(".")[1]
        # An option for all may be for functions of another group.
        if ignored.function or (name not in names and not (name == EVERY and config.groups)):
            findings.warn(f"a setting has no effect: {ignored}")
    for function in registry.configured(config.functions):
        with findings.noted():
            if function.durable_store and config.cache_url.startswith("memory:"):
                KeyValueStores().require_durable(function.spec.key)
            if (guard := config.guards.get(function.spec.name)) is not None:
                Limiter(function.spec.key, guard).costs.require(function)
            _ = FunctionOptions(function).merging


def _loaded(config: ServerConfig, findings: Findings) -> Registry:
    """The functions of the plugins that can be loaded."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return registry_of(config)
    except RemoteUdfError as error:
        findings.refuse(str(error))
    good = []
    for plugin in config.plugin:
        with findings.noted():
            registry_of(dataclasses.replace(config, plugin=(plugin,), entry_points=False))
            good.append(plugin)
    with findings.noted():
        return registry_of(dataclasses.replace(config, plugin=tuple(good), entry_points=config.entry_points or False))
    return Registry(())


def _named(facts: Mapping[str, str]) -> FunctionSpec:
    """A function of another group: its name and version, without types."""
    return FunctionSpec(facts["name"], facts["version"], FunctionKind(facts["kind"]), (), pa.null(), 0)


async def _check_redis(config: ServerConfig) -> None:
    """Warn of each Redis that does not answer. Raises InvalidConfig for what is no Redis."""
    store = store_from_url(config.cache_url, config.cache_max_bytes)
    if not config.cache_url.startswith("memory:"):
        await store.open()
        await store.close()
    if config.coordination_url is not None:
        ledgers = ledgers_from_url(config.coordination_url, config.coordination_namespace)
        try:
            await ledgers.check()
        except CoordinationFailed as error:
            log.warning("guards and budgets are not coordinated", extra={"why": str(error)})
        finally:
            await ledgers.close()
