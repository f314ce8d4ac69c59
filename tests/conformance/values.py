"""Values of cases: conversion of JSON to Spark's values, and comparison of JSON with Spark's results.

JSON has fewer types than SQL, so a case spells timestamps, decimals and bytes as text. A value from
Spark has a type; `same` reads the expected text as that type. Numbers are equal if they
are the same number, whatever their types: a case does not define the width of a built-in function's
result.
"""

import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import VariantVal

from tests.conformance.column_types import ColumnType

__all__ = ["parse_value", "same"]

FLOAT_TOLERANCE = 1e-6
"""Relative; a FLOAT has seven digits."""


def parse_value(value: Any, type_: ColumnType) -> Any:
    """Returns the value in the form of `createDataFrame` for a column of this type. Raises ValueError."""
    if value is None:
        return None
    match type_.kind:
        case "tinyint" | "smallint" | "int" | "bigint":
            return int(value)
        case "float" | "double":
            return float(value)
        case "decimal":
            return Decimal(str(value))
        case "boolean":
            return value if isinstance(value, bool) else str(value).lower() == "true"
        case "date":
            return datetime.date.fromisoformat(value)
        case "time":
            return datetime.time.fromisoformat(value)
        case "timestamp_ntz":
            return _timestamp(value).replace(tzinfo=None)
        case "timestamp":
            moment = _timestamp(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        case "interval":
            return _interval(value) if type_.ddl.endswith("second") else value
        case "binary":
            return value.encode() if isinstance(value, str) else bytes(value)
        case "array":
            return [parse_value(item, type_.parts[0]) for item in value]
        case "map":
            pairs = value.items() if isinstance(value, Mapping) else value
            key, item = type_.parts
            return {parse_value(k, key): parse_value(v, item) for k, v in pairs}
        case "struct":
            items = [value.get(name) for name in type_.names] if isinstance(value, Mapping) else value
            return tuple(parse_value(item, part) for item, part in zip(items, type_.parts, strict=True))
        case "variant":
            return VariantVal.parseJson(json.dumps(value))
        case "string":
            return value if isinstance(value, str) else str(value)
        case _:
            return value


def same(expected: Any, actual: Any, *, truncated: bool = False) -> bool:
    """Whether Spark's value is the one a case expects.

    With `truncated`, an expected integer also equals a number with this whole part: Flink's
    AVG of integers is truncated.
    """
    if expected is None or actual is None:
        return expected is None and actual is None
    if isinstance(actual, VariantVal):
        actual = actual.toPython()
    if type(expected) is type(actual) and expected == actual:
        return True
    if isinstance(expected, bool) or isinstance(actual, bool):
        return str(expected).lower() == str(actual).lower()
    if isinstance(actual, (int, float, Decimal)):
        return _same_number(expected, actual, truncated)
    if isinstance(actual, datetime.datetime):
        return _same_moment(expected, actual)
    if isinstance(actual, (datetime.date, datetime.time)):
        return str(expected) == actual.isoformat()
    if isinstance(actual, datetime.timedelta):
        return _same_interval(expected, actual)
    if isinstance(actual, (bytes, bytearray)):
        return expected in (actual.decode(errors="replace"), actual.hex(), actual.hex().upper(), list(actual))
    if isinstance(actual, Mapping):
        if isinstance(expected, list) and not all(isinstance(each, (list, tuple)) for each in expected):
            return same(expected, list(actual.values()), truncated=truncated)  # the fields of a row, by position
        return _same_mapping(expected, actual, truncated)
    if isinstance(actual, Sequence) and not isinstance(actual, str):
        if isinstance(expected, Mapping):
            named = actual.asDict() if hasattr(actual, "asDict") else {}
            return _same_mapping(expected, named, truncated)
        return (
            isinstance(expected, Sequence)
            and not isinstance(expected, str)
            and len(expected) == len(actual)
            and all(same(left, right, truncated=truncated) for left, right in zip(expected, actual, strict=True))
        )
    return str(expected) == str(actual)


def _same_number(expected: Any, actual: float | Decimal, truncated: bool) -> bool:
    try:
        wanted = Decimal(str(expected))
        found = Decimal(str(actual))
    except InvalidOperation:
        return False
    if not wanted.is_finite() or not found.is_finite():
        return str(wanted) == str(found)
    if wanted == found:
        return True
    if truncated and isinstance(expected, int) and int(found) == expected:
        return True
    inexact = isinstance(expected, float) or isinstance(actual, float)
    return inexact and math.isclose(float(wanted), float(found), rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)


def _same_interval(expected: Any, actual: datetime.timedelta) -> bool:
    try:
        return _interval(expected) == actual
    except ValueError:
        return False


def _same_moment(expected: Any, actual: datetime.datetime) -> bool:
    if not isinstance(expected, (str, int)):
        return False
    try:
        wanted = _timestamp(expected)
    except ValueError:
        return False
    if actual.tzinfo is None:
        # Spark returns an instant as the local time of this process.
        wanted = wanted.astimezone().replace(tzinfo=None) if wanted.tzinfo else wanted
    elif wanted.tzinfo is None:
        wanted = wanted.replace(tzinfo=datetime.UTC)
    return wanted == actual


def _interval(value: Any) -> datetime.timedelta:
    """Parses milliseconds, `1 02:03:04.5` as Flink prints it, or a literal such as `INTERVAL '10' SECOND`."""
    if isinstance(value, (int, float)):
        return datetime.timedelta(milliseconds=value)
    text = str(value).strip()
    if match := re.fullmatch(
        r"(?:INTERVAL\s+)?'?([\d.]+)'?\s+(DAY|HOUR|MINUTE|SECOND)S?(?:\(\d\))?", text, re.IGNORECASE
    ):
        return datetime.timedelta(**{f"{match[2].lower()}s": float(match[1])})
    if match := re.fullmatch(r"([+-]?)(?:(\d+) )?(\d+):(\d+)(?::(\d+(?:\.\d+)?))?", text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups()[1:])
        found = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        return -found if match[1] == "-" else found
    raise ValueError(f"{value!r} is not an interval")


def _timestamp(value: str | int) -> datetime.datetime:
    """Parses a time in ISO format, with a blank or a T in its middle; a number counts milliseconds since 1970."""
    if isinstance(value, int):
        return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=value)
    # Python reads 3 or 6 digits of a second; cases write any number of them.
    text = re.sub(r"\.(\d+)", lambda match: f".{match[1]:0<6}"[:7], value.strip())
    return datetime.datetime.fromisoformat(text)


def _same_mapping(expected: Any, actual: Mapping[Any, Any], truncated: bool) -> bool:
    if not isinstance(expected, (Mapping, list, tuple)) or len(expected) != len(actual):
        return False
    left = list(expected.items() if isinstance(expected, Mapping) else expected)
    for key, item in actual.items():
        place = next(
            (
                index
                for index, (wanted_key, wanted) in enumerate(left)
                if same(wanted_key, key) and same(wanted, item, truncated=truncated)
            ),
            None,
        )
        if place is None:
            return False
        del left[place]
    return True
