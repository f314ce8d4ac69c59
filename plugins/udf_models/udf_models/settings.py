"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from udf_server.settings import InvalidSetting, from_environment, setting

__all__ = ["InvalidSetting", "ModelsSettings"]


def _hosts(text: str) -> frozenset[str]:
    hosts = frozenset(host.strip().lower() for host in text.split(",") if host.strip())
    if not hosts or any("/" in host or " " in host for host in hosts):
        raise InvalidSetting("is not a list of host names with commas")
    return hosts


@dataclass(frozen=True)
class ModelsSettings:
    """The file of models, and the hosts that it may name."""

    file: Path = setting("the TOML file of models")
    hosts: frozenset[str] | None = setting("the hosts that the file may name", default=None, read=_hosts)
    """All hosts by default. A host of IPv6 has no brackets, and none has a port."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ModelsSettings":
        """Raises InvalidSetting, naming the variable."""
        return from_environment(cls, "UDF_MODELS_", environment)
