"""Scans: DataFrames whose rows Spark's Python workers can read from files themselves.

Such a DataFrame is that of Spark's own reader, so everything works on it. Its scan is recorded beside it. An operator
over it, or over some of its columns, reads the files itself, and the rows do not pass through the JVM. A DataFrame that
was derived from it in another way has no scan: Spark reads its rows.
"""

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import Identifiers, identifiers_of, quoted
from spark_client.executor.parquet.scan import ScanColumn, ScanPlan

__all__ = ["RowFilter", "Scan", "projected", "remember_scan", "renamed", "scan_of", "selected"]

_TEXT = re.compile(r"(\w+)(?: AS (\w+))?")
"""The text of a Column that is a column of its frame, perhaps under another name."""


@dataclass(frozen=True)
class Scan:
    """How workers read the columns of a frame: their names, and their positions in the columns of the plan.

    The position is None for a column that workers cannot read.
    """

    plan: ScanPlan
    columns: tuple[tuple[str, int | None], ...]

    @property
    def complete(self) -> bool:
        """Whether workers can read all columns, of which there is at least one."""
        return bool(self.columns) and all(position is not None for _, position in self.columns)

    def tasks(self, frame: DataFrame) -> DataFrame:
        """A row per task, in a partition of its own: the input of `read_splits`."""
        return frame.sparkSession.range(0, len(self.plan.tasks), 1, max(len(self.plan.tasks), 1))

    @property
    def of_columns(self) -> ScanPlan:
        """The plan that reads the columns of the frame, in their order."""
        return replace(self.plan, output=tuple(position for _, position in self.columns if position is not None))


class RowFilter(Protocol):
    """A condition on the rows of the files."""

    sql: str
    """The whole condition, as Spark reads it."""

    def of_files(self, partitions: Sequence[str]) -> list[str]:
        """The conditions on partition columns only, all of which hold for the files that are read."""

    def of_rows(
        self, columns: Sequence[ScanColumn], partitions: Sequence[str]
    ) -> tuple[pc.Expression | None, tuple[int, ...]]:
        """The other conditions, and the positions of the columns that they use. Raises PlanError."""


_KNOWN: weakref.WeakKeyDictionary[DataFrame, Scan] = weakref.WeakKeyDictionary()


def remember_scan(frame: DataFrame, scan: Scan) -> DataFrame:
    """Return `frame`, and record its scan."""
    _KNOWN[frame] = scan
    return frame


def scan_of(frame: DataFrame) -> Scan | None:
    """The scan of a frame if workers can read all its columns, or None."""
    scan = _KNOWN.get(frame)
    return scan if scan is not None and scan.complete else None


def selected(frame: DataFrame, *columns: str | Column) -> DataFrame:
    """Like `frame.select(*columns)`; a selection of columns of a scan has a scan."""
    return projected(frame, frame.select(*columns), columns)


def projected(
    frame: DataFrame, result: DataFrame, columns: Sequence[str | Column], condition: RowFilter | None = None
) -> DataFrame:
    """Return `result`, which consists of these columns of the rows of `frame`, with a scan if `frame` has one.

    Args:
        frame: A frame with or without a scan.
        result: What Spark makes of it.
        columns: The columns; one with another name may be text, as in "price AS gross".
        condition: The condition on the rows.

    Raises:
        PlanError: Workers cannot check the condition.

    """
    scan = _KNOWN.get(frame)
    if scan is None:
        return result
    chosen = _chosen(scan, columns, identifiers_of(frame))
    if chosen is None:
        return result
    if any(isinstance(column, Column) for column in columns):
        # A literal may have the text of a column's name, but it is never null.
        types = {field.name: field.dataType for field in frame.schema}
        found = [(field.name, field.dataType, field.nullable) for field in result.schema]
        if found != [(each.name, types[each.source], True) for each in chosen]:
            return result
    plan = scan.plan if condition is None else _filtered(scan, condition)
    return remember_scan(result, Scan(plan, tuple((each.name, each.position) for each in chosen)))


def renamed(frame: DataFrame, *names: str) -> DataFrame:
    """Like `frame.toDF(*names)`; the frame keeps its scan."""
    result, scan = frame.toDF(*names), _KNOWN.get(frame)
    if scan is None:
        return result
    positions = (position for _, position in scan.columns)
    return remember_scan(result, Scan(scan.plan, tuple(zip(names, positions, strict=True))))


def _filtered(scan: Scan, condition: RowFilter) -> ScanPlan:
    """The plan of the scan with one more condition, in which columns have the names of the files."""
    plan = scan.plan
    if any(position is not None and plan.columns[position].name != name for name, position in scan.columns):
        raise PlanError("a condition on columns of a scan with other names is left to Spark")
    more, used = condition.of_rows(plan.columns, ())
    if more is None:
        return plan
    both = more if plan.condition is None else plan.condition & more
    return replace(plan, condition=both, condition_columns=tuple(dict.fromkeys([*plan.condition_columns, *used])))


class _Chosen(NamedTuple):
    """A selected column: its name, and its name and position in the scan."""

    name: str
    source: str
    position: int | None


def _chosen(scan: Scan, columns: Sequence[str | Column], identifiers: Identifiers) -> list[_Chosen] | None:
    """The selected columns; None if they are not all columns of the scan."""
    known = {identifiers.key(name): (name, position) for name, position in scan.columns}
    by_quoted = {quoted(name): (name, position) for name, position in scan.columns}
    chosen: list[_Chosen] = []
    for column in columns:
        if isinstance(column, str) and column == "*":
            chosen += [_Chosen(name, name, position) for name, position in scan.columns]
        elif isinstance(column, str) and column in by_quoted:
            name, position = by_quoted[column]
            chosen.append(_Chosen(name, name, position))
        else:
            text = column if isinstance(column, str) else repr(column).removeprefix("Column<'").removesuffix("'>")
            match = _TEXT.fullmatch(text)
            if match is None or (key := identifiers.key(match[1])) not in known:
                return None
            chosen.append(_Chosen(match[2] or match[1], *known[key]))
    return chosen
