"""Passes rows to a function of many rows, and checks that it returns a value of its type, or an error, for each."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.functions import Execution
from remote_udf.raw_texts import read_texts
from remote_udf.types import accepts, normalized, spelled
from udf_server.base.errors import Failure, RowErrors
from udf_server.base.failures import describe
from udf_server.declaring.functions import Function
from udf_server.values.codecs import Codec
from udf_server.values.values import Failures, decode_rows, encode_rows

__all__ = [
    "Calling",
    "MalformedResult",
    "RefusedArgument",
    "Returned",
    "WrongResult",
    "converted",
    "from_foreign",
    "require_length",
    "validated",
]


class WrongResult(Exception):
    """The returned result is not valid. A call for fewer rows may show which row is the cause."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MalformedResult(WrongResult):
    """The result as a whole is not valid: it is not an array, has another length, or has buffers that are too short.

    The error is reported immediately for all rows of the call. Calling again for fewer rows would hide it: a function
    that returns one value for many rows by mistake returns a plausible value for each single row.
    """


class RefusedArgument(WrongResult):
    """An argument of a row has no Python value, so the function was not called for it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.ARGUMENT_VALUE, message)


class _Refused(RowErrors):
    """The rows of a call whose arguments have no value. The function was not called."""


class Returned(NamedTuple):
    """What one call has returned for its rows. Mappings have the position of a row in the call."""

    values: pa.Array | None
    """One value per row; None if the rows without an error must be called again."""
    wrong: Mapping[int, Exception] = MappingProxyType({})
    """Rows whose value does not have the declared type."""
    failed: Mapping[int, BaseException] = MappingProxyType({})
    """Rows that failed by themselves. The others are not affected."""
    called: bool = True
    """Whether the function was called."""


def _returned_array(result: Any, rows: int, codec: Codec) -> tuple[pa.Array, Failures]:
    """The result as an array of the declared type, and the rows whose value does not fit that type.

    Arrow arrays, and objects that pa.array converts as a whole, are cast if that keeps every
    value. Lists are encoded value by value. Raises WrongResult.
    """
    type_ = codec.type
    try:
        if isinstance(result, np.ndarray) or hasattr(result, "__arrow_array__") or hasattr(result, "__arrow_c_array__"):
            result = from_foreign(result)
        if not isinstance(result, (pa.Array, pa.ChunkedArray, list, tuple)):
            raise MalformedResult(
                ErrorCode.RESULT_TYPE,
                f"expected an array of {spelled(type_)} with {rows} values, one per row, got a value of type "
                f"{type(result).__name__}",
            )
        require_length(len(result), rows, "values, one per row")
        if isinstance(result, (list, tuple)):
            return encode_rows(codec, result)
        return converted(validated(result), codec)
    except WrongResult:
        raise
    except Exception as strange:
        # Arrow may raise anything for an object that claims to be an array.
        why = f"expected an array of {spelled(type_)}: {describe(strange)}"
        raise MalformedResult(ErrorCode.RESULT_TYPE, why) from strange


def require_length(found: int, wanted: int, of: str) -> None:
    """Raise MalformedResult with both lengths if they differ. `of` names what was counted."""
    if found != wanted:
        raise MalformedResult(ErrorCode.RESULT_LENGTH, f"expected {wanted} {of}, got {found}")


def validated(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The array in one chunk. Raises WrongResult if its buffers, or those of its children, are not valid.

    Arrow itself trusts lengths and offsets: it would read memory outside of the buffers, or crash the process.
    """
    try:
        array.validate()
    except pa.ArrowException as error:
        raise MalformedResult(ErrorCode.RESULT_TYPE, f"a malformed array of {spelled(array.type)}: {error}") from error
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        # The cause is in single rows, such as text that is not UTF-8.
        raise WrongResult(ErrorCode.RESULT_TYPE, f"an invalid array of {spelled(array.type)}: {error}") from error
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def from_foreign(result: Any) -> Any:
    """The array of an object that pa.array converts as a whole, such as numpy's, or else the list of its elements."""
    if isinstance(result, np.ndarray) and result.dtype.hasobject:
        # pyarrow would drop the zone of a datetime.time, and take numbers among the objects for one another.
        return list(result)
    try:
        return pa.array(result)
    except Exception:
        return list(result)


