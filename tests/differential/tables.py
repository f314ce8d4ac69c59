"""Random tables: columns of all types with odd names, and rows in partitions of uneven size."""

import dataclasses
import datetime as dt
import math
from decimal import Decimal
from typing import Any

from tests.differential.choices import Choices
from tests.differential.values import STRUCT, TYPES, value

__all__ = ["Column", "Settings", "Table", "draw_table", "quoted", "written"]

ODD_NAMES = ("x.y", "x`y", "has space", "select", "é", "1st", "A", "K", "aB", "`", "a.b.c", "_1", "row", "'q'", "x(y)")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The Spark settings of a case, and their consequences for its generators."""

    zone: str
    near: dt.datetime
    ansi: bool
    case_sensitive: bool
    others: tuple[tuple[str, str], ...] = ()

    def conf(self) -> dict[str, str]:
        """Keys and values for `spark.conf`."""
        return {
            "spark.sql.session.timeZone": self.zone,
            "spark.sql.ansi.enabled": str(self.ansi).lower(),
            "spark.sql.caseSensitive": str(self.case_sensitive).lower(),
            **dict(self.others),
        }


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    nullable: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, which becomes a view of this name."""

    name: str
    columns: tuple[Column, ...]
    parts: tuple[tuple[tuple[Any, ...], ...], ...]
    """The rows of each partition."""

    @property
    def ddl(self) -> str:
        """The schema in the form that createDataFrame accepts."""
        return ", ".join(f"{_always(c.name)} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in self.columns)

    def of_type(self, *types: str) -> list[Column]:
        """The columns of these types."""
        return [column for column in self.columns if column.type in types]

    def source(self) -> str:
        """Python code that creates the table."""
        parts = ", ".join("[" + ", ".join(written(row) for row in part) + "]" for part in self.parts)
        return f"table({self.name!r}, {self.ddl!r}, [{parts}])"


def draw_table(
    draw: Choices, name: str, settings: Settings, *, most_rows: int = 14, needed: tuple[str, ...] = ()
) -> Table:
    """A table with a unique `id`, keys with few values, columns to aggregate, and others."""
    nullable = not draw.chance(30)
    columns = [Column("id", "bigint", False), Column("k", draw.of(("int", "string", "double")), nullable)]
    columns.append(Column("v", "bigint", not draw.chance(20)))
    columns += [Column(f"c{number}", type_) for number, type_ in enumerate(needed)]
    names = list(ODD_NAMES)
    if not settings.case_sensitive:
        names = [odd for odd in names if odd not in ("A", "K")]
    else:
        columns.append(Column("a", "bigint"))
        columns.append(Column("A", "bigint"))
        names.remove("A")
    types = list(TYPES)
    for _ in range(draw.between(0, 4)):
        name_ = names.pop(draw.below(len(names))) if draw.chance(40) else f"c{len(columns)}"
        type_ = STRUCT if draw.chance(30) else draw.of(types)
        columns.append(Column(name_, type_, not draw.chance(20)))
    near = (settings.near, settings.zone)
    numbers = iter(range(1_000_000))

    def row() -> tuple[Any, ...]:
        return (next(numbers), *(value(draw, column.type, near, column.nullable) for column in columns[1:]))

    parts = [tuple(draw.several(row, 0, most_rows)) for _ in range(draw.between(1, 3))]
    return Table(name, tuple(columns), tuple(parts))


def quoted(name: str) -> str:
    """The identifier in SQL, with backticks if it needs them."""
    plain = name.isascii() and name.isidentifier() and not name.startswith("_") and name not in ("select", "row")
    return name if plain else _always(name)


def _always(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def written(found: Any) -> str:
    """Python code for a value, which may use the names nan, inf, dt and Decimal."""
    if isinstance(found, float) and not math.isfinite(found):
        return "nan" if math.isnan(found) else ("inf" if found > 0 else "-inf")
    if isinstance(found, dt.datetime):
        text = found.replace(tzinfo=None).isoformat(" ")
        return f"utc({text!r})" if found.tzinfo else f"clock({text!r})"
    if isinstance(found, dt.date):
        return f"dt.date.fromisoformat({found.isoformat()!r})"
    if isinstance(found, dt.time):
        return f"dt.time.fromisoformat({found.isoformat()!r})"
    if isinstance(found, dt.timedelta):
        return f"dt.timedelta({found.days}, {found.seconds}, {found.microseconds})"
    if isinstance(found, Decimal):
        return f"Decimal({str(found)!r})"
    if isinstance(found, tuple):
        return "(" + "".join(written(each) + ", " for each in found).rstrip() + ")"
    if isinstance(found, list):
        return "[" + ", ".join(map(written, found)) + "]"
    if isinstance(found, dict):
        return "{" + ", ".join(f"{written(k)}: {written(v)}" for k, v in found.items()) + "}"
    return repr(found)
