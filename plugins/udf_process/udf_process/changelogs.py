"""Flink's built-in TO_CHANGELOG and FROM_CHANGELOG: row kinds to a column of operations, and back."""

import datetime
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pyarrow as pa

import udf_server as udf
from udf_server import ArgumentTrait, RowKind

__all__ = ["FromChangelog", "ToChangelog"]

_log = logging.getLogger(__name__)
OPERATIONS = RowKind.__members__
CODES = {kind: name for name, kind in OPERATIONS.items()}
KINDS = {name: (kind,) for name, kind in OPERATIONS.items()}
HANDLING = ("FAIL", "LOG", "SKIP")
Descriptor = Annotated[list[str] | None, "array<string>"]
Mapped = Annotated[dict[str, str] | None, "map<string,string>"]


class ToChangelog(udf.ProcessTableFunction):
    """Converts changes to rows that are only inserted, with the operation in a column.

    `op` names that column, `op_mapping` maps operations ("INSERT, UPDATE_AFTER") to codes; others are skipped. A
    delete keeps its values unless `produces_full_deletes` is false: then it keeps only the values of its key, which is
    PARTITION BY and the upsert key. Without any key all columns identify the row, and all of them are kept. There is
    no state that `state_ttl` could limit.
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
            ArgumentTrait.ROW_SEMANTIC_TABLE,
            ArgumentTrait.SET_SEMANTIC_TABLE.when(has_partition_by=True),
            ArgumentTrait.SUPPORT_UPDATES,
            ArgumentTrait.REQUIRE_UPDATE_BEFORE,
            ArgumentTrait.REQUIRE_FULL_DELETE.unless(produces_full_deletes=False),
        ],
        op: Descriptor = None,
        op_mapping: Mapped = None,
        produces_full_deletes: bool = True,
        include_op_column: bool = True,
        state_ttl: datetime.timedelta | None = None,
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

    `op` names the column, which is excluded from the result; `op_mapping` maps codes ("c, r") to operations. A code for
    "UPDATE_BEFORE, UPDATE_AFTER" makes two changes, of the rows in the structs `before` and `after`; inserts have
    `after`, deletes have `before`. Without UPDATE_BEFORE the result is an upsert changelog, whose key is PARTITION BY.
    A row with an unknown code, or without the row that its operation needs, fails; with `invalid_op_handling` or
    `error_handling` it is skipped ("SKIP"), with a warning of the server's ("LOG"). There is no state that `state_ttl`
    could limit.
    """

    returns = (
        udf.kinds_named_by("op_mapping"),
        udf.columns_of("input", without=("op", "before"), default="op", fields_of="after"),
    )
    changelog_mode = udf.ChangelogMode.of(*RowKind)

    def eval(
        self,
        ctx: udf.ProcessContext,
        input: Annotated[
            udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.SET_SEMANTIC_TABLE.when(has_partition_by=True)
        ],
        op: Descriptor = None,
        op_mapping: Mapped = None,
        invalid_op_handling: str | None = None,
        error_handling: str | None = None,
        before: Descriptor = None,
        after: Descriptor = None,
        state_ttl: datetime.timedelta | None = None,
    ) -> Iterator[udf.Row]:
        handling = invalid_op_handling or error_handling or "FAIL"
        if handling not in HANDLING:
            given = "invalid_op_handling" if invalid_op_handling else "error_handling"
            raise ValueError(f"Invalid value for argument {given!r}: {handling!r}, not one of {', '.join(HANDLING)}")
        column = op[0] if op else "op"
        code, known = input[column], KINDS if op_mapping is None else _kinds(tuple(op_mapping.items()))
        kinds = known.get(code, ())
        semantics = ctx.table_semantics_for("input")
        names, left_out = semantics.data_type.names, {*semantics.partition_by_columns}
        left_out.add(names.index(column))
        if not pa.types.is_string(type_ := semantics.data_type.field(column).type):
            raise ValueError(f"The column {column!r} of operations must be of STRING type, found {type_}")
        images = _images(names, before, after)
        problem = _problem(code, kinds, [None if each is None else input[each] for each in images])
        if problem:
            if handling == "FAIL":
                raise ValueError(f"{problem} in column {column!r}. Defined are: {', '.join(known)}")
            if handling == "LOG":
                _log.warning("from_changelog skips a row: %s in column %r", problem, column)
            return
        for kind in kinds:
            values: list[Any] = []
            for index, value in enumerate(input):
                if index == images[0]:
                    values += input[images[kind.is_retract]].values()
                elif index not in left_out and index not in images:
                    values.append(value)
            yield udf.Row(*values, kind=kind)


def _images(names: list[str], before: list[str] | None, after: list[str] | None) -> tuple[int | None, int | None]:
    """Returns the positions of the columns with the rows after and before a change; None twice without them."""
    if (before is None) != (after is None):
        raise ValueError("before and after are given together: each names the column of a struct")
    return (None, None) if before is None or after is None else (names.index(after[0]), names.index(before[0]))


def _problem(code: str | None, kinds: tuple[RowKind, ...], images: list[Any]) -> str | None:
    """Returns why a row is no change; None if it is one."""
    shown = "NULL" if code is None else repr(code)
    if not kinds:
        return f"Received invalid op code {shown}"
    if images != [None, None]:
        lacking = next((kind for kind in kinds if images[kind.is_retract] is None), None)
        return f"Received op code {shown} without the row of its {lacking.name}" if lacking else None
    return f"Received op code {shown}, which needs before and after," if len(kinds) > 1 else None


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
def _kinds(mapping: tuple[tuple[str, str], ...]) -> Mapping[str, tuple[RowKind, ...]]:
    """Returns the operations of each code."""
    kinds: dict[str, tuple[RowKind, ...]] = {}
    for codes, names in mapping:
        for code in _split(codes):
            if code in kinds:
                raise ValueError(f"Duplicate op code: {code!r} in op_mapping")
            kinds[code] = tuple(sorted(map(_operation, _split(names)), key=lambda kind: kind.code))
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
