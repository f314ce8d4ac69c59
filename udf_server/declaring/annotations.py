"""Conversion of Python annotations to codecs. This table has the type of each annotation.

bool  int  float  str  bytes        boolean  bigint  double  string  binary
Decimal                             decimal(38,18)
date  datetime  timedelta  time     date  timestamp  interval day to second  time
Annotated[datetime, "timestamp_ntz"], Annotated[Decimal, "decimal(10,2)"], Annotated[int, pa.int32()]
numpy.int8 ... numpy.float64        the same widths; values arrive as numpy scalars
list[T]  dict[K, V]                 array<T>  map<K,V>
dataclass, NamedTuple               struct
Optional[T]                         as T; every type accepts nulls
A | B                               either of the two (parameters only)
pa.Int64Array, pa.StringArray ...   the array's type (vectorized functions only)
"""

import dataclasses
import datetime
import decimal
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias, Union

import numpy as np
import pyarrow as pa

from remote_udf.ddl import parse_type
from remote_udf.errors import UnsupportedType
from remote_udf.table_arguments import ArgumentTrait
from remote_udf.types import TIMESTAMP, require_supported
from udf_server.base.errors import DeclarationError
from udf_server.values.codecs import Codec, Leaf
from udf_server.values.records import StructCodec, is_record
from udf_server.values.values import ListCodec, MapCodec, codec_for_type

__all__ = ["AuthorCode", "GivenType", "array_type", "codecs_for", "hints_of_code", "signature_of", "type_given"]

GivenType: TypeAlias = str | type | types.UnionType | pa.DataType
"""How an author gives a type: as Spark writes it, by an annotation, or as an Arrow type."""
_LEAVES: dict[GivenType, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    decimal.Decimal: pa.decimal128(38, 18),
    datetime.date: pa.date32(),
    datetime.datetime: TIMESTAMP,
    datetime.timedelta: pa.duration("us"),
    datetime.time: pa.time64("ns"),
}

_NUMPY: dict[GivenType, pa.DataType] = {
    np.bool_: pa.bool_(),
    np.int8: pa.int8(),
    np.int16: pa.int16(),
    np.int32: pa.int32(),
    np.int64: pa.int64(),
    np.float32: pa.float32(),
    np.float64: pa.float64(),
}

_ARRAYS: dict[GivenType, pa.DataType] = {
    pa.BooleanArray: pa.bool_(),
    pa.Int8Array: pa.int8(),
    pa.Int16Array: pa.int16(),
    pa.Int32Array: pa.int32(),
    pa.Int64Array: pa.int64(),
    pa.FloatArray: pa.float32(),
    pa.DoubleArray: pa.float64(),
    pa.StringArray: pa.string(),
    pa.BinaryArray: pa.binary(),
    pa.Date32Array: pa.date32(),
}


