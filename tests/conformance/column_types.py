"""Flink's column types as cases spell them, and the corresponding Spark types.

`TIMESTAMP(3)` has no zone, so it is Spark's `timestamp_ntz`; `TIMESTAMP_LTZ(3)` is an instant, Spark's
`timestamp`. A `ROW` is a struct, a `MULTISET<T>` a map from element to count, `TABLE<T>` (what a table
function returns) an array. NOT NULL and precisions of times are dropped.
"""

import re
from dataclasses import dataclass, field

__all__ = ["ColumnType", "UnknownType", "parse_type"]

_PLAIN = {
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), "string"),
    **dict.fromkeys(("INT", "INTEGER"), "int"),
    **dict.fromkeys(("BYTES", "BINARY", "VARBINARY"), "binary"),
    **dict.fromkeys(("DOUBLE", "DOUBLE PRECISION"), "double"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE"), "timestamp_ntz"),
    **dict.fromkeys(("TIMESTAMP_LTZ", "TIMESTAMP WITH LOCAL TIME ZONE"), "timestamp"),
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIME": "time",
    "VARIANT": "variant",
    "NULL": "void",
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_UNSCALED = "decimal(38,18)"
"""A decimal without precision and scale: a case's values have any scale."""


class UnknownType(ValueError):
    """A type that is not one of Flink's, or that has no counterpart in Spark."""


@dataclass(frozen=True)
class ColumnType:
    """`ddl` is Spark's spelling; `kind` is its first word. `parts` are the types inside, `names` a struct's fields."""

    kind: str
    ddl: str
    parts: tuple["ColumnType", ...] = ()
    names: tuple[str, ...] = field(default=())


def parse_type(text: str) -> ColumnType:
    """The type of a text such as "ARRAY<INT NOT NULL>". Raises UnknownType."""
    plain = re.sub(r"\(\s*optional\s*\)|\*\w+\*", "", text, flags=re.IGNORECASE).strip()
    plain = re.sub(r"\s+(NOT\s+)?NULL$", "", plain, flags=re.IGNORECASE)
    head, inside, tail = _split(plain)
    name = re.sub(r"\s+", " ", f"{head} {tail}".strip().upper())
    if name in ("ARRAY", "TABLE", "MULTISET", "MAP", "ROW", "STRUCT") and inside is not None:
        return _nested(name, _commas(inside), text)
    if name in _DECIMALS:
        return ColumnType("decimal", f"decimal({inside.replace(' ', '')})" if inside else _UNSCALED)
    if name.startswith("INTERVAL"):
        months = re.search(r"YEAR|MONTH", name) is not None
        return ColumnType("interval", "interval year to month" if months else "interval day to second")
    if name in _PLAIN:
        return ColumnType(_PLAIN[name], _PLAIN[name])
    raise UnknownType(f"type {text!r} is none this runner knows")


def _nested(name: str, parts: list[str], text: str) -> ColumnType:
    if name in ("ROW", "STRUCT"):
        pairs = [_field(part) for part in parts]
        types = tuple(type_ for _, type_ in pairs)
        fields = ",".join(f"`{field}`:{type_.ddl}" for field, type_ in pairs)
        return ColumnType("struct", f"struct<{fields}>", types, tuple(field for field, _ in pairs))
    if name == "TABLE" and len(parts) > 1:
        parts = [f"ROW<{', '.join(parts)}>"]
    if name == "TABLE" and (named := re.fullmatch(r"`?(\w+)`?\s+(\w+.*)", parts[0], re.DOTALL)):
        # One named column; the type alone would be one word, perhaps with brackets.
        parts = [named[2]] if named[2].upper() != "NOT NULL" else parts
    inner = tuple(parse_type(part) for part in parts)
    if len(inner) != (2 if name == "MAP" else 1):
        raise UnknownType(f"type {text!r} has {len(inner)} types inside")
    if name == "MAP":
        return ColumnType("map", f"map<{inner[0].ddl},{inner[1].ddl}>", inner)
    if name == "MULTISET":
        return ColumnType("map", f"map<{inner[0].ddl},int>", (inner[0], ColumnType("int", "int")))
    return ColumnType("array", f"array<{inner[0].ddl}>", inner)


def _field(text: str) -> tuple[str, ColumnType]:
    match = re.fullmatch(r"\s*(?:`([^`]+)`|(\w+))\s*:?\s+(.+?)(?:\s+'[^']*')?\s*", text, re.DOTALL)
    if match is None:
        raise UnknownType(f"{text!r} is not a field of a row")
    return match[1] or match[2], parse_type(match[3])


def _split(text: str) -> tuple[str, str | None, str]:
    """Returns the text before, inside and after the first brackets; inside is None if there are none."""
    match = re.search(r"[<(]", text)
    if match is None:
        return text, None, ""
    closing = ">" if match[0] == "<" else ")"
    end = text.rfind(closing)
    return text[: match.start()], text[match.end() : end], text[end + 1 :]


def _commas(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]
