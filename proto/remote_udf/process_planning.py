"""Plans calls of process table functions: resolves names to positions and checks the rules of a call (FLIP-440).

Spark jobs, SQL and the test kit use it. The error messages follow those of Flink.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from remote_udf.errors import InvalidCall
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.process_calls import OrderColumn, ProcessCall, TableCall
from remote_udf.python_values import scalar_array
from remote_udf.result_columns import numbered, resolved
from remote_udf.row_kinds import ROW_KIND, ChangelogMode
from remote_udf.table_arguments import ArgumentTrait, TableArgument
from remote_udf.types import accepts, normalized, spelled

__all__ = ["ROWTIME", "TableGiven", "output_fields", "plan_process_call", "require_uid"]

ROWTIME = "rowtime"
MAX_TABLES = 20
Key = Callable[[str], str]
"""Returns the same value for names that are equal."""
_UID = re.compile(r"[a-zA-Z_][a-zA-Z_0-9-]*")


@dataclass(frozen=True)
class TableGiven:
    """A table as a caller passes it, with names of columns. `partition_by` is None without PARTITION BY.

    `schema` does not have the column of row kinds.
    """

    schema: pa.Schema
    partition_by: Sequence[str] | None = None
    order_by: Sequence[tuple[str, bool, bool]] = ()
    """Name, whether descending, and whether nulls are last."""
    changelog_mode: ChangelogMode = field(default_factory=ChangelogMode)
    upsert_key: Sequence[str] = ()
    """The columns that identify a row of a changelog."""


def plan_process_call(
    spec: FunctionSpec, tables: Mapping[str, TableGiven], scalars: Mapping[str, Any], on_time: Sequence[str] = (),
    key: Key = str.lower,
) -> ProcessCall:  # fmt: skip
    """Plan a call. Raises InvalidCall, which names the argument and the problem.

    Two names of columns are equal if their `key` is. The default compares them as Spark does by default.
    """
    if spec.kind is not FunctionKind.PROCESS or spec.process is None:
        raise InvalidCall(f"function {spec.key} is a function of kind {spec.kind}, not a process table function")
    keyed = {name: bool(table.partition_by) for name, table in tables.items()}
    spec = replace(spec, process=spec.process.in_call(keyed, scalars))
    assert spec.process is not None
    planner = _Planner(spec, key)
    planned = {
        argument.name: planner.table(argument, tables.get(argument.name), index)
        for index, argument in enumerate(spec.process.tables)
    }
    planned = planner.with_times(planner.copartitioned(planned, tables), on_time)
    for name in tables:
        if spec.process.table(name) is None:
            raise InvalidCall(f"function {spec.key} has no table argument {name!r}: {spec.signature}")
    call = ProcessCall(tuple(planned.values()), planner.scalars(scalars), bool(on_time))
    output_fields(spec, call, key)
    return call


def require_uid(spec: FunctionSpec, uid: str | None) -> str:
    """Return the unique identifier of a call with state: the given one, or the function's name. Raises InvalidCall."""
    if uid is None:
        return spec.name
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise InvalidCall(
            f"Invalid unique identifier {uid!r} for process table function {spec.key}: it must match "
            f"[a-zA-Z_][a-zA-Z-_0-9]*, such as uid => 'my-id'"
        )
    return uid


def output_fields(spec: FunctionSpec, call: ProcessCall, key: Key = str.lower) -> list[pa.Field]:
    """Columns of the result: keys of every table with set semantics, or all columns that are passed through; the
    function's own; `rowtime` with on_time; the kind of change last, if the result is a changelog.

    A name that is already used gets a number: `name`, `name0`, `name1`. Raises InvalidCall if there is no column.
    """
    spec = resolved(spec, call)
    assert spec.process is not None
    fields: list[pa.Field] = []
    for argument, table in zip(spec.process.tables, call.tables, strict=True):
        if argument.has(ArgumentTrait.PASS_COLUMNS_THROUGH):
            fields += list(table.schema)
        elif argument.has_set_semantics:
            fields += [table.schema.field(column) for column in table.partition_by]
    fields += list(spec.result)
    if call.on_time:
        type_ = next(table.schema.field(table.time_column).type for table in call.tables if table.time_column >= 0)
        fields.append(pa.field(ROWTIME, type_))
    if not fields:
        raise InvalidCall(f"function {spec.key} must produce at least one output column")
    if not spec.process.changelog_mode.is_insert_only:
        fields.append(pa.field(ROW_KIND, pa.string()))
    return [each.with_nullable(True) for each in numbered(fields, key)]


