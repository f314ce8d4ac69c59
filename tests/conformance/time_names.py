"""The time column of a table under the name that a query has for it: Flink's tests call it rowtime or proctime."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.cases import Table

__all__ = ["with_time_names"]

_NAMES = ("rowtime", "proctime")


def with_time_names(tables: Sequence[Table], texts: Sequence[str], shown: Sequence[str]) -> tuple[Table, ...]:
    """Returns the tables with the time columns that the query names.

    A time column is renamed, unless the query or the expected columns (`shown`) name it, too: then it is there twice.
    """
    plain = " ".join(re.sub(r"'[^']*'", "''", text) for text in texts)
    return tuple(_named(table, tables, plain, shown) for table in tables)


def _named(table: Table, tables: Sequence[Table], query: str, shown: Sequence[str]) -> Table:
    own = str(table.raw.get("time_column") or "").partition(" ")[0]
    taken = {column.lower() for each in tables for column, _ in each.columns}
    name = next((name for name in _NAMES if name not in taken and _is_read(name, query)), None)
    if not own or name is None or own == name or (len(tables) > 1 and not _is_read(table.name, query)):
        return table
    table = replace(table, raw={**table.raw, "time_column": name})
    names = [column for column, _ in table.columns]
    if own not in names:
        return table
    place = names.index(own)
    if not _is_read(own, query) and own not in shown:
        columns = tuple((name if at == place else column, type_) for at, (column, type_) in enumerate(table.columns))
        return replace(table, columns=columns)
    return replace(
        table,
        columns=(*table.columns, (name, table.columns[place][1])),
        changes=tuple((kind, [*values, values[place]]) for kind, values in table.changes),
        events=tuple(_event(each, place) for each in table.events),
    )


def _event(event: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    return {**event, "row": [*event["row"], event["row"][place]]} if event.get("op") == "row" else event


def _is_read(name: str, query: str) -> bool:
    """Whether the query has the name, and does not give it itself."""
    given = rf"\bAS\s+`?{re.escape(name)}\b"
    return bool(re.search(rf"\b{re.escape(name)}\b", query, re.I)) and not re.search(given, query, re.I)
