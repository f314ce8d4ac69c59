"""The part of a server's limits that each worker process gets, so that the settings hold for the whole server."""

import dataclasses

from udf_server.security.callers import CallerSettings
from udf_server.serving.config import AT_LEAST, ServerConfig, settings

__all__ = ["divided_settings", "part_of"]

CALLER_LIMITS = ("max_streams", "max_rows_in_flight")


def divided_settings() -> list[str]:
    """The names of the settings that are divided among the worker processes of a server."""
    return [setting.name for setting in settings() if setting.metadata["divided"]]


def part_of(config: ServerConfig, processes: int) -> ServerConfig:
    """The settings of one of this many worker processes. No limit is less than its minimum.

    The limits of callers are divided too. A cache in a file is not divided, because the processes share it.
    """
    shared = () if config.cache_url == "memory:" else ("cache_max_bytes",)
    limits = {
        name: max(getattr(config, name) // processes, AT_LEAST[name])
        for name in divided_settings()
        if name not in shared
    }
    callers = {name: _part_of_caller(caller, processes) for name, caller in config.callers.items()}
    return dataclasses.replace(config, callers=callers, **limits)


def _part_of_caller(caller: CallerSettings, processes: int) -> CallerSettings:
    limits = {name: getattr(caller, name) for name in CALLER_LIMITS}
    parts = {name: max(limit // processes, 1) for name, limit in limits.items() if limit is not None}
    return dataclasses.replace(caller, **parts)
