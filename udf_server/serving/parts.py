"""The part of a server's limits that each worker process gets, so that the settings hold for the whole server."""

from udf_server.serving.config import AT_LEAST, ServerConfig, settings

__all__ = ["divided_settings", "parts"]


def divided_settings() -> list[str]:
    """The names of the settings that are divided among the worker processes of a server."""
    return [setting.name for setting in settings() if setting.metadata["divided"]]


def parts(config: ServerConfig, processes: int) -> dict[str, int]:
    """The divided settings of one of this many worker processes, none of them less than its minimum.

    A cache in a file is not divided, because the processes share it.
    """
    shared = () if config.cache_url == "memory:" else ("cache_max_bytes",)
    return {
        name: max(getattr(config, name) // processes, AT_LEAST[name])
        for name in divided_settings()
        if name not in shared
    }
