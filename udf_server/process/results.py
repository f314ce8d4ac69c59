"""Converts what functions emit to rows of the declared columns."""

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.result_columns import depends_on_call
from remote_udf.row_kinds import ChangelogMode, RowKind
from udf_server.base.errors import DeclarationError
from udf_server.base.failures import describe
from udf_server.declaring.annotations import GivenType, codecs_for
from udf_server.process.base import Row
from udf_server.process.views import ListView, MapView
from udf_server.runners.calling import WrongResult
from udf_server.values.codecs import Codec
from udf_server.values.records import StructCodec
from udf_server.values.values import ListCodec, MapCodec, codec_for_type

__all__ = ["Results", "results_given", "results_of"]

ATOMIC = "EXPR$0"
"""The name of the only column of an atomic result, as in Flink."""
ROW_BYTES = 32
"""The size of a row without its values: its origin, kind and time."""
FIXED_BYTES = 8
T = TypeVar("T")
SizeOf = Callable[[Any], int]
_FIELDS = re.compile(r"\s*[`\w]+\s*:?\s+\S", re.ASCII)


@dataclass(frozen=True, eq=False)
class Results:
    """The columns of a result. If `atomic`, it is one value, not a row; `record` is the class of rows, if any."""

    columns: Mapping[str, Codec]
    atomic: bool
    record: type | None
    mode: ChangelogMode
    told: pa.DataType | None = None
    """A placeholder for the columns if they depend on the call."""

    @property
    def type(self) -> pa.DataType:
        if self.told is not None:
            return self.told
        return pa.struct([pa.field(name, codec.type) for name, codec in self.columns.items()])

    def read(self, value: Any) -> tuple[RowKind, Sequence[Any], int] | None:
        """Kind, values and approximate bytes of an emitted row. None is skipped, and returned, if rows are expected.

        The current values are read, so later changes of the object have no effect.

        Raises WrongResult if it is not a row of these columns, or if its kind was not declared.
        """
        kind = RowKind.INSERT
        if self.atomic:
            values: Sequence[Any] = (value,)
        elif isinstance(value, Row):
            kind, values = value.kind, value
        elif value is None:
            return None
        elif self.record is not None and isinstance(value, self.record):
            values = [getattr(value, name) for name in self.columns]
        elif isinstance(value, (tuple, list)):
            values = value
        elif isinstance(value, dict) and value.keys() == self.columns.keys():
            values = [value[name] for name in self.columns]
        else:
            raise WrongResult(
                ErrorCode.RESULT_TYPE,
                f"expected a row of {', '.join(self.columns) or 'no columns'}, got a value of type "
                f"{type(value).__name__}",
            )
        if len(values) != len(self.columns):
            raise WrongResult(
                ErrorCode.RESULT_TYPE,
                f"expected a row of {len(self.columns)} columns ({', '.join(self.columns)}), got {len(values)} values",
            )
        if kind not in self.mode.kinds:
            raise WrongResult(
                ErrorCode.RESULT_TYPE,
                f"Invalid row kind received: {kind.name}. Expected produced changelog mode: {self.mode}",
            )
        changing, sized, size = self._columns
        if changing:
            values = list(values)
            for index, copied in changing:
                values[index] = copied(values[index])
        elif values is value and type(value) is list:
            values = tuple(values)
        for index, bytes_of in sized:
            size += bytes_of(values[index])
        return kind, values, size

    @functools.cached_property
    def _columns(self) -> tuple[list[tuple[int, Callable[[Any], Any]]], list[tuple[int, SizeOf]], int]:
        """The columns whose values may change later, those whose values differ in size, and the size of the rest."""
        codecs = list(self.columns.values())
        sizes = [(index, size) for index, codec in enumerate(codecs) if (size := _size_of(codec)) is not None]
        changing = [(index, _copier(codec)) for index, codec in enumerate(codecs) if codec.mutable]
        return changing, sizes, ROW_BYTES + FIXED_BYTES * (len(codecs) - len(sizes))

    def encode(self, rows: Sequence[Sequence[Any]]) -> pa.Array:
        """A struct array with an element per row. Raises WrongResult if a value does not have its column's type."""
        if not self.columns:
            return pa.array([{}] * len(rows), self.type)
        columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(self.columns)
        arrays = []
        for (name, codec), values in zip(self.columns.items(), columns, strict=True):
            try:
                arrays.append(codec.encode(values))
            except Exception as error:
                raise WrongResult(ErrorCode.RESULT_TYPE, f"column {name!r}: {describe(error)}") from error
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))