def converted(array: pa.Array, codec: Codec) -> tuple[pa.Array, Failures]:
    """The array in the declared type, and the rows whose value does not fit it. Raises WrongResult."""
    type_ = codec.type
    if array.type == type_:
        return array, {}
    if _keeps_values(array.type, type_):
        try:
            return array.cast(type_), {}
        except pa.ArrowException:
            pass  # some value does not fit: encode_rows finds the row
    try:
        return encode_rows(codec, array.to_pylist())
    except (ValueError, OverflowError) as error:
        raise WrongResult(ErrorCode.RESULT_TYPE, f"expected {spelled(type_)}, got {spelled(array.type)}") from error


def _keeps_values(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast keeps the values: the target type is wider, or of the same kind of number."""
    same_kind = any(
        check(source) and check(target) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )
    return same_kind or accepts(target, normalized(source)) is not None


class Calling:
    """How one function takes its arguments and returns its values. It keeps nothing from call to call."""

    def __init__(self, function: Function, targets: Sequence[pa.DataType]) -> None:
        """`targets` has the type of each argument."""
        self._function = function
        self._codecs: Sequence[Codec] | None = None
        """The codecs of the arguments of a list function; None for a function of arrays."""
        if function.spec.execution is Execution.BATCHED:
            self._codecs = [function.codec_for(*target) for target in enumerate(targets)]

    def arguments(self, columns: Sequence[pa.Array], rows: Sequence[int]) -> list[Any]:
        """The arguments of a call for these rows of the columns. Raises RowErrors for rows without a value."""
        if isinstance(rows, range):
            arrays = [column.slice(rows[0], len(rows)) for column in columns]
        else:
            places = pa.array(rows, pa.int64())
            arrays = [column.take(places) for column in columns]
        refused: dict[int, BaseException] = {}
        if self._codecs is None:
            read = [read_texts(array) for array in arrays]
            for position, (_, unreadable) in enumerate(read):
                for row, text in unreadable.items():
                    place = self._function.place(position, text.path)
                    refused.setdefault(row, RefusedArgument(f"{place}: {text.problem}"))
            taken = [array for array, _ in read]
        else:
            decoded = [decode_rows(codec, array) for codec, array in zip(self._codecs, arrays, strict=True)]
            for position, (_, failures) in enumerate(decoded):
                for row, error in failures.items():
                    refused.setdefault(row, RefusedArgument(f"{self._function.place(position)}: {describe(error)}"))
            taken = [values for values, _ in decoded]
        if refused:
            raise _Refused(refused)
        return taken

    def returned(self, result: Any, rows: int) -> Returned:
        """The values of a call for this number of rows, and the Failures among them. Raises WrongResult."""
        failed = {}
        if isinstance(result, (list, tuple)):
            failed = {row: value for row, value in enumerate(result) if isinstance(value, Failure)}
            if failed:
                result = [None if row in failed else value for row, value in enumerate(result)]
        values, wrong = _returned_array(result, rows, self._function.result)
        return Returned(values, wrong, failed)

    def named(self, error: RowErrors, rows: int) -> Returned:
        """The values and errors of a call that has raised RowErrors, or `arguments` has. Raises WrongResult."""
        if not error.errors:
            raise MalformedResult(ErrorCode.RESULT_TYPE, "RowErrors without errors; return the values instead")
        for row, each in error.errors.items():
            if not isinstance(row, int) or not 0 <= row < rows:
                raise MalformedResult(ErrorCode.RESULT_LENGTH, f"RowErrors has row {row!r} of a call for {rows} rows")
            if not isinstance(each, BaseException):
                raise MalformedResult(
                    ErrorCode.RESULT_TYPE, f"RowErrors has a {type(each).__name__} for row {row}; expected an exception"
                )
        if error.values is None:
            return Returned(None, failed=error.errors, called=not isinstance(error, _Refused))
        values, wrong, failed, _ = self.returned(error.values, rows)
        failed = {**failed, **error.errors}
        return Returned(values, {row: each for row, each in wrong.items() if row not in failed}, failed)
