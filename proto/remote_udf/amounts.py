"""Amounts of units that calls spend, such as tokens."""

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["AMOUNTS", "MOST_UNITS", "OTHER", "UNIT_BYTES", "add_amounts", "is_unit"]

MOST_UNITS = 20
"""Number of units that are counted one by one. Units are named by authors' code, and by servers."""
AMOUNTS = pa.map_(pa.string(), pa.float64())
"""The type of amounts by unit."""
OTHER = "other"
"""The unit of what is spent in further units."""
UNIT_BYTES = 100
"""Longest name of a unit in UTF-8. Each message has room for the names of MOST_UNITS and OTHER beside its rows."""


def is_unit(name: str) -> bool:
    """Whether the text may be the name of a unit: it is printable, and neither empty nor too long."""
    # Characters that have no UTF-8 are not printable.
    return name.isprintable() and 0 < len(name.encode()) <= UNIT_BYTES


def add_amounts(total: dict[str, float], amounts: Mapping[str, float]) -> None:
    """Add amounts to a total, by unit."""
    for unit, amount in amounts.items():
        known = unit if unit in total or len(total) < MOST_UNITS else OTHER
        total[known] = total.get(known, 0.0) + amount
