"""The functions: one for each statement, called with one row or with the keys of a batch in one query."""

import inspect
from typing import Any

import pyarrow as pa

import udf_server as udf
from udf_sql.database import Database
from udf_sql.settings import SqlSettings
from udf_sql.statements import Statement, read_statements

__all__ = ["functions_of"]

_OPTIONS: dict[str, Any] = {"retry_strategy": "exponential-delay", "max_attempts": 4, "timeout": "60 s"}


def functions_of(settings: SqlSettings) -> list[udf.Function]:
    """Returns the functions of a file of statements. Raises InvalidStatement, or DeclarationError for its options."""
    return [_function(statement, settings) for statement in read_statements(settings.statements)]


class _Connected:
    """The database of one function, opened on the function's event loop."""

    database: Database

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings

    async def open(self) -> None:
        """Raises InvalidSetting. Runs again if the function gets another event loop."""
        self.database = Database(self._settings)

    async def close(self) -> None:
        await self.database.close()


def _function(statement: Statement, settings: SqlSettings) -> udf.Function:
    connected = _Connected(settings)

    async def row(*arguments: Any) -> dict[str, Any] | None:
        return await connected.database.one(statement, arguments)

    async def batch(column: pa.Array) -> pa.Array:
        keys = column.to_pylist()
        found = await connected.database.many(statement, keys)
        return declared.result.encode([found.get(key) for key in keys])

    code = row if statement.key is None else batch
    # The server reads a function's parameters from its signature.
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in statement.parameters]
    vars(code)["__signature__"] = inspect.Signature(parameters)
    declared = udf.scalar(
        name=statement.name,
        version=statement.version,
        description=statement.description or statement.clause.text,
        parameters=statement.parameters,
        returns=pa.struct(statement.returns),
        vectorized=statement.key is not None,
        nulls="skip",
        **{**_OPTIONS, **statement.options},
    )(code)
    declared.on_open(connected.open)
    declared.on_close(connected.close)
    return declared
