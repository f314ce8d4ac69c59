"""Printing: formats the rows of a result as a table, as CSV or as JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, Row

from spark_client.base.errors import PlanError

__all__ = ["FORMATS", "shown"]

WIDTH = 60
"""Maximum number of characters of a cell in a table; longer texts are cut."""


def shown(frame: DataFrame, form: str, rows: int) -> str:
    """The first `rows` rows as text in one of the FORMATS; an empty text for a statement without a result.

    A table shows whether there are more rows. Raises PlanError for a stream, because it never ends.
    """
    if not frame.columns:
        return ""
    if frame.isStreaming:
        raise PlanError("this query reads a stream, which never ends: start it from Python, with writeStream")
    found = frame.limit(rows + 1).collect()
    return FORMATS[form](frame.columns, found[:rows], len(found) > rows)


def _table(columns: list[str], rows: list[Row], more: bool) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[at], (int, float)) or row[at] is None for row in rows) and bool(rows)
        for at in range(len(columns))
    ]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]

    def line(texts: list[str]) -> str:
        padded = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(texts, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    count = f"({len(rows)} rows; there are more)" if more else f"({len(rows)} row{'s' * (len(rows) != 1)})"
    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, cells), count])


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value).replace("\n", "\\n")
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _csv(columns: list[str], rows: list[Row], more: bool) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue().removesuffix("\n")


def _json(columns: list[str], rows: list[Row], more: bool) -> str:
    return "\n".join(json.dumps(row.asDict(recursive=True), default=str, ensure_ascii=False) for row in rows)


FORMATS: Mapping[str, Callable[[list[str], list[Row], bool], str]] = {"table": _table, "csv": _csv, "json": _json}
