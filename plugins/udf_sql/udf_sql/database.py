"""Database: runs statements over a pool of connections; returns rows, or raises the matching error."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, NoSuchModuleError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from udf_server import RetryableError
from udf_sql.settings import InvalidSetting, SqlSettings
from udf_sql.statements import Statement

__all__ = ["Database", "LookupRefused"]

KEYS = 500
"""Values of one IN list at most; SQLite's oldest limit is 999."""
TRY_AGAIN = ("08", "40", "53", "57")
"""Classes of SQLSTATE: connection, rolled back, out of resources, operator intervention (PostgreSQL, appendix A)."""


class LookupRefused(Exception):
    """The database refused a statement, or its answer is unusable; another attempt would not help."""


class Database:
    """One pool of connections, for the event loop on which it was created."""

    def __init__(self, settings: SqlSettings) -> None:
        """Raises InvalidSetting for a URL that SQLAlchemy or its driver cannot use."""
        url = _url(settings)
        self._name = url.render_as_string(hide_password=True)
        self._engine = _engine(url, settings.connections)
        self._seconds = settings.attempt_seconds
        # Waiting for a connection is part of the row's deadline, which the server watches, so the pool itself does not
        # wait.
        self._free = asyncio.Semaphore(settings.connections)

    async def one(self, statement: Statement, arguments: Sequence[Any]) -> dict[str, Any] | None:
        """Returns the columns of the one row that a statement finds, or None if it finds none.

        Raises RetryableError for what may succeed later, LookupRefused for any other error and for several rows.
        """
        rows = await self._rows(statement, dict(zip(statement.parameters, arguments, strict=True)), statement.returns)
        if len(rows) > 1:
            raise LookupRefused(f"{statement.name}: more than one row for {', '.join(map(repr, arguments))}")
        return rows[0] if rows else None

    async def many(self, statement: Statement, keys: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        """Returns the columns of each key's row, by key, for keys that have one; raises the same errors as `one`."""
        assert statement.key is not None
        (parameter,) = statement.parameters
        asked = list(dict.fromkeys(keys))
        found: dict[Any, dict[str, Any]] = {}
        for start in range(0, len(asked), KEYS):
            part = {parameter: asked[start : start + KEYS]}
            for row in await self._rows(statement, part, [*statement.returns, statement.key]):
                key = row[statement.key]
                if key in found:
                    raise LookupRefused(f"{statement.name}: more than one row for {key!r}")
                found[key] = {name: row[name] for name in statement.returns}
        return found

    async def close(self) -> None:
        """Closes every connection. May be called twice."""
        await self._engine.dispose()

    def __repr__(self) -> str:
        return f"<database {self._name}>"

    async def _rows(self, statement: Statement, values: dict[str, Any], columns: Iterable[str]) -> list[dict[str, Any]]:
        try:
            async with self._free, asyncio.timeout(self._seconds), self._engine.connect() as connection:
                result = await connection.execute(statement.clause, values)
                there = list(result.keys())
                if missing := [column for column in columns if column not in there]:
                    raise LookupRefused(
                        f"{statement.name}: has no column {', '.join(missing)}; it has {', '.join(there)}"
                    )
                return [{column: row[column] for column in columns} for row in result.mappings()]
        except (LookupRefused, asyncio.CancelledError):
            raise
        except TimeoutError:
            raise RetryableError(f"{statement.name}: no answer in time") from None
        except Exception as error:
            # The error is not chained: its traceback may contain the connection's arguments.
            raise _failure(statement.name, error) from None


def _url(settings: SqlSettings) -> URL:
    try:
        url = make_url(settings.url)
    except ArgumentError:
        raise InvalidSetting("UDF_SQL_URL is not a URL of SQLAlchemy") from None
    return url.set(password=settings.password) if settings.password else url


def _engine(url: URL, connections: int) -> AsyncEngine:
    try:
        return create_async_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            # Statements that only read need no transaction, which would cost two more messages for each.
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
    except NoSuchModuleError:
        raise InvalidSetting(f"UDF_SQL_URL names {url.drivername}, which SQLAlchemy does not know") from None
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"UDF_SQL_URL names {url.drivername}; install its driver {error.name}") from None
    except InvalidRequestError:
        raise InvalidSetting(
            f"UDF_SQL_URL names {url.drivername}, which is not asynchronous; postgresql+asyncpg is, or sqlite+aiosqlite"
        ) from None
    except TypeError:
        raise InvalidSetting("UDF_SQL_URL names a database of one connection, such as one in memory") from None


def _failure(name: str, error: Exception) -> Exception:
    original = error.orig if isinstance(error, DBAPIError) else error
    message = f"{name}: {original}" if isinstance(error, DBAPIError) else f"{name}: {type(error).__name__}: {error}"
    state = getattr(original, "sqlstate", None) or ""
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, (OSError, OperationalError)) or state.startswith(TRY_AGAIN):
        return RetryableError(message)
    return LookupRefused(message)
