"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from udf_server.settings import InvalidSetting, from_environment, setting

__all__ = ["InvalidSetting", "SqlSettings"]


@dataclass(frozen=True)
class SqlSettings:
    """The address of the database and the file of statements. Its repr shows no secret."""

    statements: Path = setting("the TOML file of statements")
    url: str = setting("the database, such as postgresql+asyncpg://user@host/name", secret=True)
    """As SQLAlchemy has it, with an asynchronous driver; may hold a user name and a password."""
    password: str | None = setting("instead of the one in the URL", default=None, secret=True)
    connections: int = 10
    """Connections at most, per function."""
    attempt_seconds: float = 30.0
    """Longest wait for a connection and an answer."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "SqlSettings":
        """Raises InvalidSetting, naming the variable."""
        return from_environment(cls, "UDF_SQL_", environment)
