"""Statement: one named query of the operator's file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import TextClause, bindparam, text

from remote_udf.ddl import parse_type
from remote_udf.errors import UnsupportedType

__all__ = ["InvalidStatement", "Statement", "read_statements"]


class InvalidStatement(ValueError):
    """The file of statements cannot be used; the message names file and statement."""


@dataclass(frozen=True)
class Statement:
    """A query with its parameters, and the columns of the answer that make up its value."""

    name: str
    clause: TextClause
    parameters: dict[str, pa.DataType]
    returns: dict[str, pa.DataType]
    key: str | None = None
    """Column that says which value of the one parameter a row answers; then many of them are asked for together."""
    description: str = ""
    version: str = "1"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of call options."""


def read_statements(path: Path) -> list[Statement]:
    """Returns the statements of a TOML file in its order. Raises InvalidStatement."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidStatement(f"{path}: {error}") from None
    statements = []
    for name, table in tables.items():
        try:
            statements.append(_statement(name, table))
        except ValueError as error:
            raise InvalidStatement(f"{path}, statement {name!r}: {error}") from None
    if not statements:
        raise InvalidStatement(f"{path}: has no statement")
    return statements


TEXTS = ("statement", "parameters", "returns", "key", "description", "version")


def _statement(name: str, table: Any) -> Statement:
    if not isinstance(table, dict):
        raise ValueError(f"is {table!r} and not a table with statement, parameters and returns")
    if unknown := sorted(table.keys() - {*TEXTS, "options"}):
        raise ValueError(f"has {', '.join(unknown)}; known are {', '.join((*TEXTS, 'options'))}")
    for wanted in TEXTS:
        if wanted in table and not isinstance(table[wanted], str):
            raise ValueError(f"{wanted} is {table[wanted]!r} and not text")
    if missing := [wanted for wanted in TEXTS[:3] if not table.get(wanted)]:
        raise ValueError(f"has no {', '.join(missing)}")
    if not isinstance(table.get("options", {}), dict):
        raise ValueError("options is not a table")
    parameters, returns = (_columns(table[wanted], wanted) for wanted in ("parameters", "returns"))
    clause = text(table["statement"])
    bound = list(clause.compile().params)
    if sorted(bound) != sorted(parameters):
        raise ValueError(f"binds {', '.join(bound) or 'nothing'}; its parameters are {', '.join(parameters)}")
    key = table.get("key")
    if key is not None:
        if len(parameters) > 1:
            raise ValueError("has a key, and so takes one parameter")
        clause = clause.bindparams(*(bindparam(parameter, expanding=True) for parameter in parameters))
    rest = {wanted: table[wanted] for wanted in ("description", "version", "options") if wanted in table}
    return Statement(name, clause, parameters, returns, key, **rest)


def _columns(ddl: str, what: str) -> dict[str, pa.DataType]:
    try:
        return {column.name: column.type for column in parse_type(f"struct<{ddl}>")}
    except UnsupportedType as error:
        raise ValueError(f"{what}: {error}") from None
