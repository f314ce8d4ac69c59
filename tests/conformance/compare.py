"""Rows against rows, and changelogs as the tables they leave behind."""

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
    """None if the rows are the expected ones, else what is missing and what is too much.

    Unless `ordered`, order does not count; how often a row comes does.
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
    """The table a changelog leaves behind, in order of first arrival.

    Without a key, -U and -D take away one row of the same values. With the positions of a key, every
    change is about the row of that key: +I and +U put it in place of the one there was, and -D may
    carry the key alone. A deletion of what is not there is ignored, as upsert sinks do.
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