class _Planner:
    def __init__(self, spec: FunctionSpec, key: Key) -> None:
        assert spec.process is not None
        self._spec = spec
        self._key = key
        self._signature = spec.process

    def table(self, argument: TableArgument, given: TableGiven | None, position: int) -> TableCall:
        spec, name = self._spec, argument.name
        if given is None:
            raise InvalidCall(f"function {spec.key}: Argument {name!r} expects a table to be passed")
        schema = self._row(argument, given.schema)
        if argument.is_broadcast and (given.partition_by or given.order_by):
            raise InvalidCall(
                f"function {spec.key}: PARTITION BY or ORDER BY are not supported for table arguments with broadcast "
                f"semantics, such as {name!r}"
            )
        if not argument.has_set_semantics:
            for clause, columns in (("partitioned", given.partition_by), ("ordered", given.order_by)):
                if columns:
                    raise InvalidCall(
                        f"Only tables with set semantics may be {clause}. Invalid "
                        f"{'PARTITION' if clause == 'partitioned' else 'ORDER'} BY clause in the {position}-th operand "
                        f"of table function {spec.name!r}"
                    )
        elif not given.partition_by and not argument.has(ArgumentTrait.OPTIONAL_PARTITION_BY):
            raise InvalidCall(
                f"function {spec.key}: Table argument {name!r} requires a PARTITION BY clause for parallel processing"
            )
        self._require_mode(argument, given)
        keys = tuple(self._position(given.schema, column, "PARTITION BY clause") for column in given.partition_by or ())
        for key in keys:
            if keys.count(key) > 1:
                raise InvalidCall(
                    f"Invalid PARTITION BY clause for table argument {name!r}. Duplicate column {schema.names[key]!r}"
                )
        upsert_key = tuple(self._position(given.schema, column, "upsert key") for column in given.upsert_key)
        return TableCall(schema, keys, self._order(argument, given), -1, given.changelog_mode, upsert_key)

    def _row(self, argument: TableArgument, schema: pa.Schema) -> pa.Schema:
        """The table's columns, with the types that the function gets. Columns of a typed row match by position."""
        # In a segment, the columns of one table are null in rows of another, so a NOT NULL column becomes nullable.
        columns = [pa.field(column.name, normalized(column.type), True, column.metadata) for column in schema]
        if argument.row is None:
            return pa.schema(columns)
        wanted = list(argument.row)
        if len(wanted) == len(columns):
            types = [
                accepts(target.type, _with_names_of(target.type, column.type))
                for target, column in zip(wanted, columns, strict=True)
            ]
            if None not in types:
                return pa.schema([column.with_type(type_) for column, type_ in zip(columns, types, strict=True)])
        raise InvalidCall(
            f"No match found for function signature {self._spec.signature}: table argument {argument.name!r} wants "
            f"rows of {spelled(argument.row)}, found {spelled(pa.struct(columns))}"
        )

    def _require_mode(self, argument: TableArgument, given: TableGiven) -> None:
        mode, where = given.changelog_mode, f"function {self._spec.key}, table argument {argument.name!r}"
        if mode.is_insert_only:
            return
        if not argument.has(ArgumentTrait.SUPPORT_UPDATES):
            raise InvalidCall(
                f"{where}: doesn't support consuming update changes {mode}; it does not declare SUPPORT_UPDATES"
            )
        if mode.is_upsert and argument.has(ArgumentTrait.REQUIRE_UPDATE_BEFORE):
            raise InvalidCall(f"{where}: declares REQUIRE_UPDATE_BEFORE, but the changes are {mode}, without -U")
        if mode.key_only_deletes and argument.has(ArgumentTrait.REQUIRE_FULL_DELETE):
            raise InvalidCall(f"{where}: declares REQUIRE_FULL_DELETE, but deletes have only the columns of the key")
        keys = [{*map(self._key, columns or ())} for columns in (given.partition_by, given.upsert_key)]
        if mode.is_upsert and not (argument.has_set_semantics and keys[0] and keys[1] in (set(), keys[0])):
            told = f" ({', '.join(given.upsert_key)})" if given.upsert_key else ""
            raise InvalidCall(
                f"{where}: upsert changes are only possible for SET_SEMANTIC_TABLE arguments that are partitioned by "
                f"the upsert key{told}, found {', '.join(given.partition_by or ()) or 'no PARTITION BY'}"
            )

    def _order(self, argument: TableArgument, given: TableGiven) -> tuple[OrderColumn, ...]:
        where = f"Invalid ORDER BY clause for table argument {argument.name!r}."
        columns: list[OrderColumn] = []
        for name, descending, nulls_last in given.order_by:
            position = self._position(given.schema, name, "ORDER BY clause")
            type_ = given.schema.field(position).type
            if not columns and not pa.types.is_timestamp(type_):
                raise InvalidCall(
                    f"{where} The first ORDER BY column must be a TIMESTAMP or TIMESTAMP_LTZ column. However, column "
                    f"{name!r} has data type {spelled(normalized(type_))!r}"
                )
            if not columns and descending:
                raise InvalidCall(f"{where} The first ORDER BY column must be ascending; column {name!r} is descending")
            if any(position == each.column for each in columns):
                raise InvalidCall(f"{where} Duplicate column {name!r}")
            columns.append(OrderColumn(position, descending, nulls_last))
        return tuple(columns)

    def copartitioned(self, tables: Mapping[str, TableCall], given: Mapping[str, TableGiven]) -> dict[str, TableCall]:
        """The tables, whose keys have the same number of columns and the same types if they have set semantics.

        A key that the rows of a typed table widen is widened in the other tables, if it was passed with one type.
        """
        result, widened = dict(tables), {}
        keyed = [argument for argument in self._signature.tables if argument.has_set_semantics]
        for argument in sorted(keyed, key=lambda each: each.row is None):
            table, schema = tables[argument.name], tables[argument.name].schema
            for place, column in enumerate(table.partition_by):
                field, passed = schema.field(column), normalized(given[argument.name].schema.field(column).type)
                if argument.row is not None:
                    widened[place, passed] = field.type
                else:
                    schema = schema.set(column, field.with_type(widened.get((place, passed), field.type)))
            result[argument.name] = replace(table, schema=schema)
        keys = [
            [result[each.name].schema.field(column).type for column in result[each.name].partition_by] for each in keyed
        ]
        if any(key != keys[0] for key in keys):
            sets = ", ".join(f"[{', '.join(map(spelled, key))}]" for key in keys)
            raise InvalidCall(
                f"function {self._spec.key}: Invalid PARTITION BY columns. Inconsistent partitioning: the number of "
                "columns and their data types must match across all involved table arguments. Given partition key "
                f"sets: {sets}"
            )
        return result

    def with_times(self, tables: Mapping[str, TableCall], on_time: Sequence[str]) -> dict[str, TableCall]:
        """The tables with their time columns. A name may match several tables; either all have one or none has."""
        spec, result = self._spec, {}
        if not on_time:
            for argument in self._signature.tables:
                if argument.has(ArgumentTrait.REQUIRE_ON_TIME):
                    raise InvalidCall(
                        f"function {spec.key}: Table argument {argument.name!r} requires a time attribute. Please "
                        "provide one with on_time, such as on_time => DESCRIPTOR(`my_timestamp`)"
                    )
            return dict(tables)
        modes = [self._signature.changelog_mode, *(table.changelog_mode for table in tables.values())]
        if any(not mode.is_insert_only for mode in modes):
            raise InvalidCall(
                f"function {spec.key}: Time operations using the `on_time` argument are currently not supported for "
                "PTFs that consume or produce updates"
            )
        if not tables:
            raise InvalidCall(f"function {spec.key}: on_time needs a table argument")
        for column in on_time:
            if not any(self._key(column) in map(self._key, table.schema.names) for table in tables.values()):
                raise InvalidCall(
                    f"Invalid time attribute for on_time: column {column!r} does not exist in any table argument"
                )
        types, times = set(), set(map(self._key, on_time))
        for name, table in tables.items():
            found = [index for index, column in enumerate(table.schema.names) if self._key(column) in times]
            if len(found) != 1:
                names = ", ".join(table.schema.names[index] for index in found)
                problem = f"ambiguous columns {names}" if found else "no column"
                raise InvalidCall(
                    f"Invalid time attribute for on_time: found {problem} for table argument {name!r}. It must "
                    "reference one column of every table argument or of none"
                )
            type_ = normalized(table.schema.field(found[0]).type)
            if not pa.types.is_timestamp(type_):
                raise InvalidCall(
                    f"Unsupported data type for time attribute: column {table.schema.names[found[0]]!r} of table "
                    f"argument {name!r} must be a TIMESTAMP or TIMESTAMP_LTZ, not {spelled(type_)}"
                )
            if table.order_by and table.order_by[0].column != found[0]:
                raise InvalidCall(
                    f"Invalid ORDER BY clause for table argument {name!r}. The first ORDER BY column must be that of "
                    f"on_time, {table.schema.names[found[0]]!r}"
                )
            types.add(type_)
            result[name] = replace(table, time_column=found[0])
        if len(types) > 1:
            raise InvalidCall("Invalid time attributes for on_time: all columns must be of the same data type")
        return result

    def scalars(self, given: Mapping[str, Any]) -> pa.RecordBatch:
        """The scalar arguments. For those that are not given, the function's own defaults apply."""
        spec, columns, names = self._spec, [], []
        parameters = [each for each in spec.parameters if self._signature.table(each.name) is None]
        for name in given:
            if name not in {each.name for each in parameters}:
                raise InvalidCall(f"function {spec.key} has no argument {name!r}: {spec.signature}")
        for position, parameter in enumerate(spec.parameters):
            if self._signature.table(parameter.name) is not None:
                continue
            if parameter.name not in given:
                if position < spec.required_parameters:
                    raise InvalidCall(f"function {spec.key}: argument {parameter.name!r} is missing: {spec.signature}")
                continue
            value = given[parameter.name]
            try:
                columns.append(scalar_array(value, parameter.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidCall(
                    f"function {spec.key}, argument {parameter.name!r}: expected {spelled(parameter.type)}, got "
                    f"{value!r}: {error}"
                ) from error
            names.append(parameter.name)
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _position(self, schema: pa.Schema, name: str, clause: str) -> int:
        found = [index for index, column in enumerate(schema.names) if self._key(column) == self._key(name)]
        if len(found) != 1:
            problem, names = "Ambiguous" if found else "Invalid", ", ".join(schema.names)
            raise InvalidCall(f"{problem} column {name!r} for {clause}. Available columns are: [{names}]")
        return found[0]


def _with_names_of(target: pa.DataType, found: pa.DataType) -> pa.DataType:
    """The found type with the target's field names: fields of typed rows match by position at every depth."""
    if pa.types.is_struct(found) and pa.types.is_struct(target) and found.num_fields == target.num_fields:
        pairs = zip(target, found, strict=True)
        return pa.struct([pa.field(part.name, _with_names_of(part.type, own.type)) for part, own in pairs])
    if pa.types.is_list(found) and pa.types.is_list(target):
        return pa.list_(pa.field("element", _with_names_of(target.value_type, found.value_type)))
    if pa.types.is_map(found) and pa.types.is_map(target):
        key = pa.field("key", _with_names_of(target.key_type, found.key_type), nullable=False)
        return pa.map_(key, pa.field("value", _with_names_of(target.item_type, found.item_type)))
    return found
