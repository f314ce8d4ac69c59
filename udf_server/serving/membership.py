"""Membership is what a worker process is in a server with groups; `config_of_group` says which plugins it loads."""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_udf.functions import FunctionSpec
from remote_udf.option_values import unknown
from udf_server.base.errors import FunctionClash, InvalidConfig
from udf_server.hosting.registry import Catalog, Registry, check_guards, check_weights
from udf_server.plugins.hookspecs import PROJECT
from udf_server.plugins.loading import build_plugin_manager, load_functions
from udf_server.plugins.sources import Sources
from udf_server.serving.config import ServerConfig
from udf_server.serving.groups import DEFAULT_GROUP
from udf_server.streams.routes import GroupFunction, name_of_route

__all__ = ["Membership", "check_clashes", "check_whole", "config_of_group", "registry_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Membership:
    """What a worker process is in a server with groups; the defaults, in one without."""

    group: str | None = None
    """The name of its group; None in a server without groups."""
    socket: Path | None = None
    """Where it listens, for the processes of the default group; None if it is of the default group itself."""
    routes: Path | None = None
    """The file with the functions of the other groups; None if it is not of the default group."""
    port: int | None = None
    """Where it listens for clients too; None if it does not, or is of the default group."""
    alone: bool = False
    """Whether no other process listens at its address."""

    @property
    def route(self) -> str:
        """What it is called at its port; empty for a process of the default group."""
        return "" if self.socket is None else name_of_route(self.socket)


def config_of_group(config: ServerConfig, name: str) -> ServerConfig:
    """The settings of the processes of a group: which plugins they load. The default group has what no other one has.

    Raises InvalidConfig if there is no such group.
    """
    if name == DEFAULT_GROUP:
        named = {plugin for group in config.groups.values() for plugin in group.plugins}
        installed = named & set(importlib.metadata.entry_points(group=PROJECT).names)
        block = (*config.block, *sorted(installed - {*config.block}))
        found = False if config.entry_points is None and config.groups else config.entry_points
        return dataclasses.replace(config, block=block, entry_points=found)
    if name not in config.groups:
        raise InvalidConfig(unknown("group", name, [DEFAULT_GROUP, *config.groups]))
    group = config.groups[name]
    asked = group.asked(name)
    # An environment has what was asked for: the plugins of its packages are found by their entry points.
    plugins, found = (group.plugins, False) if asked is None else (asked.files, True)
    return dataclasses.replace(config, plugin=plugins, block=(), entry_points=found, devices=())


def registry_of(config: ServerConfig, sources: Sources | None = None) -> Registry:
    """The functions of the plugins that these settings name. Raises PluginError."""
    manager = build_plugin_manager(config.plugin, config.block, entry_points=config.entry_points, sources=sources)
    return Registry(load_functions(manager))


def check_clashes(own: Sequence[FunctionSpec], elsewhere: Sequence[GroupFunction]) -> None:
    """Raise FunctionClash if the default group, or two of the others, have a function of one name and version."""
    groups = {spec.key: DEFAULT_GROUP for spec in own}
    for function in elsewhere:
        first = groups.setdefault(function.spec.key, function.group)
        if first != function.group:
            raise FunctionClash(
                f"function {function.spec.key!r} is in group {first!r} and in group {function.group!r}; rename one, "
                "give it another version, or remove its plugin from a group"
            )


def check_whole(
    config: ServerConfig, own: Sequence[FunctionSpec], elsewhere: Sequence[GroupFunction], *, lacking: Sequence[str]
) -> None:
    """Check what concerns the functions of all groups: those of the default group (`own`), and those of the others.

    Raises FunctionClash if two groups have a function of the same name and version. Raises InvalidConfig for a guard or
    a weight of an unknown function. While groups are lacking, each of them is a warning.
    """
    check_clashes(own, elsewhere)
    catalog = Catalog([*(GroupFunction(spec, DEFAULT_GROUP) for spec in own), *elsewhere])
    names = {"*", *(function.spec.name for function in catalog)}
    versions = {function.spec.key for function in catalog}
    weights = {key: weight for key, weight in config.weights.items() if key in versions or not lacking}
    guards = [name for name in config.guards if name in names or not lacking]
    idle = [f"functions.{name}" for name in config.functions if name not in names]
    idle += [f"guards.{name}" for name in config.guards if name not in guards]
    idle += [f"weights.{key}" for key in config.weights if key not in weights]
    for setting in idle:
        missing = {"missing_groups": lacking} if lacking else {}
        log.warning("a setting has no effect: there is no such function", extra={"setting": setting, **missing})
    check_weights(weights, catalog)
    check_guards(guards, catalog)
