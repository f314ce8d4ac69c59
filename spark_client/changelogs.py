"""Changelogs: DataFrames whose rows say what they do to a table."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remote_udf.row_kinds import ROW_KIND, RowKind
from spark_client.identifiers import column_named, identifiers_of

__all__ = ["CHANGE_TYPE", "kind_code", "kind_column"]

CHANGE_TYPE = "_change_type"
"""The column of a Delta change feed (Delta Lake, "Change data feed")."""

_DELTA = {
    "insert": RowKind.INSERT,
    "update_preimage": RowKind.UPDATE_BEFORE,
    "update_postimage": RowKind.UPDATE_AFTER,
    "delete": RowKind.DELETE,
}


def kind_column(frame: DataFrame) -> str | None:
    """The column that makes the frame a changelog: `row_kind`, or Delta's `_change_type`; None if it has none."""
    names = {identifiers_of(frame).key(name): name for name in frame.columns}
    return names.get(ROW_KIND) or names.get(CHANGE_TYPE)


def kind_code(name: str) -> Column:
    """The code of a row's kind. A row of another kind fails the job, with a message that shows it."""
    codes = {kind.value: kind.code for kind in RowKind}
    if name.lower() == CHANGE_TYPE:
        codes = {text: kind.code for text, kind in _DELTA.items()}
    column = column_named(name)
    message = F.concat(
        F.lit(f"column {name!r}: "), F.coalesce(column.cast("string"), F.lit("null")),
        F.lit(f" is no kind of change ({', '.join(codes)})"),
    )  # fmt: skip
    chain = None
    for text, code in codes.items():
        literal = F.lit(code).cast("tinyint")
        chain = F.when(column == text, literal) if chain is None else chain.when(column == text, literal)
    assert chain is not None
    return chain.otherwise(F.raise_error(message).cast("tinyint"))