def results_given(where: str, given: GivenType | None, returned: GivenType | None, mode: ChangelogMode) -> Results:
    """The result that `returns` declares, otherwise the return annotation of `eval`. Raises DeclarationError."""
    wanted = given if given is not None else _element(returned)
    if wanted is None:
        raise DeclarationError(
            f"{where}, result: has no type: give 'returns', such as returns = \"item string, count bigint\""
        )
    if not isinstance(mode, ChangelogMode) or not mode.kinds:
        raise DeclarationError(f"{where}: changelog_mode is {mode!r}, not a ChangelogMode with kinds of row")
    if isinstance(wanted, (list, tuple)) and wanted and all(isinstance(each, pa.Field) for each in wanted):
        told = pa.struct(list(wanted))
        return Results({}, False, None, mode, told) if depends_on_call(told) else results_of(told, mode)
    if isinstance(wanted, str) and (not wanted.strip() or _is_fields(wanted)):
        wanted = f"struct<{wanted}>" if wanted.strip() else pa.struct([])
    codec, *others = codecs_for(wanted, f"{where}, result")
    if others:
        raise DeclarationError(f"{where}, result: {wanted} is not a single type")
    atomic = not isinstance(codec, StructCodec)
    if atomic and not mode.is_insert_only:
        raise DeclarationError(f"{where}: emits changes {mode}, so its result is a row, which has a kind")
    if isinstance(codec, StructCodec):
        return Results(dict(codec.fields), False, codec.record, mode)
    return Results({ATOMIC: codec}, True, None, mode)


def results_of(result: pa.DataType, mode: ChangelogMode) -> Results:
    """A result with these columns."""
    return Results({field.name: codec_for_type(field.type) for field in result}, False, None, mode)


def _copier(codec: Codec) -> Callable[[Any], Any]:
    if isinstance(codec, ListCodec) and not codec.element.mutable:
        # A fast path for the usual case, which is several times faster.
        return lambda value: value[:] if type(value) is list else codec.copied(_plain(value))
    return lambda value: codec.copied(_plain(value))


def _plain(value: Any) -> Any:
    """The list or dictionary in a view of state."""
    if isinstance(value, ListView):
        return list(value)
    return dict(value) if isinstance(value, MapView) else value


def _is_fields(text: str) -> bool:
    """Whether DDL declares columns ("a int") and not a type ("int", "struct<...>")."""
    return bool(_FIELDS.match(text)) and not re.match(r"\s*(interval|double\s+precision)\b", text, re.IGNORECASE)


def _element(returned: Any) -> Any:
    """The type parameter T of Iterator[T] and similar types."""
    arguments = typing.get_args(returned)
    if typing.get_origin(returned) is not None and arguments and not dataclasses.is_dataclass(returned):
        return arguments[0]
    return None


def _size_of(codec: Codec) -> SizeOf | None:
    """A function that estimates the Arrow size of a value without encoding it; None if all values have the same size.

    A value of a wrong type also gets a size; the encoding rejects it later.
    """
    if isinstance(codec, ListCodec):
        element = _size_of(codec.element)
        if element is None:
            # The codec rejects values of a wrong type, such as objects without a length, later.
            return lambda value: FIXED_BYTES * _length(value)
        return lambda value: _sum(value, element) if isinstance(value, (list, tuple)) else FIXED_BYTES
    if isinstance(codec, MapCodec):
        key, item = _size_of(codec.key), _size_of(codec.item)
        return lambda value: _sum(value, key) + _sum(value.values(), item) if isinstance(value, dict) else FIXED_BYTES
    if isinstance(codec, StructCodec):
        fields = [(name, _size_of(part)) for name, part in codec.fields.items()]
        if codec.record is not None:
            return lambda value: sum(_one(getattr(value, name, None), size) for name, size in fields)
        return lambda value: (
            sum(_one(value.get(name), size) for name, size in fields) if isinstance(value, dict) else FIXED_BYTES
        )
    if pa.types.is_string(codec.type) or pa.types.is_binary(codec.type):
        return _length
    return None


def _length(value: Sized | None) -> int:
    if value is None:
        return FIXED_BYTES
    try:
        return FIXED_BYTES + len(value)
    except TypeError:
        return FIXED_BYTES


def _sum(values: Collection[T], size: Callable[[T], int] | None) -> int:
    return FIXED_BYTES * len(values) if size is None else FIXED_BYTES + sum(map(size, values))


def _one(value: T | None, size: Callable[[T], int] | None) -> int:
    return FIXED_BYTES if size is None or value is None else size(value)
