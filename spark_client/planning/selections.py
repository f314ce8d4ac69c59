"""Selects columns of frames with few requests to the JVM.

Spark makes a Column in ten requests or more. A column that is given by name needs none, and the frame knows its type.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField

from spark_client.base.identifiers import identifiers_of, quoted, texts_of
from spark_client.functions.arguments import column_of
from spark_client.planning.scans import projected, selected

__all__ = ["fields_of", "named_all", "selected_as"]


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
