"""Results of a process table function that depend on the call: columns of a table, names from arguments, kinds of row.

The metadata of a result's fields describe them and are sent with the type; both ends replace them by the columns
of the call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from remote_udf.errors import InvalidCall
from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import ProcessCall
from remote_udf.row_kinds import ChangelogMode, RowKind
from remote_udf.types import spelled

__all__ = ["column_named_by", "columns_of", "depends_on_call", "kinds_named_by", "numbered", "resolved"]

_TABLE = "remote_udf.columns_of"
_WITHOUT = "remote_udf.without"
_NAME = "remote_udf.named_by"
_DEFAULT = "remote_udf.default"
_IF = "remote_udf.only_if"
_FIELDS = "remote_udf.fields_of"
_KINDS = "remote_udf.kinds_named_by"


def columns_of(
    table: str, *, without: str | Sequence[str] = (), default: str = "", fields_of: str = ""
) -> pa.Field:  # fmt: skip
    """Declare the columns of a table argument, except those of its key, as columns of the result.

    Args:
        table: The name of the table argument.
        without: The names of DESCRIPTOR arguments. The columns that they name are skipped.
        default: The name of the column that is skipped if the first of these arguments is not passed.
        fields_of: The name of a DESCRIPTOR argument. The fields of the struct that it names replace that column.
    """
    skipped = [without] if isinstance(without, str) else without
    metadata = {_TABLE: table, _WITHOUT: ",".join(skipped), _DEFAULT: default, _FIELDS: fields_of}
    return pa.field(f"columns of {table}", pa.null(), metadata=metadata)


def kinds_named_by(argument: str) -> pa.Field:
    """Declare that a map argument names the kinds of row that a call emits; without it, those of `changelog_mode`.

    Args:
        argument: The name of the argument. Its values are names of kinds, separated by commas: `INSERT`,
            `UPDATE_BEFORE`, `UPDATE_AFTER`, `DELETE`.
    """
    return pa.field(f"kinds named by {argument}", pa.null(), metadata={_KINDS: argument})


def column_named_by(argument: str, type_: pa.DataType, *, default: str, only_if: str = "") -> pa.Field:
    """Declare a column of the result that is named by a DESCRIPTOR argument.

    Args:
        argument: The name of the DESCRIPTOR argument.
        type_: The type of the column.
        default: The name of the column if that argument is not passed.
        only_if: The name of a boolean argument. If it is false, the result does not have the column.
    """
    metadata = {_NAME: argument, _DEFAULT: default, _IF: only_if}
    return pa.field(f"column named by {argument}", type_, metadata=metadata)


def depends_on_call(result: pa.DataType) -> bool:
    """Whether the columns of a result depend on the call."""
    return any({name.encode() for name in (_TABLE, _NAME, _KINDS)} & (field.metadata or {}).keys() for field in result)


def resolved(spec: FunctionSpec, call: ProcessCall) -> FunctionSpec:
    """Return the function with the traits of tables, and the columns and kinds of row of its result, in this call.

    Raises InvalidCall if a DESCRIPTOR does not name exactly one column, or names one that the table does not have, or
    if a map names an unknown kind of row.
    """
    assert spec.process is not None
    keyed = {each.name: bool(table.partition_by) for each, table in zip(spec.process.tables, call.tables, strict=True)}
    scalars = {name: _argument(call, name) for name in call.scalars.schema.names}
    signature = spec.process.in_call(keyed, scalars)
    if not pa.types.is_struct(spec.result) or not depends_on_call(spec.result):
        return spec if signature is spec.process else replace(spec, process=signature)
    fields: list[pa.Field] = []
    for field in spec.result:
        told = {name.decode(): text.decode() for name, text in (field.metadata or {}).items()}
        if _TABLE in told:
            fields += _columns(spec, call, told)
        elif _NAME in told:
            if _argument(call, told[_IF]) is not False:
                fields.append(pa.field(_name(spec, call, told[_NAME], told[_DEFAULT]), field.type))
        elif _KINDS in told:
            mode = _mode(spec, call, told[_KINDS], signature.changelog_mode)
            signature = replace(signature, changelog_mode=mode)
        else:
            fields.append(field)
    return replace(spec, result=pa.struct(numbered(fields)), process=signature)


def numbered(fields: Iterable[pa.Field], key: Callable[[str], str] = str) -> list[pa.Field]:
    """The fields; a name that is already used gets a number: `name`, `name0`. `key` is equal for equal names."""
    taken: set[str] = set()
    result = []
    for each in fields:
        name, number = each.name, 0
        while key(name) in taken:
            name, number = f"{each.name}{number}", number + 1
        taken.add(key(name))
        result.append(each.with_name(name))
    return result


def _columns(spec: FunctionSpec, call: ProcessCall, told: dict[str, str]) -> Sequence[pa.Field]:
    assert spec.process is not None
    name = told[_TABLE]
    table = next(given for each, given in zip(spec.process.tables, call.tables, strict=True) if each.name == name)
    names, default = table.schema.names, told[_DEFAULT]

    def named(argument: str, default: str = "") -> str:
        column = _name(spec, call, argument, default) if argument else ""
        if column and column not in names:
            raise InvalidCall(
                f"function {spec.key}: Invalid column {column!r} for argument {argument!r}: table {name!r} has "
                f"{', '.join(names)}"
            )
        return column

    skipped = told[_WITHOUT].split(",")
    left_out = {named(argument, "" if place else default) for place, argument in enumerate(skipped)}
    whole = named(told[_FIELDS])
    fields: list[pa.Field] = []
    for index, field in enumerate(table.schema):
        if field.name == whole:
            if not pa.types.is_struct(field.type):
                raise InvalidCall(
                    f"function {spec.key}: column {whole!r} for argument {told[_FIELDS]!r} is "
                    f"{spelled(field.type)}, not a struct"
                )
            fields += list(field.type)
        elif index not in table.partition_by and field.name not in left_out:
            fields.append(field)
    return fields


def _mode(spec: FunctionSpec, call: ProcessCall, argument: str, declared: ChangelogMode) -> ChangelogMode:
    mapping = _argument(call, argument)
    if mapping is None:
        return declared
    written = [name.strip().upper() for _, names in mapping for name in (names or "").split(",")]
    for name in written:
        if name not in RowKind.__members__:
            raise InvalidCall(
                f"function {spec.key}: Unknown change operation: {name!r} in {argument}; there are "
                f"{', '.join(RowKind.__members__)}"
            )
    mode = ChangelogMode.of(*(RowKind[name] for name in written))
    if mode.is_upsert and not any(table.partition_by for table in call.tables):
        raise InvalidCall(
            f"function {spec.key}: {argument} has UPDATE_AFTER without UPDATE_BEFORE, so a change replaces the row of "
            "its key: name the key with PARTITION BY, or map the rows before the updates to UPDATE_BEFORE"
        )
    return mode


def _name(spec: FunctionSpec, call: ProcessCall, argument: str, default: str) -> str:
    names = _argument(call, argument)
    if names is None:
        return default
    if len(names) != 1:
        raise InvalidCall(
            f"function {spec.key}: The descriptor for argument {argument!r} must contain exactly one column name, not "
            f"{', '.join(map(repr, names)) or 'none'}"
        )
    return str(names[0])


def _argument(call: ProcessCall, name: str) -> Any:
    """The value that was passed for a scalar argument; None if none was."""
    if name not in call.scalars.schema.names:
        return None
    return call.scalars.column(name)[0].as_py()
