"""ProcessInput: a DataFrame that is passed as a table argument, with its key, order and changelog mode."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField

from remote_udf.functions import FunctionSpec
from remote_udf.process_planning import TableGiven
from remote_udf.row_kinds import ChangelogMode, RowKind
from remote_udf.table_arguments import ArgumentTrait, TableArgument
from spark_client.base.changelogs import kind_column, mode_of
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import identifiers_of
from spark_client.base.types import arrow_type

__all__ = [
    "ByTable",
    "Mode",
    "Names",
    "OrderBy",
    "ProcessInput",
    "TableOptions",
    "in_call",
    "inputs_of",
    "named",
    "names_of",
]

OrderBy = tuple[str, bool, bool]
"""A column, whether it is descending, and whether nulls are last."""
_Value = TypeVar("_Value")
ByTable: TypeAlias = Mapping[str, _Value]
"""A value for each table, by the name of its argument."""
Names: TypeAlias = str | Sequence[str] | None
"""One column or several."""
Mode: TypeAlias = ChangelogMode | str | None
"""A changelog mode, or its text, such as "+I,+U,-D"."""


@dataclass(frozen=True)
class TableOptions:
    """What a call says of its tables. A value that is not a mapping by argument is for every table that accepts it."""

    partition_by: Names | ByTable[Names] = None
    order_by: Names | ByTable[Names] = ()
    changelog_mode: Mode | ByTable[Mode] = None
    upsert_key: Names | ByTable[Names] = ()


@dataclass(frozen=True)
class ProcessInput:
    """A table argument. `partition_by` is None if not given; `row_kind` names the column with the kind of change."""

    frame: DataFrame
    partition_by: tuple[str, ...] | None = None
    order_by: tuple[OrderBy, ...] = ()
    row_kind: str | None = None
    changelog_mode: ChangelogMode = ChangelogMode()  # noqa: RUF009 - frozen
    upsert_key: tuple[str, ...] = ()
    """The columns that identify a row of a changelog; empty if unknown."""

    @property
    def delete_key(self) -> set[str]:
        """The columns that a -D has, if it has only those of its key."""
        return {*(self.partition_by or ()), *self.upsert_key}

    @property
    def fields(self) -> list[StructField]:
        """The columns that the function receives: all but the kind of change."""
        return [each for each in self.frame.schema.fields if each.name != self.row_kind]

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return [name for name in self.frame.columns if name != self.row_kind]

    def given(self, argument: str) -> TableGiven:
        """What the planner needs to know of the table. Raises UnsupportedType."""
        fields = [
            pa.field(each.name, arrow_type(each.dataType, f"table {argument!r}, column {each.name!r}"))
            for each in self.fields
        ]
        return TableGiven(pa.schema(fields), self.partition_by, self.order_by, self.changelog_mode, self.upsert_key)


def inputs_of(
    spec: FunctionSpec, tables: DataFrame | ByTable[DataFrame] | None, options: TableOptions
) -> dict[str, ProcessInput]:
    """Return the tables by argument. Raises PlanError if the function does not have such a table."""
    assert spec.process is not None
    arguments = {argument.name: argument for argument in spec.process.tables}
    given = _by_argument(spec, tables, list(arguments))
    for name in given:
        if name not in arguments:
            raise PlanError(f"function {spec.key} has no table argument {name!r}: {spec.signature}")
    for option, by_table in vars(options).items():
        for name in by_table if isinstance(by_table, Mapping) else ():
            if name not in arguments:
                raise PlanError(f"function {spec.key}, {option}: no table argument {name!r}: {spec.signature}")
    changelog_mode, inputs = options.changelog_mode, {}
    for name, frame in given.items():
        argument = arguments[name]
        if not isinstance(frame, DataFrame):
            raise PlanError(
                f"function {spec.key}: Invalid argument value. Argument {name!r} expects a table to be passed, a "
                f"DataFrame, not {frame!r}"
            )
        keys = _of(options.partition_by, name, argument)
        mode = changelog_mode.get(name) if isinstance(changelog_mode, Mapping) else changelog_mode
        inputs[name] = ProcessInput(
            frame, None if keys is None else tuple(named(frame, names_of(keys, "partition_by"))),
            tuple(_ordered(each) for each in names_of(_of(options.order_by, name, argument), "order_by")),
            *_changes_of(spec, name, frame, mode),
        )  # fmt: skip
    return inputs


def in_call(spec: FunctionSpec, inputs: Mapping[str, ProcessInput], scalars: Mapping[str, object]) -> FunctionSpec:
    """The function with the traits that its tables have in a call with these arguments."""
    assert spec.process is not None
    keyed = {name: bool(given.partition_by) for name, given in inputs.items()}
    return dataclasses.replace(spec, process=spec.process.in_call(keyed, scalars))


def _changes_of(
    spec: FunctionSpec, table: str, frame: DataFrame, given: Mode
) -> tuple[str | None, ChangelogMode, tuple[str, ...]]:
    """Return the column with the kind of change, the changelog mode and the key of a table.

    Raises PlanError if the mode that is given contradicts the table.
    """
    column = kind_column(frame)
    own_mode, key = mode_of(frame)
    if given is None:
        return column, own_mode, key
    mode = given if isinstance(given, ChangelogMode) else _parsed(spec, table, given)
    if own_mode.is_upsert and not (mode.is_upsert or mode.is_insert_only):
        raise PlanError(
            f"function {spec.key}, table {table!r}: changelog_mode is {mode}, but the table says that its "
            f"changes are {own_mode}, without -U"
        )
    if own_mode.key_only_deletes and RowKind.DELETE in mode.kinds and not mode.key_only_deletes:
        raise PlanError(
            f"function {spec.key}, table {table!r}: changelog_mode says that a -D has all columns, but the table "
            "says that it has those of its key only: set key_only_deletes, or leave changelog_mode out"
        )
    if mode.is_insert_only:
        return None, mode, ()
    if column is None:
        raise PlanError(f"function {spec.key}, table {table!r}: no column 'row_kind' says the kind of change")
    return column, mode, key


def _parsed(spec: FunctionSpec, table: str, text: object) -> ChangelogMode:
    try:
        if not isinstance(text, str):
            raise ValueError(f"expected a ChangelogMode or a text such as '+I,+U,-D', not {text!r}")
        return ChangelogMode.parse(text)
    except ValueError as error:
        raise PlanError(f"function {spec.key}, changelog_mode of table {table!r}: {error}") from None


def _by_argument(
    spec: FunctionSpec, tables: DataFrame | Mapping[str, DataFrame] | None, names: Sequence[str]
) -> Mapping[str, object]:
    if tables is None:
        return {}
    if isinstance(tables, Mapping):
        return tables
    if len(names) != 1:
        raise PlanError(
            f"function {spec.key} takes {len(names)} tables ({', '.join(names) or 'none'}): pass them by name"
        )
    return {names[0]: tables}


def _of(given: Names | ByTable[Names], name: str, argument: TableArgument) -> Names:
    """The value for a table: its entry of a mapping; any other value is for tables that are not broadcast."""
    if isinstance(given, Mapping):
        return given.get(name)
    return None if argument.has(ArgumentTrait.BROADCAST_SEMANTIC_TABLE) else given


def names_of(given: Names, what: str) -> list[str]:
    """One or several names as a list. Raises PlanError for a value that is not a name."""
    # A Column has no truth value and no end as a sequence.
    names = [given] if isinstance(given, str | Column) else list(given or ())
    for name in names:
        if not isinstance(name, str):
            raise PlanError(f"{what} takes names of columns, not {name!r}; add an expression to the table as a column")
    return names


def named(frame: DataFrame, names: Sequence[str]) -> list[str]:
    """The names as the frame spells them. A name that is missing or ambiguous is returned unchanged."""
    key = identifiers_of(frame).key
    columns = [(key(column), column) for column in frame.columns]
    found = [[column for same, column in columns if same == key(name)] for name in names]
    return [each[0] if len(each) == 1 else name for each, name in zip(found, names, strict=True)]


def _ordered(text: str) -> OrderBy:
    """Parse a name, optionally followed by ASC or DESC and NULLS FIRST or NULLS LAST."""
    words = text.split()
    tail: list[str] = []
    while len(words) > 1 and words[-1].upper() in ("ASC", "DESC", "NULLS", "FIRST", "LAST"):
        tail.insert(0, words.pop().upper())
    descending = "DESC" in tail
    # Spark's default: nulls are first in ascending order and last in descending order.
    return " ".join(words), descending, "LAST" in tail or (descending and "FIRST" not in tail)
