"""The types that are sent over the wire: Arrow types, as Spark writes and reads them.

The mapping is that of Spark's Arrow conversion (Spark docs, "Apache Arrow in PySpark", supported
SQL types): TIMESTAMP is `timestamp[us, tz=UTC]`, TIMESTAMP_NTZ is `timestamp[us]`, and day-time intervals are
`duration[us]`. In addition, a dense union is the type of a parameter that accepts several types.
"""

import pyarrow as pa

from remote_udf.errors import UnsupportedType

__all__ = [
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "accepts",
    "alternatives",
    "normalized",
    "require_supported",
    "spelled",
]

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())

_SPELLINGS: dict[pa.DataType, str] = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.time64("ns"): "time",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    pa.duration("us"): "interval day to second",
}


def spelled(type_: pa.DataType) -> str:
    """Return the type in Spark's DDL. The alternatives of a union are joined with " | "."""
    if type_ in _SPELLINGS:
        return _SPELLINGS[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"array<{spelled(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{spelled(type_.key_type)},{spelled(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{_name(field.name)}:{spelled(field.type)}' for field in type_)}>"
    if pa.types.is_union(type_):
        return " | ".join(spelled(field.type) for field in type_)
    return str(type_)


def _name(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def alternatives(type_: pa.DataType) -> list[pa.DataType]:
    """Return the types that a parameter of this type takes: the union's members, or the type alone."""
    return [field.type for field in type_] if pa.types.is_union(type_) else [type_]


def normalized(type_: pa.DataType) -> pa.DataType:
    """Return the type without irrelevant details: large offsets, views, time zones, units, names of elements.

    Two types are the same to a function if their normalized forms are equal.
    """
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is not None else TIMESTAMP_NTZ
    if pa.types.is_duration(type_):
        return pa.duration("us")
    if pa.types.is_time(type_):
        return pa.time64("ns")
    if pa.types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale) if type_.precision <= 38 else type_
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(pa.field("element", normalized(type_.value_type)))
    if pa.types.is_map(type_):
        if pa.types.is_null(type_.key_type):
            return type_  # the type of Spark's map(), which pyarrow can neither make nor cast
        key = pa.field("key", normalized(type_.key_type), nullable=False)
        return pa.map_(key, pa.field("value", normalized(type_.item_type)))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, normalized(field.type)) for field in type_])
    if pa.types.is_union(type_):
        return pa.dense_union([pa.field(str(i), normalized(field.type)) for i, field in enumerate(type_)])
    if pa.types.is_dictionary(type_):
        return normalized(type_.value_type)
    return type_


def require_supported(type_: pa.DataType, where: str) -> pa.DataType:
    """Return the normalized type. Raises UnsupportedType, with `where` in the message, if Spark has no such type."""
    result = normalized(type_)
    nested: list[pa.DataType] = []
    if pa.types.is_list(result):
        nested = [result.value_type]
    elif pa.types.is_map(result):
        nested = [result.key_type, result.item_type]
    elif pa.types.is_struct(result):
        nested = [field.type for field in result]
        names = [field.name for field in result]
        if len(set(names)) != len(names):
            raise UnsupportedType(f"{where}: {spelled(result)} has two fields with the same name")
    elif pa.types.is_union(result):
        nested = alternatives(result)
    elif not (result in _SPELLINGS or (pa.types.is_decimal(result) and result.precision <= 38)):
        raise UnsupportedType(f"{where}: type {spelled(result)} does not exist in Spark")
    for inner in nested:
        require_supported(inner, where)
    return result


def accepts(parameter: pa.DataType, argument: pa.DataType) -> pa.DataType | None:
    """Return the parameter's type to convert the argument to, or None if the argument does not fit.

    An exact match has precedence over a conversion. Conversions are those implicit ones of Spark that never fail and
    lose at most digits of a floating point number: a wider integer, integer to decimal or double, float to
    double, a wider decimal, decimal to double, null to anything, and the same inside arrays, maps
    and structs (same field names in the same order).
    """
    wanted = alternatives(parameter)
    argument = normalized(argument)
    for type_ in wanted:
        if type_ == argument:
            return type_
    return next((type_ for type_ in wanted if _widens(argument, type_)), None)


def _widens(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        same_names = [field.name for field in source] == [field.name for field in target]
        return same_names and all(_widens(a.type, b.type) for a, b in zip(source, target, strict=True))
    if pa.types.is_list(source) and pa.types.is_list(target):
        return _widens(source.value_type, target.value_type)
    if pa.types.is_map(source) and pa.types.is_map(target):
        keys = not pa.types.is_null(source.key_type) and _widens(source.key_type, target.key_type)
        return keys and _widens(source.item_type, target.item_type)
    if source in _INTEGERS:
        return _integer_widens(source, target)
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole = target.precision - target.scale >= source.precision - source.scale
        return whole and target.scale >= source.scale
    return (pa.types.is_float32(source) and pa.types.is_float64(target)) or (
        # Spark's own implicit cast: every literal with a decimal point in SQL is a decimal.
        pa.types.is_decimal(source) and pa.types.is_float64(target)
    )


def _integer_widens(source: pa.DataType, target: pa.DataType) -> bool:
    if target in _INTEGERS:
        return _INTEGERS.index(target) >= _INTEGERS.index(source)
    if pa.types.is_decimal(target):
        digits = {8: 3, 16: 5, 32: 10, 64: 20}[source.bit_width]
        return bool(target.precision - target.scale >= digits)
    return pa.types.is_float64(target) or (pa.types.is_float32(target) and source.bit_width <= 16)
