"""Tables as text: numbers are right-aligned, everything else is left-aligned."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["shown", "table"]

WIDEST = 44


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Formats rows below heads, in columns as wide as necessary; long texts are cut."""
    values = [list(row) for row in rows]
    cells = [list(heads), *([shown(value) for value in row] for row in values)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    right = [
        all(isinstance(row[column], (int, float)) or row[column] is None for row in values)
        for column in range(len(heads))
    ]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if numbers else cell.ljust(width)
            for cell, width, numbers in zip(row, widths, right, strict=True)
        ]
        return ("  " + "  ".join(parts)).rstrip()

    return "\n".join([line(cells[0]), line(["-" * width for width in widths]), *(line(row) for row in cells[1:])])


def shown(value: Any) -> str:
    """Formats a value as a cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."
