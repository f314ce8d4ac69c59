"""Changelogs: DataFrames in which each row is a change to a table."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remote_udf.row_kinds import ROW_KIND, ChangelogMode, RowKind
from spark_client.base.errors import PlanError
from spark_client.base.explained_plans import analyzed_plan
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.base.settings import reads_stream

__all__ = [
    "CHANGE_TYPE",
    "kind_code",
    "kind_column",
    "mode_metadata",
    "mode_of",
    "require_no_fires",
    "require_retract",
    "sign_of",
]

MODE = "remote_udf.changelog_mode"
"""The metadata key under which the column of kinds describes the changelog's kinds and its upsert key."""

CHANGE_TYPE = "_change_type"
"""The column of kinds in a Delta change feed (Delta Lake, "Change data feed")."""

FIRED = "remote_udf.fired"
"""The metadata key of columns of windows of a stream that fire early or late."""

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


def require_no_fires(frame: DataFrame, what: str) -> None:
    """Raises PlanError for changes of windows that fire early or late, before another operator with state."""
    if not reads_stream(frame) or not any(field.metadata.get(FIRED) for field in frame.schema.fields):
        return
    # A table to which changes were written keeps the metadata of their columns, but its plan has no such operator.
    if any("InPandasWithState" in line for line in analyzed_plan(frame)):
        raise PlanError(
            f"{what}: the rows are changes of windows that fire early or late (emit), and a stream of Spark takes no "
            "other operator with state after them: write the changes to a table, and read that table in another query"
        )


def mode_metadata(mode: ChangelogMode, upsert_key: Sequence[str]) -> dict[str, object]:
    """The metadata with which a column of kinds describes its changelog. Spark keeps metadata with the column."""
    return {
        MODE: {
            "kinds": [kind.value for kind in mode.kinds], "key_only_deletes": mode.key_only_deletes,
            "upsert_key": list(upsert_key),
        }
    }  # fmt: skip


def mode_of(frame: DataFrame) -> tuple[ChangelogMode, tuple[str, ...]]:
    """The kinds of change in a frame and the columns of its upsert key, from the metadata of its column of kinds.

    Without metadata, a changelog has all kinds. If the frame no longer has a column of the key, the key is empty.
    """
    column = kind_column(frame)
    if column is None:
        return ChangelogMode(), ()
    told = frame.schema[column].metadata.get(MODE)
    if told is None:
        return ChangelogMode.of(*RowKind), ()
    key = tuple(told["upsert_key"])
    known = key if set(key) <= set(frame.columns) else ()
    return ChangelogMode.of(*told["kinds"], key_only_deletes=told["key_only_deletes"]), known


def require_retract(frame: DataFrame, where: str) -> None:
    """Raises PlanError for an upsert changelog, because it does not contain the rows that a +U replaces."""
    mode, _ = mode_of(frame)
    if mode.is_upsert or mode.key_only_deletes:
        raise PlanError(
            f"{where}: the changelog has changes {mode}, without the rows that its updates and deletes replace. "
            "They are completed only for a process table function with REQUIRE_UPDATE_BEFORE and REQUIRE_FULL_DELETE"
        )


def kind_code(name: str, mode: ChangelogMode | None = None) -> Column:
    """The code of a row's kind. A row of a kind that is not in the mode fails the job; the message shows the kind."""
    codes = {kind.value: kind.code for kind in RowKind}
    if name.lower() == CHANGE_TYPE:
        codes = {text: kind.code for text, kind in _DELTA.items()}
    whose = ""
    if mode is not None and len(mode.kinds) < len(RowKind):
        whose = " of this changelog"
        kept = {kind.code for kind in mode.kinds}
        codes = {text: code for text, code in codes.items() if code in kept}
    column = column_named(name)
    message = F.concat(
        F.lit(f"column {name!r}: "), F.coalesce(column.cast("string"), F.lit("null")),
        F.lit(f" is not a kind of change{whose} ({', '.join(codes)})"),
    )  # fmt: skip
    chain = None
    for text, code in codes.items():
        literal = F.lit(code).cast("tinyint")
        chain = F.when(column == text, literal) if chain is None else chain.when(column == text, literal)
    assert chain is not None
    return chain.otherwise(F.raise_error(message).cast("tinyint"))


def sign_of(code: Column) -> Column:
    """1 for the code of a row that is added, -1 for that of one that is retracted."""
    return F.when(code.isin([kind.code for kind in RowKind if kind.is_retract]), -1).otherwise(1)
