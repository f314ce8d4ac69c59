"""Tables of cases as DataFrames and views."""

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.conformance.cases import Case, Table
from tests.conformance.column_types import ColumnType, parse_type
from tests.conformance.values import parse_value

__all__ = ["ROW_KIND", "changelog_frame", "create_views", "read_rows", "sample_rows", "schema_of", "table_frame"]

ROW_KIND = "row_kind"
"""The column of a changelog that holds the kind of a row."""
_OF_SPARK = {"timestamp": "TIMESTAMP_LTZ(3)", "timestamp_ntz": "TIMESTAMP(3)"}
SAMPLE = 12
"""Enough for sums and texts that conditions of cases ask for; fits a month and a minute."""


def create_views(spark: SparkSession, case: Case, *, sampled: bool = False) -> list[str]:
    """Creates a temporary view per table, and returns their names. A changelog's view holds its end state.

    With `sampled`, a table without rows gets some made from its types.
    """
    names = []
    for table in case.tables:
        if not table.columns:
            continue
        table_frame(spark, table, sampled=sampled).createOrReplaceTempView(f"`{table.name}`")
        names.append(table.name)
    return names


def table_frame(spark: SparkSession, table: Table, *, sampled: bool = False) -> DataFrame:
    """Returns the rows of a table, or a changelog's end state."""
    types = [parse_type(type_) for _, type_ in table.columns]
    rows = table.end_state()
    if sampled and not rows:
        return _frame(spark, table, types, sample_rows(types))
    return _frame(spark, table, types, [_row(row, types) for row in rows])


def changelog_frame(spark: SparkSession, table: Table) -> DataFrame:
    """Returns the changes of a table in order, with a column `row_kind` after its own."""
    types = [parse_type(type_) for _, type_ in table.columns]
    rows = [(*_row(values, types), kind) for kind, values in table.changes]
    return _frame(spark, table, types, rows, with_kind=True)


def sample_rows(types: Sequence[ColumnType]) -> list[tuple[Any, ...]]:
    """Returns a few rows without nulls: the nth has n, or an equally simple value, in every column."""
    return [tuple(parse_value(_sample(number, type_), type_) for type_ in types) for number in range(1, SAMPLE + 1)]


def read_rows(rows: Sequence[Sequence[Any]], schema: StructType) -> list[tuple[Any, ...]]:
    """Converts rows from the form of a case to that of a frame with this schema."""
    types = [_spark_type(field.dataType.simpleString()) for field in schema.fields]
    return [_row(row, types) for row in rows]


def _spark_type(ddl: str) -> ColumnType:
    return parse_type(_OF_SPARK.get(ddl, ddl))


def _frame(
    spark: SparkSession, table: Table, types: Sequence[ColumnType], rows: Sequence[Any], *, with_kind: bool = False
) -> DataFrame:
    fields = [f"`{name}` {type_.ddl}" for (name, _), type_ in zip(table.columns, types, strict=True)]
    schema = schema_of([*fields, *([f"{ROW_KIND} string"] if with_kind else [])])
    # There is one partition, because the order of the rows is part of a case.
    return spark.createDataFrame(list(rows), schema).coalesce(1)


def schema_of(columns: Sequence[str]) -> StructType:
    """Returns the schema of columns in DDL. A `timestamp` is an instant, whatever the session takes it for."""
    schema = StructType.fromDDL(re.sub(r"(?<!`)\btimestamp\b(?!`)", "timestamp_ltz", ", ".join(columns)))
    assert isinstance(schema, StructType)
    return schema


def _row(values: Sequence[Any], types: Sequence[ColumnType]) -> tuple[Any, ...]:
    return tuple(parse_value(value, type_) for value, type_ in zip(values, types, strict=True))


def _sample(number: int, type_: ColumnType) -> Any:
    match type_.kind:
        case "string" | "binary":
            return f"text {number}"
        case "boolean":
            return number % 2 == 0
        case "date":
            return f"2020-01-{number:02}"
        case "timestamp" | "timestamp_ntz":
            return f"2020-01-01T00:00:{number:02}"
        case "time":
            return f"00:00:{number:02}"
        case "array":
            return [_sample(number, type_.parts[0])] * 2
        case "map":
            return [(_sample(number, type_.parts[0]), _sample(number, type_.parts[1]))]
        case "struct":
            return [_sample(number, part) for part in type_.parts]
        case _:
            return number
