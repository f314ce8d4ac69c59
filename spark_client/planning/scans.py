"""Scans: DataFrames whose rows Spark's Python workers can read from files themselves, also after a selection.

Such a DataFrame is that of Spark's own reader, so everything works on it. Its scan is recorded beside it. An operator
over it, or over some of its columns, reads the files itself, and the rows do not pass through the JVM. A DataFrame that
was derived from it in another way has no scan: Spark reads its rows.

Columns are selected with few requests to the JVM: Spark makes a Column in ten requests or more. A column that is given
by name needs none, and the frame knows its type.
"""

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField

from spark_client.base.identifiers import Identifiers, identifiers_of, quoted, texts_of
from spark_client.functions.arguments import column_of

__all__ = [
    "Batches",
    "Reader",
    "RowSource",
    "Scan",
    "fields_of",
    "named_all",
    "projected",
    "remember_scan",
    "renamed",
    "scan_of",
    "selected",
    "selected_as",
]

Batches = Iterator[pa.RecordBatch]
Reader = Callable[[Callable[[Batches], Batches], Batches], Batches]
"""Runs an operator over the rows of the tasks whose numbers the batches have. It is pickled with the operator."""

_TEXT = re.compile(r"(\w+)(?: AS (\w+))?")
"""The text of a Column that is a column of its frame, perhaps under another name."""


class RowSource(Protocol):
    """What workers read instead of Spark, such as Parquet files."""

    @property
    def tasks(self) -> int:
        """The number of tasks that read it."""

    def reader(self, columns: Sequence[int]) -> Reader:
        """What reads the columns at these positions."""

    def filtered(self, spark: SparkSession, condition: str, columns: Sequence[tuple[str, int | None]]) -> "RowSource":
        """The source with one more condition in SQL on columns of these names and positions. Raises PlanError."""


@dataclass(frozen=True)
class Scan:
    """How workers read the columns of a frame: their names, and their positions in the columns of the source.

    The position is None for a column that workers cannot read.
    """

    source: RowSource
    columns: tuple[tuple[str, int | None], ...]

    @property
    def complete(self) -> bool:
        """Whether workers can read all columns, of which there is at least one."""
        return bool(self.columns) and all(position is not None for _, position in self.columns)

    def tasks(self, frame: DataFrame) -> DataFrame:
        """A row per task, in a partition of its own: the input of the reader."""
        return frame.sparkSession.range(0, self.source.tasks, 1, max(self.source.tasks, 1))

    @property
    def reader(self) -> Reader:
        """What reads the columns of the frame, in their order."""
        return self.source.reader([position for _, position in self.columns if position is not None])


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
    frame: DataFrame, result: DataFrame, columns: Sequence[str | Column], condition: str | None = None
) -> DataFrame:
    """Return `result`, which consists of these columns of the rows of `frame`, with a scan if `frame` has one.

    Args:
        frame: A frame with or without a scan.
        result: What Spark makes of it.
        columns: The columns; one with another name may be text, as in "price AS gross".
        condition: The condition on the rows, in SQL.

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
    source = scan.source
    if condition is not None:
        source = source.filtered(frame.sparkSession, condition, scan.columns)
    return remember_scan(result, Scan(source, tuple((each.name, each.position) for each in chosen)))


def renamed(frame: DataFrame, *names: str) -> DataFrame:
    """Like `frame.toDF(*names)`; the frame keeps its scan."""
    result, scan = frame.toDF(*names), _KNOWN.get(frame)
    if scan is None:
        return result
    positions = (position for _, position in scan.columns)
    return remember_scan(result, Scan(scan.source, tuple(zip(names, positions, strict=True))))


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


def fields_of(frame: DataFrame, columns: Sequence[object]) -> list[StructField]:
    """The fields of a selection of columns, names of columns, and literals of any other type."""
    named = _named(frame, columns)
    if named is not None:
        return named
    return frame.select(*map(column_of, columns)).schema.fields


def named_all(frame: DataFrame, columns: Mapping[str, str | Column]) -> Mapping[str, str] | None:
    """The name in the frame of each of the columns, by its key; None unless these are all columns of the frame."""
    named = _named(frame, list(columns.values())) if columns else None
    if named is None or {field.name for field in named} != set(frame.columns):
        return None
    return {name: field.name for name, field in zip(columns, named, strict=True)}


def selected_as(frame: DataFrame, columns: Mapping[str, str | Column]) -> DataFrame:
    """The frame with these columns under the names that are their keys. A scan of the frame is kept.

    A column that keeps its name stays the same column for Spark: whoever has it as `frame[name]` may still refer to it.
    """
    named = _named(frame, list(columns.values()))
    if named is None:
        return selected(frame, *(_column(name, column) for name, column in columns.items()))
    pairs = [(field.name, name) for field, name in zip(named, columns, strict=True)]
    texts = [quoted(new) if name == new else f"{quoted(name)} AS {quoted(new)}" for name, new in pairs]
    plain = [quoted(new) if name == new else f"{name} AS {new}" for name, new in pairs]
    return projected(frame, frame.selectExpr(*texts), plain)


def _column(name: str, column: str | Column) -> str | Column:
    return column if isinstance(column, str) and column in (name, quoted(name)) else column_of(column).alias(name)


def _named(frame: DataFrame, columns: Sequence[object]) -> list[StructField] | None:
    """The fields of the frame with these names; None if there is anything else, or if Spark must resolve a name."""
    if not all(isinstance(column, str) for column in columns):
        return None
    identifiers = identifiers_of(frame)
    repeated = identifiers.repeated(frame.columns)
    known = {
        text: field for field in frame.schema.fields if identifiers.key(field.name) not in repeated
        for text in texts_of(field.name)
    }  # fmt: skip
    found = [known.get(str(column)) for column in columns]
    return [field for field in found if field is not None] if None not in found else None
