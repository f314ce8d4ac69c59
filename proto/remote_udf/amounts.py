"""Amounts of units that calls spend, such as tokens."""

from collections.abc import Mapping

__all__ = ["MOST_UNITS", "OTHER", "add_amounts"]

MOST_UNITS = 20
"""Number of units that are counted one by one. Units are named by authors' code, and by servers."""
OTHER = "other"
"""The unit of what is spent in further units."""


def add_amounts(total: dict[str, float], amounts: Mapping[str, float]) -> None:
    """Add amounts to a total, by unit."""
    for unit, amount in amounts.items():
        known = unit if unit in total or len(total) < MOST_UNITS else OTHER
        total[known] = total.get(known, 0.0) + amount
