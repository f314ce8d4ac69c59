"""Completes an upsert changelog for a function that requires more: -U before +U, or all columns in -D.

The previous row of the same upsert key has the missing values. In a table, Spark's window functions find that row.
On a stream this would require state, so the call is refused.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, Window
from pyspark.sql import functions as F

from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import ROW_KIND, ChangelogMode, RowKind
from remote_udf.table_arguments import ArgumentTrait, TableArgument
from spark_client.base.changelogs import kind_code
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, quoted
from spark_client.planning.process.inputs import ByTable, Names, ProcessInput, named, names_of

__all__ = ["normalised", "normalised_inputs"]

POSITION, KIND, ROW, BEFORE, CHANGES = (hidden(name) for name in ("at", "kind", "row", "before", "changes"))


def normalised_inputs(
    spec: FunctionSpec, inputs: Mapping[str, ProcessInput], upsert_key: Names | ByTable[Names]
) -> dict[str, ProcessInput]:
    """Apply `normalised` to every table. An `upsert_key` that is not a mapping applies to all of them."""
    assert spec.process is not None
    arguments = {argument.name: argument for argument in spec.process.tables}
    asked = {name: upsert_key.get(name, ()) if isinstance(upsert_key, Mapping) else upsert_key for name in inputs}
    keyed = {
        name: dataclasses.replace(given, upsert_key=_key(given, names_of(asked[name], "upsert_key")))
        for name, given in inputs.items()
    }
    return {name: normalised(arguments[name], given) for name, given in keyed.items()}


def _key(given: ProcessInput, asked: Sequence[str]) -> tuple[str, ...]:
    """The upsert key of the call, otherwise that of the changelog. Raises PlanError if a column is unknown."""
    key = tuple(named(given.frame, asked)) or given.upsert_key
    unknown = [name for name in key if name not in given.columns]
    if unknown:
        raise PlanError(f"upsert_key: no column {unknown[0]!r}, there are {', '.join(given.columns)}")
    return key


def normalised(argument: TableArgument, given: ProcessInput) -> ProcessInput:
    """The table with the changes that the argument requires. The upsert key defaults to PARTITION BY.

    If a key has no row yet, its next row is an insert, whatever its kind, and a delete is skipped. Raises PlanError if
    the key of the rows is unknown.
    """
    mode, upsert_key = given.changelog_mode, given.upsert_key
    by_key = bool(given.partition_by) and (not upsert_key or set(upsert_key) == set(given.partition_by or ()))
    wants_before = mode.is_upsert and (argument.has(ArgumentTrait.REQUIRE_UPDATE_BEFORE) or not by_key)
    wants_full = mode.key_only_deletes and (wants_before or argument.has(ArgumentTrait.REQUIRE_FULL_DELETE))
    if not (wants_before or wants_full) or not argument.has(ArgumentTrait.SUPPORT_UPDATES):
        return given
    if given.frame.isStreaming:
        if mode.is_upsert and given.partition_by and not by_key:
            raise PlanError(
                f"table argument {argument.name!r}: on a stream upsert changes {mode} must be partitioned by their key "
                f"({', '.join(upsert_key)}), found PARTITION BY {', '.join(given.partition_by)}: a row that moves to "
                "another partition would stay in the previous one. Partition by the key, or pass a changelog with -U"
            )
        return given
    key = list(upsert_key or given.partition_by or ())
    if not key:
        if not argument.has(ArgumentTrait.REQUIRE_UPDATE_BEFORE):
            return given
        raise PlanError(
            f"table argument {argument.name!r}: upsert changes {mode} are completed by their key: give upsert_key, or "
            "partition_by"
        )
    return _completed(given, key, keeps_upserts=not wants_before)


def _completed(given: ProcessInput, key: Sequence[str], *, keeps_upserts: bool) -> ProcessInput:
    assert given.row_kind is not None
    texts = {name: quoted(name) for name in given.columns}
    insert, before, after, delete = (F.lit(kind.value) for kind in RowKind)
    positioned = given.frame.select(
        *(F.col(each) for each in texts.values()), kind_code(given.row_kind, given.changelog_mode).alias(KIND),
        F.monotonically_increasing_id().alias(POSITION),
    )  # fmt: skip
    window = Window.partitionBy(*(F.col(texts[name]) for name in key)).orderBy(POSITION)
    row = F.struct(*(F.col(each) for each in texts.values()))
    last = F.lag(F.struct(row.alias("row"), F.col(KIND).alias("kind"))).over(window)
    known = F.col(BEFORE).isNotNull() & (F.col(f"{BEFORE}.kind") != RowKind.DELETE.code)
    is_delete = F.col(KIND) == RowKind.DELETE.code
    updated = _change(after, F.col(ROW))
    replaced = F.array(updated) if keeps_upserts else F.array(_change(before, F.col(f"{BEFORE}.row")), updated)
    changes = (
        F.when(is_delete & known, F.array(_change(delete, F.col(f"{BEFORE}.row"))))
        .when(is_delete, F.array().cast("array<struct<kind:string,row:" + _type(given) + ">>"))
        .when(known, replaced)
        .otherwise(F.array(_change(insert, F.col(ROW))))
    )
    flat = (
        # An existing -U is replaced by one that is derived from the previous row.
        positioned.where(F.col(KIND) != RowKind.UPDATE_BEFORE.code)
        .select("*", row.alias(ROW), last.alias(BEFORE))
        .select(POSITION, F.posexplode(changes).alias(hidden("place"), CHANGES))
        .orderBy(POSITION, hidden("place"))
        .select(*(F.col(f"{CHANGES}.row.{each}") for each in texts.values()), F.col(f"{CHANGES}.kind").alias(ROW_KIND))
    )
    kinds = [kind for kind in RowKind if not (keeps_upserts and kind is RowKind.UPDATE_BEFORE)]
    return dataclasses.replace(given, frame=flat, row_kind=ROW_KIND, changelog_mode=ChangelogMode.of(*kinds))


def _change(kind: Column, row: Column) -> Column:
    return F.struct(kind.alias("kind"), row.alias("row"))


def _type(given: ProcessInput) -> str:
    fields = ",".join(f"{quoted(each.name)}:{each.dataType.simpleString()}" for each in given.fields)
    return f"struct<{fields}>"
