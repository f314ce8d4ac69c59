"""Flink's built-in TO_CHANGELOG and FROM_CHANGELOG: row kinds to a column of operations, and back."""

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pyarrow as pa

import udf_server as udf
from udf_server import ArgumentTrait, RowKind

__all__ = ["FromChangelog", "ToChangelog"]

OPERATIONS = {
    "INSERT": RowKind.INSERT,
    "UPDATE_BEFORE": RowKind.UPDATE_BEFORE,
    "UPDATE_AFTER": RowKind.UPDATE_AFTER,
    "DELETE": RowKind.DELETE,
}
CODES = {kind: name for name, kind in OPERATIONS.items()}
Descriptor = Annotated[list[str] | None, "array<string>"]
Mapped = Annotated[dict[str, str] | None, "map<string,string>"]


class ToChangelog(udf.ProcessTableFunction):
    """Converts changes to rows that are only inserted, with the operation in a column.

    `op` names that column, `op_mapping` maps operations ("INSERT, UPDATE_AFTER") to codes; others are skipped. A
    delete keeps its values unless `produces_full_deletes` is false: then it keeps only the values of its key, which is
    PARTITION BY and the upsert key. Without any key all columns identify the row, and all of them are kept.
    """

    returns = (
        udf.column_named_by("op", pa.string(), default="op", only_if="include_op_column"),
        udf.columns_of("input"),
    )

    def eval(
        self,
        ctx: udf.ProcessContext,
        input: Annotated[
            udf.Row,
            ArgumentTrait.SET_SEMANTIC_TABLE,
            ArgumentTrait.OPTIONAL_PARTITION_BY,
            ArgumentTrait.SUPPORT_UPDATES,
            ArgumentTrait.REQUIRE_UPDATE_BEFORE,
            ArgumentTrait.REQUIRE_FULL_DELETE,
        ],
        op: Descriptor = None,
        op_mapping: Mapped = None,
        produces_full_deletes: bool = True,
        include_op_column: bool = True,
    ) -> Iterator[tuple[Any, ...]]:
        codes = _codes(tuple(op_mapping.items())) if op_mapping is not None else CODES
        if input.kind not in codes:
            return
        semantics = ctx.table_semantics_for("input")
        shown_before = semantics.partition_by_columns
        values: tuple[Any, ...] = input
        if input.kind is RowKind.DELETE and not produces_full_deletes:
            key = {*shown_before, *semantics.upsert_key_columns}
            values = tuple(value if not key or index in key else None for index, value in enumerate(input))
        values = tuple(value for index, value in enumerate(values) if index not in shown_before)
        yield (codes[input.kind], *values) if include_op_column else values


class FromChangelog(udf.ProcessTableFunction):
    """Converts rows with their operation in a column, as captured from a database, to changes.

    `op` names the column, which is excluded from the result; `op_mapping` maps codes ("c, r") to operations. A
    row with an unknown code fails.
    """

    returns = (udf.columns_of("input", without="op", default="op"),)
    changelog_mode = udf.ChangelogMode.of(*RowKind)

    def eval(
        self,
        ctx: udf.ProcessContext,
        input: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.OPTIONAL_PARTITION_BY],
        op: Descriptor = None,
        op_mapping: Mapped = None,
    ) -> Iterator[udf.Row]:
        column = op[0] if op else "op"
        code = input[column]
        kind = (_kinds(tuple(op_mapping.items())) if op_mapping is not None else OPERATIONS).get(code)
        if kind is None:
            shown = "NULL" if code is None else repr(code)
            raise ValueError(f"Received invalid op code {shown} in column {column!r}")
        semantics = ctx.table_semantics_for("input")
        left_out = {*semantics.partition_by_columns, semantics.data_type.names.index(column)}
        yield udf.Row(*(value for index, value in enumerate(input) if index not in left_out), kind=kind)


@functools.lru_cache(maxsize=64)
def _codes(mapping: tuple[tuple[str, str], ...]) -> Mapping[RowKind, str]:
    """Returns the code of each operation."""
    codes: dict[RowKind, str] = {}
    for names, code in mapping:
        for name in _split(names):
            kind = _operation(name)
            if kind in codes:
                raise ValueError(f"Duplicate change operation: {name!r} in op_mapping")
            codes[kind] = code
    return codes


@functools.lru_cache(maxsize=64)
def _kinds(mapping: tuple[tuple[str, str], ...]) -> Mapping[str, RowKind]:
    """Returns the operation of each code."""
    kinds: dict[str, RowKind] = {}
    for codes, name in mapping:
        for code in _split(codes):
            if code in kinds:
                raise ValueError(f"Duplicate op code: {code!r} in op_mapping")
            kinds[code] = _operation(name)
    return kinds


def _operation(name: str) -> RowKind:
    try:
        return OPERATIONS[name.strip().upper()]
    except KeyError:
        raise ValueError(
            f"Unknown change operation: {name!r} in op_mapping; there are {', '.join(OPERATIONS)}"
        ) from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
