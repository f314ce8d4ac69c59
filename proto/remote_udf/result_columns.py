"""Result columns of a process table function that depend on the call: columns of a table, and names from arguments.

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

__all__ = ["column_named_by", "columns_of", "depends_on_call", "numbered", "resolved"]

_TABLE = b"remote_udf.columns_of"
_WITHOUT = b"remote_udf.without"
_NAME = b"remote_udf.named_by"
_DEFAULT = b"remote_udf.default"
_IF = b"remote_udf.only_if"


def columns_of(table: str, *, without: str = "", default: str = "") -> pa.Field:
    """Declare the columns of a table argument, except those of its key, as columns of the result.

    Args:
        table: The name of the table argument.
        without: The name of a DESCRIPTOR argument. The column that it names is skipped.
        default: The name of the column that is skipped if that argument is not passed.
    """
    metadata = {_TABLE: table, _WITHOUT: without, _DEFAULT: default}
    return pa.field(f"columns of {table}", pa.null(), metadata=metadata)


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
    return any((field.metadata or {}).keys() & {_TABLE, _NAME} for field in result)


def resolved(spec: FunctionSpec, call: ProcessCall) -> FunctionSpec:
    """Return the function with the columns that its result has in this call.

    Raises InvalidCall if a DESCRIPTOR does not name exactly one column, or names one that the table does not have.
    """
    if not pa.types.is_struct(spec.result) or not depends_on_call(spec.result):
        return spec
    fields: list[pa.Field] = []
    for field in spec.result:
        told = {name.decode(): text.decode() for name, text in (field.metadata or {}).items()}
        if _TABLE.decode() in told:
            fields += _columns(spec, call, told)
        elif _NAME.decode() in told:
            if _argument(call, told[_IF.decode()]) is not False:
                fields.append(pa.field(_name(spec, call, told[_NAME.decode()], told[_DEFAULT.decode()]), field.type))
        else:
            fields.append(field)
    return replace(spec, result=pa.struct(numbered(fields)))


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
    name = told[_TABLE.decode()]
    table = next(given for each, given in zip(spec.process.tables, call.tables, strict=True) if each.name == name)
    left_out = ""
    if told[_WITHOUT.decode()]:
        left_out = _name(spec, call, told[_WITHOUT.decode()], told[_DEFAULT.decode()])
        if left_out not in table.schema.names:
            raise InvalidCall(
                f"function {spec.key}: Invalid column {left_out!r} for argument {told[_WITHOUT.decode()]!r}: table "
                f"{name!r} has {', '.join(table.schema.names)}"
            )
    return [
        field for index, field in enumerate(table.schema) if index not in table.partition_by and field.name != left_out
    ]


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