class AuthorCode(Protocol):
    """Code of an author: a function, a method or an object that can be called with the values of a row."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...


def hints_of_code(code: AuthorCode, where: str) -> dict[str, Any]:
    """The evaluated annotations of the function that a method or a decorated function was made of.

    There are none for a callable object without annotations. Raises DeclarationError if one cannot be evaluated.
    """
    return _hints_of(inspect.unwrap(getattr(code, "__func__", code)), where)


def _hints_of(target: Any, where: str) -> dict[str, Any]:
    try:
        if not hasattr(target, "__annotations__"):
            return {}
        return inspect.get_annotations(target, eval_str=True)
    except Exception as error:
        raise DeclarationError(f"{where}: an annotation cannot be evaluated: {error}") from error


def signature_of(code: AuthorCode, where: str) -> inspect.Signature:
    """The signature. Raises DeclarationError if Python cannot find one, for example of a method without `self`."""
    try:
        return inspect.signature(code)
    except (TypeError, ValueError) as error:
        name = getattr(code, "__name__", type(code).__name__)
        raise DeclarationError(f"{where}: the parameters of {name!r} cannot be read: {error}") from error


def type_given(given: GivenType, where: str) -> pa.DataType | None:
    """The Arrow type of an Arrow type or DDL string; None if `given` is neither.

    Raises DeclarationError for an unknown type, and for a table trait where no table can be passed.
    """
    if isinstance(given, ArgumentTrait):
        raise DeclarationError(
            f"{where}: Only scalar arguments are supported at this location, but the argument declares the traits "
            f"[TABLE, {given.value}]; a function that takes a table derives from ProcessTableFunction"
        )
    try:
        if isinstance(given, pa.DataType):
            return require_supported(given, where)
        return parse_type(given) if isinstance(given, str) else None
    except UnsupportedType as error:
        raise DeclarationError(f"{where}: {error}") from error


def array_type(annotation: GivenType) -> pa.DataType | None:
    """The type of a typed Arrow array class such as pa.Int64Array; None for any other annotation."""
    return _named(_ARRAYS, annotation)


def codecs_for(annotation: GivenType, where: str) -> list[Codec]:
    """One codec, or one per member of a union.

    Raises DeclarationError, which starts with `where`, if the annotation is not a supported type.
    """
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    members: Sequence[Any] = typing.get_args(annotation) if is_union else (annotation,)
    codecs = [_codec(member, where) for member in members if member is not type(None)]
    if len({codec.type for codec in codecs}) < len(codecs):
        raise DeclarationError(f"{where}: two members of {annotation} have the same type")
    if not codecs:
        raise DeclarationError(f"{where}: {annotation} is not a supported type")
    return codecs


def _named(table: Mapping[GivenType, pa.DataType], annotation: GivenType) -> pa.DataType | None:
    try:
        return table.get(annotation)
    except TypeError:  # it cannot be hashed, so it is not in the table
        return None


def _one(annotation: type, where: str) -> Codec:
    codecs = codecs_for(annotation, where)
    if len(codecs) > 1:
        raise DeclarationError(f"{where}: {annotation} is a union; only a parameter itself may be one")
    return codecs[0]


def _codec(annotation: type, where: str) -> Codec:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        for note in arguments[1:]:
            if (type_ := type_given(note, where)) is not None:
                return _with_record(codec_for_type(type_), arguments[0], where)
        return _codec(arguments[0], where)
    if (type_ := type_given(annotation, where)) is not None:
        return codec_for_type(type_)
    if (leaf := _named(_LEAVES, annotation)) is not None:
        return Leaf(leaf)
    if (number := _named(_NUMPY, annotation)) is not None:
        return Leaf(number, annotation)
    if origin in (list, Sequence) and len(arguments) == 1:
        return ListCodec(_one(arguments[0], where))
    if origin in (dict, Mapping) and len(arguments) == 2:
        return MapCodec(_one(arguments[0], where), _one(arguments[1], where))
    if is_record(annotation):
        return _record(annotation, where)
    raise DeclarationError(
        f"{where}: {_shown(annotation)} is not a supported type; use a type from the list in "
        "udf_server.declaring.annotations, or Annotated[..., 'a Spark DDL type']"
    )


def _with_record(codec: Codec, annotation: type, where: str) -> Codec:
    """The codec of an explicit type for an annotation. If both are a record, the values are instances of its class."""
    if isinstance(codec, StructCodec) and is_record(annotation):
        if list(codec.fields) != list(_record(annotation, where).fields):
            raise DeclarationError(f"{where}: the fields of {annotation.__name__} are not those of its type")
        return StructCodec(codec.fields, annotation)
    return codec


def _record(annotation: type, where: str) -> StructCodec:
    hints: dict[str, type] = {}
    for ancestor in reversed(annotation.__mro__):
        hints |= _hints_of(ancestor, f"{where}, {annotation.__name__}")
    if dataclasses.is_dataclass(annotation):
        fields = dataclasses.fields(annotation)
        fixed = [field.name for field in fields if not field.init]
        if fixed:
            raise DeclarationError(f"{where}: {annotation.__name__}.{fixed[0]} is not set by its __init__")
        hints = {field.name: hints[field.name] for field in fields}
    return StructCodec(
        {name: _one(hint, f"{where}, {annotation.__name__}.{name}") for name, hint in hints.items()}, annotation
    )


def _shown(annotation: type | types.UnionType) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
