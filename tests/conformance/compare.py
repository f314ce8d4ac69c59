"""Comparison of rows, and of changelogs as the tables that they produce."""

from collections.abc import Iterable, Sequence
from typing import Any

from tests.conformance.values import same

__all__ = ["Change", "difference", "end_state"]

Change = tuple[str, Sequence[Any]]
"""Kind (+I, -U, +U, -D) and values."""

SHOWN = 5


def difference(
    expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]], *, ordered: bool, truncated: bool = False
) -> str | None:
    """Returns None if the rows are the expected ones, else the missing and the unexpected rows.

    Unless `ordered`, the order does not matter; the number of equal rows does.
    """
    if ordered:
        if len(expected) == len(actual) and all(
            same(list(left), list(right), truncated=truncated) for left, right in zip(expected, actual, strict=True)
        ):
            return None
        text = f"expected, in this order, {_shown(expected)}; found {_shown(actual)}"
        reordered = difference(expected, actual, ordered=False, truncated=truncated) is None
        return text + (" (the same rows in another order)" if reordered else "")
    missing: list[Any] = []
    left = list(actual)
    for row in expected:
        place = next(
            (index for index, other in enumerate(left) if same(list(row), list(other), truncated=truncated)), None
        )
        if place is None:
            missing.append(row)
        else:
            del left[place]
    if not missing and not left:
        return None
    return f"{len(missing)} rows are missing: {_shown(missing)}; {len(left)} are too many: {_shown(left)}"


def end_state(changes: Iterable[Change], key: Sequence[int] | None = None) -> list[list[Any]]:
    """Returns the table that a changelog produces, in order of first arrival.

    Without a key, -U and -D remove one row with the same values. With the positions of a key, every
    change applies to the row of that key: +I and +U replace the previous row, and -D may
    contain only the key. Deleting a row that does not exist has no effect, as in upsert sinks.
    """
    rows: list[list[Any]] = []
    for kind, values in changes:
        row = list(values)
        place = next((index for index, other in enumerate(rows) if _matches(other, row, key)), None)
        if kind in ("-U", "-D"):
            if place is not None:
                del rows[place]
        elif key is not None and place is not None:
            rows[place] = row
        else:
            rows.append(row)
    return rows


def _matches(row: Sequence[Any], other: Sequence[Any], key: Sequence[int] | None) -> bool:
    if key is None:
        return same(list(row), list(other))
    return all(same(row[position], other[position]) for position in key)


def _shown(rows: Sequence[Any]) -> str:
    shown = ", ".join(str(tuple(row)) for row in rows[:SHOWN])
    return f"[{shown}{', ...' if len(rows) > SHOWN else ''}]"
