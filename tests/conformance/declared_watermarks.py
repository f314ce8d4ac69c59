"""The watermark that a table of a case declares, as an object or in the words of DDL."""

import datetime
import re
from collections.abc import Mapping

from tests.conformance.cases import Table

__all__ = ["delay_of", "watermarked"]

_COLUMN = re.compile(r"\s*WATERMARK FOR `?(\w+)`?", re.IGNORECASE)
_DELAY = re.compile(
    r"INTERVAL '([\d.]+)' (SECOND|HOUR|MINUTE|DAY)|- ([\d.]+) (ms|s|min|h|d|second|minute|hour|day)", re.IGNORECASE
)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def watermarked(table: Table) -> str | None:
    """Returns the column for which a table declares a watermark."""
    declared = table.raw.get("watermark")
    if isinstance(declared, Mapping):
        return str(declared["column"])
    match = _COLUMN.match(str(declared or ""))
    return match[1] if match is not None else None


def delay_of(table: Table) -> datetime.timedelta:
    """Returns the delay of the watermark after the latest time."""
    declared = table.raw.get("watermark")
    if isinstance(declared, Mapping) and "delay_ms" in declared:
        return datetime.timedelta(milliseconds=declared["delay_ms"])
    text = str(declared.get("expression") or "") if isinstance(declared, Mapping) else str(declared or "")
    match = _DELAY.search(text)
    if match is None:
        return datetime.timedelta()
    unit = (match[2] or match[4]).lower()
    return datetime.timedelta(seconds=float(match[1] or match[3]) * _SECONDS["ms" if unit == "ms" else unit[0]])
