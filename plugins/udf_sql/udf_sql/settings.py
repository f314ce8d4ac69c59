"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["InvalidSetting", "SqlSettings"]


class InvalidSetting(ValueError):
    """An environment variable is missing or malformed; the message never shows its value."""


@dataclass(frozen=True)
class SqlSettings:
    """Where the database is, and what it may be asked. Its repr shows no secret."""

    statements: Path
    """TOML file of statements."""
    url: str = field(repr=False)
    """As SQLAlchemy has it, with an asynchronous driver; may hold a user name and a password."""
    password: str | None = field(default=None, repr=False)
    """Instead of the one in the URL."""
    connections: int = 10
    """Connections at most, per function."""
    attempt_seconds: float = 30.0
    """Longest wait for a connection and an answer."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "SqlSettings":
        """Raises InvalidSetting, naming the variable."""
        for name, meaning in (
            ("UDF_SQL_STATEMENTS", "the TOML file of statements"),
            ("UDF_SQL_URL", "the database, such as postgresql+asyncpg://user@host/name"),
        ):
            if not environment.get(name):
                raise InvalidSetting(f"{name} is not set; it names {meaning}")
        return cls(
            statements=Path(environment["UDF_SQL_STATEMENTS"]),
            url=environment["UDF_SQL_URL"],
            password=environment.get("UDF_SQL_PASSWORD") or None,
            connections=int(_number(environment, "UDF_SQL_CONNECTIONS", cls.connections)),
            attempt_seconds=_number(environment, "UDF_SQL_ATTEMPT_SECONDS", cls.attempt_seconds),
        )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        number = type(default)(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        kind = "whole number" if isinstance(default, int) else "number"
        raise InvalidSetting(f"{name} is not a {kind} greater than zero")
    return number
